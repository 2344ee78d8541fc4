//! The sweep: with a fixed order per device and no contention the timeline is one max/add pass over the graph.

use super::gates::Gates;
use super::rules::{Machine, Pair, SweepRule, pairs};
use pipesim_cost::{CostTable, OpTime};
use pipesim_schedule::graph::{Besides, Run, TaskGraph, Until};
use pipesim_schedule::metrics::Activity;
use pipesim_schedule::op::Op;

/// Returns the rules by [`Schedule::class`](pipesim_schedule::schedule::Schedule::class), from the times of ops of each class.
pub(super) fn rules(graph: &TaskGraph, time: impl Fn(Op) -> OpTime) -> Vec<SweepRule> {
    let schedule = graph.schedule();
    let mut rules = vec![SweepRule::default(); schedule.classes()];
    for op in schedule.op_classes() {
        let (OpTime { duration, after, arrival }, route) = (time(op), graph.route(op));
        rules[schedule.class(op)] = SweepRule { duration, after, arrival, input: route.input, output: route.output };
    }
    rules
}

/// Returns the rules of ops without contention.
fn rules_of(graph: &TaskGraph, costs: &CostTable) -> Vec<SweepRule> {
    let placement = &graph.schedule().placement;
    rules(graph, |op| match costs.of(op) {
        time if placement.leaves_device(op) => time,
        time => OpTime { arrival: 0, ..time },
    })
}

/// Progress of a device through its program.
#[derive(Clone, Copy)]
struct SweepProgress {
    next: usize,
    free: u64,
    activity: Activity,
}

/// Sweeps at constant speed: an op starts when its device is free and its input has arrived. Returns what each device did.
pub fn sweep(graph: &TaskGraph, costs: &CostTable) -> Vec<Activity> {
    sweep_lasting(graph, costs, |_, _, _, duration| duration, |_, _, _| ())
}

/// [`sweep`] with durations of the caller's: `lasts(index, device, start, duration)` returns how long an op takes whose cost is
/// `duration`. Calls `note(index, start, end)` for each op.
pub fn sweep_lasting(
    graph: &TaskGraph,
    costs: &CostTable,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    mut note: impl FnMut(usize, u64, u64),
) -> Vec<Activity> {
    let rules = rules_of(graph, costs);
    let machine = Machine { rules: &rules, extras: &costs.extras, begin: &[] };
    sweep_rules(graph, machine, lasts, |index, start, end, _| note(index, start, end))
}

/// [`sweep`] on devices that are free from the times `begin` on.
pub(super) fn sweep_from(graph: &TaskGraph, costs: &CostTable, begin: &[u64]) -> Vec<Activity> {
    let rules = rules_of(graph, costs);
    let machine = Machine { rules: &rules, extras: &costs.extras, begin };
    sweep_rules(graph, machine, |_, _, _, duration| duration, |_, _, _, _| ())
}

/// [`sweep_lasting`] with rules in place of costs. Calls `note(index, start, end, leaves)`, where `leaves` is when the op's output
/// leaves.
pub(super) fn sweep_rules(
    graph: &TaskGraph,
    machine: Machine<'_>,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    note: impl FnMut(usize, u64, u64, u64),
) -> Vec<Activity> {
    let pauses = &machine.extras.pauses[..];
    let pause = |index: usize| pauses.get(index).copied().unwrap_or(0);
    if graph.has_waits() {
        return sweep_waiting(graph, machine, lasts, pause, note);
    }
    let open = |_: usize, _: u32, free: u64| free;
    match (pauses, Gates::new(graph, machine.extras.collectives.as_ref()), graph.schedule().is_beyond_microbatches()) {
        ([], None, false) => sweep_pausing::<false, false>(graph, machine, lasts, |_| 0, open, note),
        (_, None, false) => sweep_pausing::<false, false>(graph, machine, lasts, pause, open, note),
        (_, None, true) => sweep_pausing::<true, false>(graph, machine, lasts, pause, open, note),
        (_, Some(mut gates), _) => {
            let gate = |index: usize, device: u32, free: u64| gates.pass(device, index, free, |_| ());
            sweep_pausing::<true, true>(graph, machine, lasts, pause, gate, note)
        }
    }
}

