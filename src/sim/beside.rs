//! The sweep over a graph with copies, which run on queues next to compute.

use super::sweep::{Machine, Pair};
use crate::graph::TaskGraph;
use crate::metrics::Activity;

/// When ops end, and when their outputs may be used, by op.
struct Times {
    end: Vec<u64>,
    usable: Vec<u64>,
}

/// As [`sweep_rules`](super::sweep::sweep_rules), for graphs with copies: a copy starts when all that it waits for has ended, and does not
/// keep its device from computing. Such graphs have no collectives: [`Fsdp::sharding`](crate::fsdp::Fsdp::sharding) refuses them. `lasts` says how long copies take, too.
pub(super) fn sweep_beside(
    graph: &TaskGraph,
    Machine { rules, pairs, pauses, begin, .. }: Machine<'_>,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    mut note: impl FnMut(usize, u64, u64, u64),
) -> Vec<Activity> {
    let schedule = graph.schedule();
    let pause = |index: usize| pauses.get(index).copied().unwrap_or(0);
    let begins = |device: u32| begin.get(device as usize).copied().unwrap_or(0);
    let idle = Activity { first_start: u64::MAX, ..Activity::default() };
    let mut devices: Vec<(u64, Activity)> = (0..schedule.devices()).map(|device| (begins(device), idle)).collect();
    let mut times = Times { end: vec![0; graph.len()], usable: vec![0; graph.len()] };
    let mut closes = false; // the op before opened a pair, which ran as a whole
    for index in graph.order() {
        let (op, device) = (graph.op(index), graph.device_of(index));
        if std::mem::take(&mut closes) {
            continue;
        }
        let waited = |times: &Times, index: usize| {
            let ends = graph.waits(index).iter().map(|&need| times.end[need as usize]);
            ends.fold(graph.upstream(index).map_or(0, |up| times.usable[up]), u64::max)
        };
        let rule = |index: usize| rules[schedule.class(graph.op(index))];
        let (free, activity) = &mut devices[device as usize];
        if !op.kind().is_compute() {
            let start = waited(&times, index).max(begins(device));
            times.end[index] = start + lasts(index, device, start, rule(index).duration);
            note(index, start, times.end[index], times.end[index]);
            continue;
        }
        if op.opens_pair() {
            closes = true;
            let inputs = [index, index + 1].map(|index| waited(&times, index));
            let of = |which: usize, start| lasts(index + which, device, start, rule(index + which).duration);
            let streams = pairs.and_then(|pairs| pairs.of(op, graph.op(index + 1)));
            let Pair { starts, ends } = Pair::new((graph.overlap(), streams), *free, inputs, of);
            let second = ends[1] + rule(index).after;
            (times.end[index], times.end[index + 1]) = (ends[1], ends[1]);
            times.usable[index] = ends[1] + rule(index).arrival;
            times.usable[index + 1] = second + rule(index + 1).arrival;
            note(index, starts[0], ends[0], ends[1]);
            note(index + 1, starts[1], ends[1], second);
            *free = second + rule(index + 1).after + pause(index + 1);
            activity.busy += ends[0] - starts[0] + ends[1] - starts[1];
            activity.first_start = activity.first_start.min(starts[0]);
            activity.last_end = ends[1];
            continue;
        }
        let start = waited(&times, index).max(*free);
        let end = start + lasts(index, device, start, rule(index).duration);
        (times.end[index], times.usable[index]) = (end, end + rule(index).arrival);
        *free = end + rule(index).after + pause(index);
        activity.busy += end - start;
        activity.first_start = activity.first_start.min(start);
        activity.last_end = end;
        note(index, start, end, end);
    }
    devices.into_iter().map(|(free, activity)| activity.counted(free)).collect()
}
