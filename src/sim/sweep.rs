//! The sweep: with a fixed order per device and no contention the timeline is one max/add pass over the graph.

use crate::cost::pair::{PairCosts, PairTime};
use crate::cost::{CostTable, OpTime};
use crate::graph::{Run, TaskGraph};
use crate::metrics::Activity;
use crate::op::Op;
use crate::schedule::Overlap;

/// How the ops of one (stage, direction, kind, slice) run: times in ticks, and the cells of their input and output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SweepRule {
    pub duration: u64,
    /// From an op's end until its device is free again.
    pub after: u64,
    /// From an op's end until the op that waits for it may start.
    pub arrival: u64,
    /// Cell of micro-batch 0's input.
    pub input: usize,
    /// Cell of micro-batch 0's output.
    pub output: usize,
}

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

/// Start and end of the two ops of an overlapped pair.
struct Pair {
    starts: [u64; 2],
    ends: [u64; 2],
}

impl Pair {
    /// Places a pair on a device that is free from `free` on and whose inputs arrive at `inputs`. `lasts(which, start)` returns
    /// how long either op takes alone, `streams` how long the pair takes on two streams.
    fn new(
        (overlap, streams): (Overlap, Option<PairTime>),
        free: u64,
        inputs: [u64; 2],
        lasts: impl Fn(usize, u64) -> u64,
    ) -> Pair {
        let start = free.max(inputs[0]);
        if overlap == Overlap::Runtime || overlap == Overlap::Serial {
            let end = start + lasts(0, start);
            let second = end.max(inputs[1]);
            return Pair { starts: [start, second], ends: [end, second + lasts(1, second)] };
        }
        let start = start.max(inputs[1]);
        let first = lasts(0, start);
        let second = lasts(1, if overlap.is_shorter() { start } else { start + first });
        let whole = pair_duration((overlap, streams), first, second);
        let middle = start + first_share(whole, first, second);
        Pair { starts: [start, middle], ends: [middle, start + whole] }
    }
}

/// Returns the duration of a pair whose ops start together and take `first` and `second` ticks alone; their sum if the times of its
/// sub-ops are unknown.
pub(super) fn pair_duration((overlap, streams): (Overlap, Option<PairTime>), first: u64, second: u64) -> u64 {
    match (overlap, streams) {
        (Overlap::Max, _) => first.max(second),
        (Overlap::Streams, Some(time)) => time.lasting(first, second),
        _ => first + second,
    }
}

/// Returns the durations of pairs if the graph's pairs run on two streams.
pub(super) fn pairs<'a>(graph: &TaskGraph, costs: &'a CostTable) -> Option<&'a PairCosts> {
    costs.pairs.as_ref().filter(|_| graph.overlap() == Overlap::Streams)
}

/// Returns the first op's share of the `whole` time of a pair, in proportion to what both ops take alone: timelines show the
/// ops of a pair one after the other.
pub(super) fn first_share(whole: u64, first: u64, second: u64) -> u64 {
    (u128::from(whole) * u128::from(first) / u128::from((first + second).max(1))) as u64
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
    let at = Machine { rules: &rules(graph, costs), pairs: pairs(graph, costs), pauses: &costs.pauses, begin: &[] };
    sweep_rules(graph, at, lasts, |index, start, end, _| note(index, start, end))
}

/// [`sweep`] on devices that are free from the times `begin` on.
pub(super) fn sweep_from(graph: &TaskGraph, costs: &CostTable, begin: &[u64]) -> Vec<Activity> {
    let at = Machine { rules: &rules(graph, costs), pairs: pairs(graph, costs), pauses: &costs.pauses, begin };
    sweep_rules(graph, at, |_, _, _, duration| duration, |_, _, _, _| ())
}

/// Times that a sweep needs, besides a graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine<'a> {
    /// By [`Schedule::class`](crate::schedule::Schedule::class).
    pub rules: &'a [SweepRule],
    /// Durations of pairs on two streams.
    pub pairs: Option<&'a PairCosts>,
    /// [`CostTable::pauses`].
    pub pauses: &'a [u64],
    /// By device: when it can begin; 0 for missing devices.
    pub begin: &'a [u64],
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
    match (pauses, graph.schedule().is_beyond_microbatches()) {
        ([], false) => sweep_pausing::<false>(graph, machine, lasts, |_| 0, note),
        (_, false) => sweep_pausing::<false>(graph, machine, lasts, pause, note),
        _ => sweep_pausing::<true>(graph, machine, lasts, pause, note),
    }
}

/// [`sweep_rules`] where `pause(index)` returns how long a device sums gradients after an op. `BEYOND` says whether there are slices, or kinds besides F, I, W and B.
fn sweep_pausing<const BEYOND: bool>(
    graph: &TaskGraph,
    Machine { rules, pairs, begin, .. }: Machine<'_>,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    pause: impl Fn(usize) -> u64,
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
            if op.opens_pair() {
                closes = true;
                let second = ops[index + 1 - next];
                let (other, other_unit) = (&rules[class(&second)], unit(&second));
                let inputs = [ready[rule.input + unit_number], ready[other.input + other_unit]];
                let durations = [rule.duration, other.duration];
                let last = |which: usize, start| lasts(index + which, device, start, durations[which]);
                let streams = pairs.and_then(|pairs| pairs.of(*op, second));
                let Pair { starts, ends } = Pair::new((graph.overlap(), streams), free, inputs, last);
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
            let start = free.max(ready[rule.input + unit_number]);
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
    progress.into_iter().map(|Progress { free, activity, .. }| activity.counted(free)).collect()
}
