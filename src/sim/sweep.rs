//! The sweep engine: a fixed order per device and no contention make the timeline one max/add pass over the graph.

use crate::cost::OpTime;
use crate::graph::TaskGraph;

/// When each op runs, in ticks, by the graph's op index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// Start of each op.
    pub start: Vec<u64>,
    /// End of each op.
    pub end: Vec<u64>,
}

/// One pass: an op starts when its device is free and its input is there. `cost` gives each op's [`OpTime`] by index.
pub fn sweep(graph: &TaskGraph, cost: impl Fn(usize) -> OpTime) -> Times {
    sweep_at_speed(graph, cost, |_, _, duration| duration)
}

/// [`sweep`] on devices whose speed changes: `stretch(device, start, duration)` is how long an op really lasts.
pub fn sweep_at_speed(
    graph: &TaskGraph,
    cost: impl Fn(usize) -> OpTime,
    stretch: impl Fn(u32, u64, u64) -> u64,
) -> Times {
    let mut times = Times { start: vec![0; graph.len()], end: vec![0; graph.len()] };
    let mut free = vec![0_u64; graph.schedule().devices() as usize];
    for &index in graph.order() {
        let index = index as usize;
        let device = graph.device_of(index) as usize;
        let number = device as u32;
        let arrived = match (graph.transfer(index), graph.upstream(index)) {
            (Some(up), _) => times.end[up] + cost(up).arrival,
            (None, Some(up)) => times.end[up],
            (None, None) => 0,
        };
        let OpTime { duration, after, .. } = cost(index);
        let start = free[device].max(arrived);
        times.start[index] = start;
        times.end[index] = start + stretch(number, start, duration);
        free[device] = times.end[index] + after;
    }
    debug_assert!(
        (0..graph.len()).all(|index| graph.upstream(index).is_none_or(|up| times.end[up] <= times.start[index]))
    );
    times
}
