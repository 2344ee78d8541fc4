//! The sweep engine: a fixed order per device and no contention make the timeline one max/add pass over the graph.

use crate::cost::{CostTable, OpTime};
use crate::graph::{Run, TaskGraph};
use crate::metrics::Activity;
use crate::schedule::Overlap;

/// How the ops of one stage, direction and kind run: their costs in ticks, and where their input and output are noted.
#[derive(Clone, Copy, Default)]
struct Rule {
    duration: u64,
    /// From an op's end until its device is free again.
    after: u64,
    /// From an op's end until the op that waits for it may start.
    arrival: u64,
    input: usize,
    output: usize,
}

/// The rules by [`Op::slot`].
fn rules(graph: &TaskGraph, costs: &CostTable) -> Vec<Rule> {
    let placement = &graph.schedule().placement;
    let mut rules = vec![Rule::default(); placement.slots()];
    for op in placement.op_kinds() {
        let (time, route) = (costs.of(op), graph.routes()[op.slot()]);
        let arrival = if placement.leaves_device(op) { time.arrival } else { 0 };
        let OpTime { duration, after, .. } = time;
        rules[op.slot()] = Rule { duration, after, arrival, input: route.input, output: route.output };
    }
    rules
}

/// When the two ops of an overlapped pair run.
struct Pair {
    starts: [u64; 2],
    ends: [u64; 2],
}

impl Pair {
    /// The pair on a device that is free from `free` on, its inputs there at `inputs`; `lasts(which, start)` is how long
    /// either op takes by itself. Under [`Overlap::Max`] both run side by side: they are given shares of the pair's time, one
    /// after the other, in proportion to what they take alone.
    fn new(overlap: Overlap, free: u64, inputs: [u64; 2], lasts: impl Fn(usize, u64) -> u64) -> Pair {
        let start = free.max(inputs[0]);
        if overlap == Overlap::Runtime || overlap == Overlap::Serial {
            let end = start + lasts(0, start);
            let second = end.max(inputs[1]);
            return Pair { starts: [start, second], ends: [end, second + lasts(1, second)] };
        }
        let start = start.max(inputs[1]);
        let first = lasts(0, start);
        let second = lasts(1, if overlap == Overlap::Max { start } else { start + first });
        let whole = if overlap == Overlap::Max { first.max(second) } else { first + second };
        let share = u128::from(whole) * u128::from(first) / u128::from((first + second).max(1));
        let middle = start + share as u64;
        Pair { starts: [start, middle], ends: [middle, start + whole] }
    }
}

/// How many ticks later than by the costs something comes, as others use the links, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// When the op's device is free again.
    pub after: u64,
    /// When the op's output may be used.
    pub arrival: u64,
}

/// A device on the way through its program.
#[derive(Clone, Copy)]
struct Progress {
    next: usize,
    free: u64,
    activity: Activity,
}

impl Progress {
    fn at(start: usize, free: u64) -> Progress {
        Progress { next: start, free, activity: Activity { first_start: u64::MAX, ..Activity::default() } }
    }
}

/// One pass at constant speed: an op starts when its device is free and its input is there. What each device did.
pub fn sweep(graph: &TaskGraph, costs: &CostTable) -> Vec<Activity> {
    sweep_lasting(graph, costs, |_, _, _, duration| duration, |_, _, _| ())
}

/// [`sweep`] where `lasts(index, device, start, duration)` is how long an op really takes; `note(index, start, end)` is told
/// when each op runs.
pub fn sweep_lasting(
    graph: &TaskGraph,
    costs: &CostTable,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    note: impl FnMut(usize, u64, u64),
) -> Vec<Activity> {
    sweep_from(graph, costs, &[], lasts, |_, _| Late::default(), note)
}

/// [`sweep_lasting`] on devices that are free from these times on, from 0 where nothing is said of one; `late(index, start)` is what
/// others on the links do to an op's output that begins to leave then.
pub(super) fn sweep_from(
    graph: &TaskGraph,
    costs: &CostTable,
    begin: &[u64],
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    late: impl Fn(usize, u64) -> Late,
    mut note: impl FnMut(usize, u64, u64),
) -> Vec<Activity> {
    let (rules, schedule) = (rules(graph, costs), graph.schedule());
    let mut ready = vec![0_u64; graph.cells()]; // when what lies in each cell may be used
    let devices = 0..schedule.devices();
    let at = |device: u32| {
        let begin = begin.get(device as usize).copied().unwrap_or(0);
        Progress::at(schedule.range(device).start, begin)
    };
    let mut progress: Vec<Progress> = devices.map(at).collect();
    for &Run { device, end } in graph.runs() {
        let Progress { next, mut free, mut activity } = progress[device as usize];
        let end = end as usize;
        let ops = &schedule.ops()[next..end];
        let mut closes = false; // the op before opened a pair, which ran as a whole
        for (index, op) in (next..end).zip(ops) {
            let (rule, microbatch) = (&rules[op.slot()], op.microbatch() as usize);
            if closes {
                closes = false;
                continue;
            }
            if op.opens_pair() {
                closes = true;
                let second = ops[index + 1 - next];
                let (other, other_microbatch) = (&rules[second.slot()], second.microbatch() as usize);
                let inputs = [ready[rule.input + microbatch], ready[other.input + other_microbatch]];
                let durations = [rule.duration, other.duration];
                let last = |which: usize, start| lasts(index + which, device, start, durations[which]);
                let Pair { starts, ends } = Pair::new(graph.overlap(), free, inputs, last);
                let first = late(index, ends[1]);
                ready[rule.output + microbatch] = ends[1] + rule.arrival + first.arrival;
                free = ends[1] + rule.after + first.after;
                let second = late(index + 1, free);
                ready[other.output + other_microbatch] = free + other.arrival + second.arrival;
                free += other.after + second.after;
                activity.busy += ends[0] - starts[0] + ends[1] - starts[1];
                activity.first_start = activity.first_start.min(starts[0]);
                activity.last_end = ends[1];
                note(index, starts[0], ends[0]);
                note(index + 1, starts[1], ends[1]);
                continue;
            }
            let start = free.max(ready[rule.input + microbatch]);
            let duration = lasts(index, device, start, rule.duration);
            let end = start + duration;
            let Late { after, arrival } = late(index, end);
            ready[rule.output + microbatch] = end + rule.arrival + arrival;
            free = end + rule.after + after;
            activity.busy += duration;
            activity.first_start = activity.first_start.min(start);
            activity.last_end = end;
            note(index, start, end);
        }
        progress[device as usize] = Progress { next: end, free, activity };
    }
    progress.into_iter().map(|Progress { free, activity, .. }| activity.counted(free)).collect()
}
