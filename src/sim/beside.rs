//! The sweep where devices that compute at the same time slow each other down, and puts that are under way at the same time: passes
//! over the graph until two of them agree.
//!
//! How long an op lasts depends on who else computes meanwhile, and how long a put lasts on who else puts, which one pass does not
//! know; each takes it from the pass before. A pass is right as far as the one before it was, and at least to the next start or end
//! of an op or a put: nothing depends on what comes later. So passes come to agree, after as many as there are starts and ends at
//! most, on the one timeline in which each lasts as its neighbours say. It is that of the [event engine](super::event), found in
//! another way.

use super::event::{Config, Grain, Network, Pace, Processor, Put, Scope, Sharing};
use super::sweep::{Late, sweep_from};
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::metrics::Activity;
use std::cell::RefCell;

/// How many besides oneself do something: from each time on, until the next.
type Others = Vec<(u64, u32)>;

/// How many of `spans` there are at a time, those of zero length left out: from each time on, until the next.
fn counted(spans: impl Iterator<Item = (u64, u64)>) -> Others {
    let changes = spans.filter(|(start, end)| start < end).flat_map(|(start, end)| [(start, 1), (end, -1)]);
    let mut changes: Vec<(u64, i32)> = changes.collect();
    changes.sort_unstable();
    let mut found: Others = Vec::new();
    let mut running = 0_u32;
    for (time, by) in changes {
        running = running.saturating_add_signed(by);
        match found.last_mut() {
            Some(last) if last.0 == time => last.1 = running,
            _ => found.push((time, running)),
        }
    }
    found
}

/// By device of `processor`, how many others compute, and when, by the times of ops.
fn others(graph: &TaskGraph, processor: &Processor, times: &[(u64, u64)]) -> Vec<Others> {
    let mut all = vec![Others::new(); graph.schedule().devices() as usize];
    for &own in &processor.devices {
        let neighbours = processor.devices.iter().filter(|&&device| device != own);
        all[own as usize] = counted(neighbours.flat_map(|&device| graph.schedule().range(device)).map(|op| times[op]));
    }
    all
}

/// How long `alone` ticks of work take from `start` on, where it goes at `speed(others)` grains a tick.
fn lasts(grain: Grain, others: &Others, speed: impl Fn(u64, u32) -> u64, start: u64, alone: u64) -> u64 {
    let mut next = others.partition_point(|&(time, _)| time <= start);
    let (mut now, mut left) = (start, grain.work(alone));
    loop {
        let speed = u128::from(speed(now, if next == 0 { 0 } else { others[next - 1].1 }));
        let until = others.get(next).map_or(u64::MAX, |&(time, _)| time);
        let done = u128::from(until - now) * speed;
        if done >= left {
            return now - start + left.div_ceil(speed) as u64;
        }
        left -= done;
        (now, next) = (until, next + 1);
    }
}

/// When ops run and when their outputs occupy the link that all share, by index, in one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pass {
    ops: Vec<(u64, u64)>,
    puts: Vec<(u64, u64)>,
}

/// What an engine of `network` does to the puts of a graph: only a link that all devices share, of which the costs know.
struct Puts<'a> {
    graph: &'a TaskGraph,
    network: &'a Network,
    pace: Pace<'a>,
}

impl Puts<'_> {
    /// When the output of op number `index` is through that begins to leave at `start`, by the puts of a pass before.
    fn end(&self, index: usize, start: u64, (all, before): (&Others, &[(u64, u64)])) -> u64 {
        let own = before[index];
        let is_own = |now: u64| u32::from((own.0..own.1).contains(&now));
        let speed = |now: u64, running: u32| self.pace.of((1 + running - is_own(now)) as usize);
        start + lasts(self.pace.grain, all, speed, start, self.network.transfer)
    }

    /// Whether the output of op number `index` goes through the link.
    fn carry(&self, index: usize) -> bool {
        self.graph.schedule().placement.leaves_device(self.graph.op(index)) && self.graph.consumer(index).is_some()
    }
}

/// [`super::sweep()`] on the processors and the link of `config` that devices share; `note(index, start, end)` is told when each op
/// runs. What each device did, and the number of passes.
///
/// # Panics
/// The link is not [one that all share](Scope::Machine) and that the costs know of, or something else is said of the machine.
pub fn sweep_beside(
    graph: &TaskGraph,
    costs: &CostTable,
    config: &Config,
    mut note: impl FnMut(usize, u64, u64),
) -> (Vec<Activity>, usize) {
    let Config { network, processors, .. } = config;
    let is_shared =
        network.sharing == Sharing::FairShare && network.scope == Scope::Machine && network.put != Put::Apart;
    let rest = Config { network: Network::default(), processors: Vec::new(), ..config.clone() };
    assert!(rest == Config::default() && (is_shared || *network == Network::default()), "not a machine for passes");
    let grain = Grain::of(config);
    let puts = Puts { graph, network, pace: Pace { grain, contention: &network.contention } };
    let of_device = |device: u32| processors.iter().position(|processor| processor.devices.contains(&device));
    let of_device: Vec<Option<usize>> = (0..graph.schedule().devices()).map(of_device).collect();
    let mut pass = Pass { ops: vec![(0, 0); graph.len()], puts: vec![(0, 0); graph.len()] };
    let mut passes = 0;
    loop {
        let others: Vec<Vec<Others>> = processors.iter().map(|processor| others(graph, processor, &pass.ops)).collect();
        let all_puts = counted(pass.puts.iter().copied());
        let found = RefCell::new(Pass { ops: vec![(0, 0); graph.len()], puts: vec![(0, 0); graph.len()] });
        let duration = |_, device: u32, start, alone| match of_device[device as usize] {
            Some(number) => {
                let speed = |_, running| {
                    let (share, of) = processors[number].share(1 + running);
                    grain.speed(share, of)
                };
                lasts(grain, &others[number][device as usize], speed, start, alone)
            }
            None => alone,
        };
        let late = |index: usize, start: u64| {
            if !is_shared || !puts.carry(index) {
                return Late::default();
            }
            let end = puts.end(index, start, (&all_puts, &pass.puts));
            found.borrow_mut().puts[index] = (start, end);
            let late = end - start - network.transfer;
            Late { after: if network.put == Put::Holding { late } else { 0 }, arrival: late }
        };
        let note_op = |index: usize, start, end| found.borrow_mut().ops[index] = (start, end);
        let devices = sweep_from(graph, costs, &[], duration, late, note_op);
        let found = found.into_inner();
        passes += 1;
        if found == pass {
            found.ops.iter().enumerate().for_each(|(index, &(start, end))| note(index, start, end));
            return (devices, passes);
        }
        pass = found;
    }
}
