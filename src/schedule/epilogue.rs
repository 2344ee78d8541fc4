//! The epilogue of a step, as nodes of the graph after the pipeline's ops: workers that hold parts of the same gradient sum them,
//! compute the gradient norm, and update parameters.
//!
//! The simulation and the executor use the same nodes.

use crate::graph::TaskGraph;
use crate::mesh::Mesh;
use crate::op::Kind;
use crate::placement::{Chunk, Placement};
use serde::{Deserialize, Serialize};

/// What a device does once its gradients are complete. An all-reduce is a put followed by a reduce, by every member of its group. If
/// members share the optimizer's work, each reduces a slice (reduce-scatter), updates it, and gathers the others' (all-gather).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepOp {
    /// Sends its part of gradients that other workers hold, too.
    Put,
    /// Adds the parts of the other workers.
    Reduce,
    /// Sums the squares of its gradients.
    Norm,
    /// Updates its parameters.
    Optimizer,
    /// Sends the parameters that it has updated to the other workers that hold them.
    #[serde(rename = "put values")]
    PutValues,
    /// Copies the parameters that the other workers have updated.
    Gather,
}

impl StepOp {
    /// Returns its name in timelines.
    pub fn name(self) -> &'static str {
        match self {
            StepOp::Put => "put",
            StepOp::Reduce => "reduce",
            StepOp::Norm => "norm",
            StepOp::Optimizer => "optimizer",
            StepOp::PutValues => "put values",
            StepOp::Gather => "gather",
        }
    }
}

/// A gradient that several workers hold and synchronize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GradientSync {
    /// Of the tied embedding: the two devices that hold it exchange their parts. Replicas have summed each part before.
    Tied,
    /// Of a stage that several workers hold: as replicas, or in both directions of a bidirectional placement.
    Stage(Chunk),
}

/// Number of workers that sum the gradient of a stage, with `data` replicas of the pipeline.
pub fn stage_group(placement: &Placement, data: u32) -> u32 {
    placement.directions() * data
}

/// Returns the position of `worker` among the workers that sum the gradients of its stages, and their number. It is the same for all
/// stages of a device.
pub fn group_member(placement: &Placement, mesh: Mesh, worker: u32) -> (u32, u32) {
    let at = mesh.coordinate(worker);
    let stage = placement.stages_of(at.device).next().unwrap_or_default();
    let holders = (0..placement.directions()).map(|way| placement.device_of_stage(stage, way));
    let before = holders.filter(|&holder| holder < at.device).count() as u32;
    (before * mesh.data + at.data, stage_group(placement, mesh.data))
}

/// A step op of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepNode {
    /// Pipeline device that runs it.
    pub device: u32,
    /// What it does.
    pub op: StepOp,
    /// The gradients that it sends, or the one that it adds to; in an exchange of parameters, their gradients.
    pub gradients: Vec<GradientSync>,
    /// The nodes whose results must have arrived. Earlier nodes of its own device must have ended, too.
    pub needs: Vec<usize>,
    /// Index in the graph of the pipeline op after which it runs; `None` after its device's last op.
    pub behind: Option<usize>,
}

/// All step ops of a step, each after those that it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepEpilogue {
    nodes: Vec<StepNode>,
}

impl StepEpilogue {
    /// Creates the epilogue of a model on `placement` with `data` identical replicas. The devices `tied`, if any,
    /// exchange the gradient of the tied embedding; workers that hold copies of a stage sum its gradients. A norm is a barrier:
    /// every optimizer waits for all norms.
    pub fn new(placement: &Placement, data: u32, tied: Option<[u32; 2]>, norm: bool) -> StepEpilogue {
        let devices = 0..placement.devices();
        let mut epilogue = StepEpilogue::default();
        epilogue.exchange_stages(placement, data, [StepOp::Put, StepOp::Reduce]);
        if let Some([first, last]) = tied {
            let both = [first, last].map(|device| (device, vec![GradientSync::Tied]));
            let other = |device, _| vec![if device == first { last } else { first }];
            epilogue.exchange(&both, other, [StepOp::Put, StepOp::Reduce]);
        }
        let mut barrier = Vec::new();
        if norm {
            barrier.extend(devices.clone().map(|device| epilogue.add(device, StepOp::Norm, Vec::new(), Vec::new())));
        }
        for device in devices {
            let others = barrier.iter().copied().filter(|&number| epilogue.nodes[number].device != device).collect();
            epilogue.add(device, StepOp::Optimizer, Vec::new(), others);
        }
        epilogue
    }

