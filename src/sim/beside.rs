//! The sweep over a graph with copies, which run on queues next to compute, or with a vocabulary that all devices share.

use super::rules::{Machine, Pair, SweepRule};
use crate::graph::{Besides, TaskGraph, Until};
use crate::metrics::Activity;

/// When ops start and end, and when their outputs may be used, by op.
struct Times {
    start: Vec<u64>,
    end: Vec<u64>,
    usable: Vec<u64>,
}

/// As [`sweep_rules`](super::sweep::sweep_rules), for graphs with other waits: a copy starts when all that it waits for has ended, and does not
/// keep its device from computing. `lasts` says how long copies take, too. Such graphs have no collectives:
/// [`Fsdp::sharding`](crate::fsdp::Fsdp::sharding) refuses them.
pub(super) fn sweep_beside(
    graph: &TaskGraph,
    Machine { rules, pairs, pauses, begin, vocabulary, .. }: Machine<'_>,
    lasts: impl Fn(usize, u32, u64, u64) -> u64,
    mut note: impl FnMut(usize, u64, u64, u64),
) -> Vec<Activity> {
    let schedule = graph.schedule();
    let pause = |index: usize| pauses.get(index).copied().unwrap_or(0);
    let begins = |device: u32| begin.get(device as usize).copied().unwrap_or(0);
    let idle = Activity { first_start: u64::MAX, ..Activity::default() };
    let mut devices: Vec<(u64, Activity)> = (0..schedule.devices()).map(|device| (begins(device), idle)).collect();
    let mut times = Times { start: vec![0; graph.len()], end: vec![0; graph.len()], usable: vec![0; graph.len()] };
    let mut closes = false; // the op before opened a pair, which ran as a whole
    for index in graph.order() {
        let (op, device) = (graph.op(index), graph.device_of(index));
        if std::mem::take(&mut closes) {
            continue;
        }
        let waited = |times: &Times, index: usize| {
            let met = graph.waits(index).iter().map(|&Besides { op, until }| match until {
                Until::Ended => times.end[op as usize],
                Until::Gathered => times.end[op as usize] + vocabulary.barrier,
                Until::Begun => times.start[op as usize],
            });
            met.fold(graph.upstream(index).map_or(0, |up| times.usable[up]), u64::max)
        };
        let rule = |index: usize| {
            let (op, rule) = (graph.op(index), rules[schedule.class(graph.op(index))]);
            SweepRule { duration: vocabulary.duration(op, schedule.microbatches, rule.duration), ..rule }
        };
        let (free, activity) = &mut devices[device as usize];
        if !op.kind().is_compute() {
            let start = waited(&times, index).max(begins(device));
            times.end[index] = start + lasts(index, device, start, rule(index).duration);
            times.start[index] = start;
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
            (times.start[index], times.start[index + 1]) = (starts[0], starts[1]);
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
        (times.start[index], times.end[index]) = (start, end);
        times.usable[index] = end + rule(index).arrival;
        *free = end + rule(index).after + pause(index);
        activity.busy += end - start;
        activity.first_start = activity.first_start.min(start);
        activity.last_end = end;
        note(index, start, end, end);
    }
    devices.into_iter().map(|(free, activity)| activity.counted(free)).collect()
}
