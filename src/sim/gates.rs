//! Collectives between ops: gathers and reductions on queues of their own, and what compute waits for.
//!
//! A gather begins with a copy on the compute stream, so it starts after the op before it, and after the gather before it; the ops of its
//! stage wait for its end. A reduction starts after the op before it, and after the reduction before it; compute waits where the program
//! says so. Freeing parameters takes no time. Everything that a device waits for here is its own, so both engines ask when it is free.

use pipesim_cost::{CollectiveCosts, CostTable};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::sharding::{Collective, CollectiveKind, Sharding};
use std::collections::BTreeMap;

/// A gather or a reduction, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveSpan {
    /// Device whose queue runs it.
    pub device: u32,
    /// The collective.
    pub collective: Collective,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// Progress of all devices through their collectives.
#[derive(Clone, Debug)]
pub(super) struct Gates<'a> {
    graph: &'a TaskGraph,
    sharding: &'a Sharding,
    costs: &'a CollectiveCosts,
    devices: Vec<Gate>,
}

/// One device.
#[derive(Clone, Debug, Default)]
struct Gate {
    /// Number of its collectives that are issued.
    issued: usize,
    /// When the queues of gathers and of reductions are free.
    gather_free: u64,
    reduce_free: u64,
    /// When compute may continue after the last wait for a reduction.
    resumed: u64,
    /// By stage: the end of its last gather, and of its reduction.
    gathered: BTreeMap<u32, u64>,
    reduced: BTreeMap<u32, u64>,
}

impl<'a> Gates<'a> {
    /// Returns the state before a step; `None` if no collective takes time.
    pub fn new(graph: &'a TaskGraph, costs: Option<&'a CollectiveCosts>) -> Option<Gates<'a>> {
        let (sharding, costs) = (graph.schedule().sharding.as_deref()?, costs?);
        let devices = vec![Gate::default(); graph.schedule().devices() as usize];
        Some(Gates { graph, sharding, costs, devices })
    }

    /// Issues the collectives before op `index` of the graph, or those at the end of the program, on a device whose compute is free at
    /// `free`, and returns when that op may start: its inputs apart. Asking again with a later `free` issues nothing twice.
    pub fn pass(&mut self, device: u32, index: usize, free: u64, mut note: impl FnMut(CollectiveSpan)) -> u64 {
        let range = self.graph.schedule().range(device);
        let gate = &mut self.devices[device as usize];
        let mut stream = free.max(gate.resumed);
        let all = &self.sharding.of(device)[gate.issued..];
        for placed in all.iter().take_while(|placed| placed.before + range.start <= index) {
            gate.issued += 1;
            let Collective { kind, stage } = placed.collective;
            let lasts = |all: &[u64]| all.get(stage as usize).copied().unwrap_or(0);
            let span = match kind {
                CollectiveKind::Unshard => {
                    let start = stream.max(gate.gather_free);
                    gate.gather_free = start + lasts(&self.costs.gathers);
                    gate.gathered.insert(stage, gate.gather_free);
                    (start, gate.gather_free)
                }
                CollectiveKind::ReduceGrad => {
                    let start = stream.max(gate.reduce_free);
                    gate.reduce_free = start + lasts(&self.costs.reductions);
                    gate.reduced.insert(stage, gate.reduce_free);
                    (start, gate.reduce_free)
                }
                CollectiveKind::WaitReduceGrad => {
                    stream = stream.max(gate.reduced.remove(&stage).unwrap_or(0));
                    gate.resumed = stream;
                    continue;
                }
                CollectiveKind::Reshard => continue,
            };
            note(CollectiveSpan { device, collective: placed.collective, start: span.0, end: span.1 });
        }
        if !range.contains(&index) {
            return stream;
        }
        let op = self.graph.op(index);
        let second = if op.opens_pair() { Some(self.graph.op(index + 1).stage()) } else { None };
        let stages = [Some(op.stage()), second].into_iter().flatten();
        stages.filter_map(|stage| gate.gathered.get(&stage)).fold(stream, |start, &end| start.max(end))
    }
}

/// Returns the sum of the durations of all collectives.
pub(super) fn total(graph: &TaskGraph, costs: &CostTable) -> u128 {
    let (Some(sharding), Some(times)) = (&graph.schedule().sharding, &costs.extras.collectives) else { return 0 };
    let longest = times.gathers.iter().chain(&times.reductions).copied().max().unwrap_or(0);
    u128::from(longest) * sharding.len() as u128
}
