//! The sweep engine: a fixed order per device and no contention make the timeline one max/add pass over the graph.

use crate::cost::CostTable;
use crate::graph::{Run, TaskGraph};
use crate::metrics::Activity;
use crate::op::{Kind, Op};

/// How the ops of one stage and kind run: their costs in ticks, and where their input and output are noted.
#[derive(Clone, Copy)]
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
    let ops = (0..placement.stages()).flat_map(|stage| Kind::ALL.map(|kind| Op::new(kind, stage, 0)));
    let rule = |op: Op| {
        let (time, route) = (costs.of(op), graph.routes()[op.slot()]);
        let arrival = if placement.leaves_device(op) { time.arrival } else { 0 };
        Rule { duration: time.duration, after: time.after, arrival, input: route.input, output: route.output }
    };
    ops.map(rule).collect()
}

/// A device on the way through its program.
#[derive(Clone, Copy)]
struct Progress {
    next: usize,
    free: u64,
    activity: Activity,
}

impl Progress {
    fn at(start: usize) -> Progress {
        Progress { next: start, free: 0, activity: Activity { busy: 0, first_start: u64::MAX, last_end: 0 } }
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
    mut note: impl FnMut(usize, u64, u64),
) -> Vec<Activity> {
    let (rules, schedule) = (rules(graph, costs), graph.schedule());
    let mut ready = vec![0_u64; graph.cells()]; // when what lies in each cell may be used
    let devices = 0..schedule.devices();
    let mut progress: Vec<Progress> = devices.map(|device| Progress::at(schedule.range(device).start)).collect();
    for &Run { device, end } in graph.runs() {
        let Progress { next, mut free, mut activity } = progress[device as usize];
        let end = end as usize;
        for (index, op) in (next..end).zip(&schedule.ops()[next..end]) {
            let (rule, microbatch) = (&rules[op.slot()], op.microbatch() as usize);
            let start = free.max(ready[rule.input + microbatch]);
            let duration = lasts(index, device, start, rule.duration);
            let end = start + duration;
            ready[rule.output + microbatch] = end + rule.arrival;
            free = end + rule.after;
            activity.busy += duration;
            activity.first_start = activity.first_start.min(start);
            activity.last_end = end;
            note(index, start, end);
        }
        progress[device as usize] = Progress { next: end, free, activity };
    }
    let activity = |Progress { activity, .. }: Progress| {
        if activity.first_start == u64::MAX { Activity::default() } else { activity }
    };
    progress.into_iter().map(activity).collect()
}