/// [`sweep_rules`] where `pause(index)` returns how long a device sums gradients after an op, and `gate(index, device, free)` when a
/// device that is free at `free` may start an op, if `GATED`. `BEYOND` says whether there may be slices, or kinds besides F, I, W and B.
fn sweep_pausing<const BEYOND: bool, const GATED: bool>(
    graph: &TaskGraph,
    Machine { rules, extras, begin }: Machine<'_>,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    pause: impl Fn(usize) -> u64,
    mut gate: impl FnMut(usize, u32, u64) -> u64,
    mut note: impl FnMut(usize, u64, u64, u64),
) -> Vec<Activity> {
    let (schedule, pairs) = (graph.schedule(), pairs(graph, extras));
    let slices = if BEYOND { graph.slices() } else { 1 };
    let class = |op: &Op| if BEYOND { schedule.class(*op) } else { op.slot() };
    let unit = |op: &Op| if BEYOND { op.unit(slices) } else { op.microbatch() as usize };
    let mut ready = vec![0_u64; graph.cells()]; // by cell: when its content may be used
    let at_begin = |device: u32| SweepProgress {
        next: schedule.range(device).start,
        free: begin.get(device as usize).copied().unwrap_or(0),
        activity: Activity { first_start: u64::MAX, ..Activity::default() },
    };
    let mut progress: Vec<SweepProgress> = (0..schedule.devices()).map(at_begin).collect();
    for &Run { device, end } in graph.runs() {
        let SweepProgress { next, mut free, mut activity } = progress[device as usize];
        let end = end as usize;
        let ops = &schedule.ops()[next..end];
        let mut closes = false; // the op before opened a pair, which ran as a whole
        for (index, op) in (next..end).zip(ops) {
            let (rule, unit_number) = (&rules[class(op)], unit(op));
            if closes {
                closes = false;
                continue;
            }
            let ungated = free;
            if GATED {
                free = gate(index, device, free);
            }
            if op.opens_pair() {
                closes = true;
                let second = ops[index + 1 - next];
                let (other, other_unit) = (&rules[class(&second)], unit(&second));
                let inputs = [ready[rule.input + unit_number], ready[other.input + other_unit]];
                let durations = [rule.duration, other.duration];
                let last = |which: usize, start| lasts(index + which, device, start, durations[which]);
                let streams = pairs.and_then(|pairs| pairs.of(*op, second));
                let Pair { starts, ends } = Pair::new(graph.overlap(), streams, free, inputs, last);
                if GATED {
                    let both = graph.overlap().starts_together();
                    let possible = ungated.max(inputs[0]).max(if both { inputs[1] } else { 0 });
                    activity.gated += free.saturating_sub(possible);
                }
                ready[rule.output + unit_number] = ends[1] + rule.arrival;
                free = ends[1] + rule.after;
                note(index, starts[0], ends[0], ends[1]);
                note(index + 1, starts[1], ends[1], free);
                ready[other.output + other_unit] = free + other.arrival;
                free += other.after + pause(index + 1);
                activity.busy += ends[0] - starts[0] + ends[1] - starts[1];
                activity.first_start = activity.first_start.min(starts[0]);
                activity.last_end = ends[1];
                continue;
            }
            let input = ready[rule.input + unit_number];
            let start = free.max(input);
            if GATED {
                activity.gated += free.saturating_sub(ungated.max(input));
            }
            let duration = lasts(index, device, start, rule.duration);
            let end = start + duration;
            ready[rule.output + unit_number] = end + rule.arrival;
            free = end + rule.after + pause(index);
            activity.busy += duration;
            activity.first_start = activity.first_start.min(start);
            activity.last_end = end;
            note(index, start, end, end);
        }
        progress[device as usize] = SweepProgress { next: end, free, activity };
    }
    let counted = |(device, SweepProgress { free, mut activity, .. }): (u32, SweepProgress)| {
        let resumed = gate(schedule.range(device).end, device, free);
        activity.gated += resumed - free;
        activity.counted(resumed)
    };
    (0..).zip(progress).map(counted).collect()
}

