//! The sweep where devices that compute at the same time slow each other down: passes over the graph until two of them agree.
//!
//! How long an op lasts depends on who else computes meanwhile, which one pass does not know; each takes it from the pass before.
//! A pass is right as far as the one before it was, and at least to the next start or end of an op: nothing depends on what comes
//! later. So passes come to agree, after as many as there are starts and ends at most, on the one timeline in which each op lasts
//! as its neighbours say. It is that of the [event engine](super::event), found in another way.

use super::event::{Grain, Processor};
use super::sweep::sweep_lasting;
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::metrics::Activity;

/// How many devices of a processor compute besides one of them: from each time on, until the next.
type Others = Vec<(u64, u32)>;

/// By device of `processor`, how many others compute, and when, by the times of ops.
fn others(graph: &TaskGraph, processor: &Processor, times: &[(u64, u64)]) -> Vec<Others> {
    let mut changes: Vec<(u64, u32, bool)> = Vec::new();
    for &device in &processor.devices {
        for (start, end) in graph.schedule().range(device).map(|index| times[index]).filter(|(start, end)| start < end)
        {
            changes.extend([(start, device, true), (end, device, false)]);
        }
    }
    changes.sort_unstable_by_key(|&(time, ..)| time);
    let mut all = vec![Others::new(); graph.schedule().devices() as usize];
    for &own in &processor.devices {
        let mut running = 0_u32;
        let found = &mut all[own as usize];
        for &(time, _, starts) in changes.iter().filter(|&&(_, device, _)| device != own) {
            running = if starts { running + 1 } else { running - 1 };
            match found.last_mut() {
                Some(last) if last.0 == time => last.1 = running,
                _ => found.push((time, running)),
            }
        }
    }
    all
}

/// How long an op takes from `start` that takes `alone` ticks where nobody else computes.
fn lasts(processor: &Processor, grain: Grain, others: &Others, start: u64, alone: u64) -> u64 {
    let mut next = others.partition_point(|&(time, _)| time <= start);
    let (mut now, mut left) = (start, grain.work(alone));
    loop {
        let running = 1 + if next == 0 { 0 } else { others[next - 1].1 };
        let (share, of) = processor.share(running);
        let speed = u128::from(grain.speed(share, of));
        let until = others.get(next).map_or(u64::MAX, |&(time, _)| time);
        let done = u128::from(until - now) * speed;
        if done >= left {
            return now - start + left.div_ceil(speed) as u64;
        }
        left -= done;
        (now, next) = (until, next + 1);
    }
}

/// [`super::sweep()`] on `processors` that devices share; `note(index, start, end)` is told when each op runs. What each device
/// did, and the number of passes.
pub fn sweep_beside(
    graph: &TaskGraph,
    costs: &CostTable,
    processors: &[Processor],
    mut note: impl FnMut(usize, u64, u64),
) -> (Vec<Activity>, usize) {
    let most = processors.iter().map(|processor| processor.devices.len()).max().unwrap_or(1) as u64;
    let factors: Vec<u32> = processors.iter().flat_map(|processor| processor.contention.clone()).collect();
    let grain = Grain::new(most, 1000, &factors);
    let of_device = |device: u32| processors.iter().position(|processor| processor.devices.contains(&device));
    let of_device: Vec<Option<usize>> = (0..graph.schedule().devices()).map(of_device).collect();
    let mut times = vec![(0, 0); graph.len()];
    let mut passes = 0;
    loop {
        let others: Vec<Vec<Others>> = processors.iter().map(|processor| others(graph, processor, &times)).collect();
        let mut found = vec![(0, 0); graph.len()];
        let duration = |_, device: u32, start, alone| match of_device[device as usize] {
            Some(number) => lasts(&processors[number], grain, &others[number][device as usize], start, alone),
            None => alone,
        };
        let devices = sweep_lasting(graph, costs, duration, |index, start, end| found[index] = (start, end));
        passes += 1;
        if found == times {
            found.iter().enumerate().for_each(|(index, &(start, end))| note(index, start, end));
            return (devices, passes);
        }
        times = found;
    }
}