    /// Creates an epilogue of optimizers alone.
    pub fn optimizers(devices: u32) -> StepEpilogue {
        StepEpilogue::new(&Placement::linear(devices), 1, None, false)
    }

    /// Creates the epilogue of a session that runs `graph` on `mesh`. Sums of stages begin as early as
    /// [`StepEpilogue::begun_early`] allows.
    pub fn of_graph(graph: &TaskGraph, mesh: Mesh, tied: Option<[u32; 2]>, norm: bool) -> StepEpilogue {
        StepEpilogue::on_mesh(&graph.schedule().placement, mesh, tied, norm).begun_early(graph).0
    }

    /// Like [`StepEpilogue::new`]; if workers share the optimizer's work, they exchange the updated parameters of each stage at the
    /// end.
    pub fn on_mesh(placement: &Placement, mesh: Mesh, tied: Option<[u32; 2]>, norm: bool) -> StepEpilogue {
        let mut epilogue = StepEpilogue::new(placement, mesh.data, tied, norm);
        if mesh.zero {
            epilogue.exchange_stages(placement, mesh.data, [StepOp::PutValues, StepOp::Gather]);
        }
        epilogue
    }

    /// Adds the exchange among the workers that hold the same stage, if there are several.
    fn exchange_stages(&mut self, placement: &Placement, data: u32, ops: [StepOp; 2]) {
        if stage_group(placement, data) == 1 {
            return;
        }
        // In stage order on every device, so that no two devices wait for each other at different stages.
        let held = (0..placement.devices()).map(|device| {
            let mut held = placement.held_by(device).to_vec();
            held.sort_by_key(|chunk| chunk.stage);
            (device, held.into_iter().map(GradientSync::Stage).collect())
        });
        // The replicas of a device put when it does: a reduction also waits for its own device's put to arrive there.
        let holders = |device: u32, gradient: GradientSync| {
            let GradientSync::Stage(chunk) = gradient else { return Vec::new() };
            let holders = (0..placement.directions()).map(|way| placement.device_of_stage(chunk.stage, way));
            holders.filter(|&holder| data > 1 || holder != device).collect()
        };
        self.exchange(&held.collect::<Vec<_>>(), holders, ops);
    }

    /// Adds nodes in which each device sends its part, then receives the parts of the devices in `holders`.
    fn exchange(
        &mut self,
        held: &[(u32, Vec<GradientSync>)],
        holders: impl Fn(u32, GradientSync) -> Vec<u32>,
        [put, take]: [StepOp; 2],
    ) {
        let all =
            held.iter().flat_map(|(device, gradients)| gradients.iter().map(move |&gradient| (*device, gradient)));
        let mut puts = Vec::new();
        for (device, gradient) in all.clone() {
            puts.push((device, gradient, self.add(device, put, vec![gradient], Vec::new())));
        }
        for (device, gradient) in all {
            let from = holders(device, gradient);
            let needs = puts.iter().filter(|(other, sent, _)| from.contains(other) && sent.is_same(gradient));
            let needs = needs.map(|&(.., number)| number).collect();
            self.add(device, take, vec![gradient], needs);
        }
    }

