//! The sweep: with a fixed order per device and no contention the timeline is one max/add pass over the graph.

use super::beside::sweep_beside;
use super::gates::Gates;
use super::rules::{Machine, Pair, SweepRule, pairs};
use crate::cost::{CostTable, OpTime};
use crate::graph::{Run, TaskGraph};
use crate::metrics::Activity;
use crate::op::Op;

/// Returns the rules by [`Schedule::class`](crate::schedule::Schedule::class).
fn rules(graph: &TaskGraph, costs: &CostTable) -> Vec<SweepRule> {
    let (schedule, placement) = (graph.schedule(), &graph.schedule().placement);
    let mut rules = vec![SweepRule::default(); schedule.classes()];
    for op in schedule.op_classes() {
        let (OpTime { duration, after, arrival }, route) = (costs.of(op), graph.route(op));
        let arrival = if placement.leaves_device(op) { arrival } else { 0 };
        rules[schedule.class(op)] = SweepRule { duration, after, arrival, input: route.input, output: route.output };
    }
    rules
}

/// Progress of a device through its program.
#[derive(Clone, Copy)]
struct Progress {
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
    let rules = rules(graph, costs);
    let at = Machine::of(&rules, pairs(graph, costs), costs, &[]);
    sweep_rules(graph, at, lasts, |index, start, end, _| note(index, start, end))
}

/// [`sweep`] on devices that are free from the times `begin` on.
pub(super) fn sweep_from(graph: &TaskGraph, costs: &CostTable, begin: &[u64]) -> Vec<Activity> {
    let rules = rules(graph, costs);
    let at = Machine::of(&rules, pairs(graph, costs), costs, begin);
    sweep_rules(graph, at, |_, _, _, duration| duration, |_, _, _, _| ())
}

/// [`sweep_lasting`] with rules in place of costs. Calls `note(index, start, end, leaves)`, where `leaves` is when the op's output
/// leaves.
pub(super) fn sweep_rules(
    graph: &TaskGraph,
    machine: Machine<'_>,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    note: impl FnMut(usize, u64, u64, u64),
) -> Vec<Activity> {
    let pauses = machine.pauses;
    let pause = |index: usize| pauses.get(index).copied().unwrap_or(0);
    if graph.has_waits() {
        return sweep_beside(graph, machine, lasts, note);
    }
    let open = |_: usize, _: u32, free: u64| free;
    match (pauses, Gates::new(graph, machine.collectives), graph.schedule().is_beyond_microbatches()) {
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
    Machine { rules, pairs, begin, .. }: Machine<'_>,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    pause: impl Fn(usize) -> u64,
    mut gate: impl FnMut(usize, u32, u64) -> u64,
    mut note: impl FnMut(usize, u64, u64, u64),
) -> Vec<Activity> {
    let schedule = graph.schedule();
    let slices = if BEYOND { graph.slices() } else { 1 };
    let class = |op: &Op| if BEYOND { schedule.class(*op) } else { op.slot() };
    let unit = |op: &Op| if BEYOND { op.unit(slices) } else { op.microbatch() as usize };
    let mut ready = vec![0_u64; graph.cells()]; // by cell: when its content may be used
    let at_begin = |device: u32| Progress {
        next: schedule.range(device).start,
        free: begin.get(device as usize).copied().unwrap_or(0),
        activity: Activity { first_start: u64::MAX, ..Activity::default() },
    };
    let mut progress: Vec<Progress> = (0..schedule.devices()).map(at_begin).collect();
    for &Run { device, end } in graph.runs() {
        let Progress { next, mut free, mut activity } = progress[device as usize];
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
                let Pair { starts, ends } = Pair::new((graph.overlap(), streams), free, inputs, last);
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
        progress[device as usize] = Progress { next: end, free, activity };
    }
    let counted = |(device, Progress { free, mut activity, .. }): (u32, Progress)| {
        let resumed = gate(schedule.range(device).end, device, free);
        activity.gated += resumed - free;
        activity.counted(resumed)
    };
    (0..).zip(progress).map(counted).collect()
}
