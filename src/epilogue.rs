//! The epilogue of a step, as nodes of the graph after the pipeline's ops: workers that hold parts of the same gradient sum them,
//! compute the gradient norm, and update parameters.
//!
//! The simulation and the executor use the same nodes.

use crate::placement::{Chunk, Placement};
use serde::{Deserialize, Serialize};

/// What a device does after its last backward. An all-reduce is a put followed by a reduce, by every member of its group.
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
}

impl StepOp {
    /// Returns its name in timelines.
    pub fn name(self) -> &'static str {
        match self {
            StepOp::Put => "put",
            StepOp::Reduce => "reduce",
            StepOp::Norm => "norm",
            StepOp::Optimizer => "optimizer",
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

/// A step op of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepNode {
    pub device: u32,
    pub op: StepOp,
    /// The gradients that it sends, or the one that it adds to.
    pub gradients: Vec<GradientSync>,
    /// The nodes whose results must have arrived. Earlier nodes of its own device must have ended, too.
    pub needs: Vec<usize>,
}

/// All step ops of a step, each after those that it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepEpilogue {
    nodes: Vec<StepNode>,
}

impl StepEpilogue {
    /// Creates the epilogue of a model on `placement`, of which there are `data` replicas, all alike. The devices `tied`, if any,
    /// exchange the gradient of the tied embedding; workers that hold copies of a stage sum its gradients. A norm is a barrier:
    /// every optimizer waits for all norms.
    pub fn new(placement: &Placement, data: u32, tied: Option<[u32; 2]>, norm: bool) -> StepEpilogue {
        let devices = 0..placement.devices();
        let mut epilogue = StepEpilogue::default();
        if stage_group(placement, data) > 1 {
            // In stage order on every device, so that no two devices wait for each other at different stages.
            let held = devices.clone().map(|device| {
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
            epilogue.exchange(&held.collect::<Vec<_>>(), holders);
        }
        if let Some([first, last]) = tied {
            let both = [first, last].map(|device| (device, vec![GradientSync::Tied]));
            epilogue.exchange(&both, |device, _| vec![if device == first { last } else { first }]);
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

    /// Adds nodes in which each device sends its gradients, then adds those of the devices that `holders` names.
    fn exchange(&mut self, held: &[(u32, Vec<GradientSync>)], holders: impl Fn(u32, GradientSync) -> Vec<u32>) {
        let put = |(device, gradients): &(u32, Vec<GradientSync>)| {
            (*device, self.add(*device, StepOp::Put, gradients.clone(), Vec::new()))
        };
        let puts: Vec<(u32, usize)> = held.iter().map(put).collect();
        for (device, gradients) in held {
            for &gradient in gradients {
                let from = holders(*device, gradient);
                let needs = puts.iter().filter(|(other, _)| from.contains(other)).map(|&(_, number)| number).collect();
                self.add(*device, StepOp::Reduce, vec![gradient], needs);
            }
        }
    }

    fn add(&mut self, device: u32, op: StepOp, gradients: Vec<GradientSync>, needs: Vec<usize>) -> usize {
        self.nodes.push(StepNode { device, op, gradients, needs });
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

    /// Returns start and end of each node in ticks. A device begins at `free`, which is set to its end. `lasts(node)` returns the
    /// node's duration, and the time from its end until other devices can use its result.
    pub fn run(&self, free: &mut [u64], lasts: impl Fn(usize) -> (u64, u64)) -> Vec<(u64, u64)> {
        let mut times: Vec<(u64, u64)> = Vec::with_capacity(self.nodes.len());
        for (number, node) in self.nodes.iter().enumerate() {
            let arrived = node.needs.iter().map(|&need| times[need].1 + lasts(need).1).max();
            let start = free[node.device as usize].max(arrived.unwrap_or(0));
            let end = start + lasts(number).0;
            free[node.device as usize] = end;
            times.push((start, end));
        }
        times
    }
}