/// [`sweep_rules`] over a graph with copies, which run on queues next to compute, or with a vocabulary that all devices share: a copy starts
/// when all that it waits for has ended, and does not keep its device from computing. Such graphs have no collectives:
/// [`Fsdp::sharding`](pipesim_schedule::fsdp::Fsdp::sharding) refuses them.
fn sweep_waiting(
    graph: &TaskGraph,
    Machine { rules, extras, begin }: Machine<'_>,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    pause: impl Fn(usize) -> u64,
    mut note: impl FnMut(usize, u64, u64, u64),
) -> Vec<Activity> {
    let (schedule, pairs, vocabulary) = (graph.schedule(), pairs(graph, extras), extras.vocabulary);
    let begins = |device: u32| begin.get(device as usize).copied().unwrap_or(0);
    let idle = Activity { first_start: u64::MAX, ..Activity::default() };
    let mut devices: Vec<(u64, Activity)> = (0..schedule.devices()).map(|device| (begins(device), idle)).collect();
    // by op: when it starts and ends, and when its output may be used
    let [mut begun, mut ended, mut usable] = [(); 3].map(|()| vec![0_u64; graph.len()]);
    let mut closes = false; // the op before opened a pair, which ran as a whole
    for index in graph.order() {
        if std::mem::take(&mut closes) {
            continue;
        }
        let (op, device) = (graph.op(index), graph.device_of(index));
        let rule = |index: usize| {
            let (op, rule) = (graph.op(index), rules[schedule.class(graph.op(index))]);
            SweepRule { duration: vocabulary.duration(op, schedule.microbatches, rule.duration), ..rule }
        };
        let waited = |index: usize| {
            let met = graph.waits(index).iter().map(|&Besides { op, until }| match until {
                Until::Ended => ended[op as usize],
                Until::Gathered => ended[op as usize] + vocabulary.barrier,
                Until::Begun => begun[op as usize],
            });
            met.fold(graph.upstream(index).map_or(0, |up| usable[up]), u64::max)
        };
        let last = |index: usize, start| lasts(index, device, start, rule(index).duration);
        let (free, activity) = &mut devices[device as usize];
        let inputs = [index, if op.opens_pair() { index + 1 } else { index }].map(waited);
        let mut note = |index: usize, start: u64, end: u64, until: u64, leaves: u64| {
            (begun[index], ended[index], usable[index]) = (start, until, leaves + rule(index).arrival);
            note(index, start, end, leaves);
        };
        if op.opens_pair() {
            closes = true;
            let streams = pairs.and_then(|pairs| pairs.of(op, graph.op(index + 1)));
            let lasts = |which: usize, start| last(index + which, start);
            let Pair { starts, ends } = Pair::new(graph.overlap(), streams, *free, inputs, lasts);
            let second = ends[1] + rule(index).after;
            note(index, starts[0], ends[0], ends[1], ends[1]);
            note(index + 1, starts[1], ends[1], ends[1], second);
            *free = second + rule(index + 1).after + pause(index + 1);
            activity.ran(starts[0], ends[0]);
            activity.ran(starts[1], ends[1]);
            continue;
        }
        let computes = op.kind().is_compute();
        let start = inputs[0].max(if computes { *free } else { begins(device) });
        let end = start + last(index, start);
        note(index, start, end, end, end);
        if computes {
            *free = end + rule(index).after + pause(index);
            activity.ran(start, end);
        }
    }
    devices.into_iter().map(|(free, activity)| activity.counted(free)).collect()
}