    /// Starts the sums of stages before their device's last op: a worker puts its part after the stage's last W or B, and adds the
    /// other parts before its next op that waits for another device, where it may be idle. Returns the previous number of each node.
    ///
    /// In bidirectional placements, sums stay at the end: the two devices of a stage complete it at different places of their
    /// programs, so one could wait for the other in a circle.
    pub fn begun_early(mut self, graph: &TaskGraph) -> (StepEpilogue, Vec<usize>) {
        if graph.schedule().placement.directions() == 1 {
            for node in &mut self.nodes {
                if let [GradientSync::Stage(chunk)] = node.gradients[..] {
                    node.behind = match node.op {
                        StepOp::Put => complete(graph, node.device, chunk.stage),
                        StepOp::Reduce => {
                            complete(graph, node.device, chunk.stage).and_then(|last| before_wait(graph, last))
                        }
                        _ => None,
                    };
                }
            }
        }
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|&number| self.nodes[number].behind.unwrap_or(usize::MAX));
        let mut new = vec![0; order.len()];
        order.iter().enumerate().for_each(|(number, &old)| new[old] = number);
        let moved = |&old: &usize| {
            let node = &self.nodes[old];
            StepNode { needs: node.needs.iter().map(|&need| new[need]).collect(), ..node.clone() }
        };
        (StepEpilogue { nodes: order.iter().map(moved).collect() }, order)
    }

    fn add(&mut self, device: u32, op: StepOp, gradients: Vec<GradientSync>, needs: Vec<usize>) -> usize {
        self.nodes.push(StepNode { device, op, gradients, needs, behind: None });
        self.nodes.len() - 1
    }

    /// Returns all nodes, each after those that it waits for.
    pub fn nodes(&self) -> &[StepNode] {
        &self.nodes
    }

    /// Returns the nodes of one device in order.
    pub fn of(&self, device: u32) -> impl Iterator<Item = &StepNode> {
        self.nodes.iter().filter(move |node| node.device == device)
    }

    /// Returns the numbers of the nodes that run after op `index` of the graph.
    pub fn behind(&self, index: usize) -> std::ops::Range<usize> {
        let before = |limit: usize| self.nodes.partition_point(|node| node.behind.is_some_and(|op| op < limit));
        before(index)..before(index + 1)
    }

    /// Returns start and end of each node after the last op of its device, in ticks; 0 for the others. A device begins at `free`,
    /// which is set to its end. `lasts(node)` returns the node's duration, and the time from its end until other devices can use its
    /// result. Parts that were put before a device's last op have arrived.
    pub fn run(&self, free: &mut [u64], lasts: impl Fn(usize) -> (u64, u64)) -> Vec<(u64, u64)> {
        let mut times: Vec<(u64, u64)> = Vec::with_capacity(self.nodes.len());
        for (number, node) in self.nodes.iter().enumerate() {
            if node.behind.is_some() {
                times.push((0, 0));
                continue;
            }
            let needs = node.needs.iter().filter(|&&need| self.nodes[need].behind.is_none());
            let arrived = needs.map(|&need| times[need].1 + lasts(need).1).max();
            let start = free[node.device as usize].max(arrived.unwrap_or(0));
            let end = start + lasts(number).0;
            free[node.device as usize] = end;
            times.push((start, end));
        }
        times
    }
}

impl GradientSync {
    /// Whether both are parts of the same gradient.
    fn is_same(self, other: GradientSync) -> bool {
        match (self, other) {
            (GradientSync::Stage(one), GradientSync::Stage(other)) => one.stage == other.stage,
            _ => self == other,
        }
    }
}

/// Returns the op of `device` after which the gradients of `stage` are complete; `None` if that is its last op.
fn complete(graph: &TaskGraph, device: u32, stage: u32) -> Option<usize> {
    let range = graph.schedule().range(device);
    let adds = |&index: &usize| graph.op(index).stage() == stage && matches!(graph.op(index).kind(), Kind::W | Kind::B);
    let last = range.clone().rev().find(adds)?;
    let last = graph.pair(last).map_or(last, |(_, second)| second);
    (last + 1 < range.end).then_some(last)
}

/// Returns the first compute op of a device, from op `index` on, whose next one waits for another device; `None` if no later op does.
fn before_wait(graph: &TaskGraph, index: usize) -> Option<usize> {
    let end = graph.schedule().range(graph.device_of(index)).end;
    let next = (index + 1..end).find(|&later| graph.transfer(later).is_some())?;
    graph.before(graph.pair(next).map_or(next, |(first, _)| first))
}
