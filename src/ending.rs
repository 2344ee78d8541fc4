//! What ends a step, as nodes of the graph behind the pipeline's ops: gradients that two devices hold are exchanged, their norm is
//! summed up, parameters are updated.
//!
//! Stated once, for the simulation, which gives the nodes times, and for the executor, whose devices go through their own in order.

use crate::placement::{Chunk, Placement};
use serde::{Deserialize, Serialize};

/// What a device does after its last backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepOp {
    /// Puts its part of the gradients that two devices hold.
    Put,
    /// Adds the other device's part.
    Reduce,
    /// Sums up the squares of its gradients.
    Norm,
    /// Updates its parameters.
    Optimizer,
}

impl StepOp {
    /// As timelines name it.
    pub fn name(self) -> &'static str {
        match self {
            StepOp::Put => "put",
            StepOp::Reduce => "reduce",
            StepOp::Norm => "norm",
            StepOp::Optimizer => "optimizer",
        }
    }
}

/// A gradient that another device holds too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twofold {
    /// That of the tied embedding.
    Tied,
    /// That of a stage's parameters, which this is one copy of.
    Stage(Chunk),
}

/// A step op of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepNode {
    /// The device.
    pub device: u32,
    /// What it does.
    pub op: StepOp,
    /// The gradients that it puts; the one that it adds to.
    pub gradients: Vec<Twofold>,
    /// The nodes of other devices that must have ended, by their numbers; those before it on its own device must, too.
    pub needs: Vec<usize>,
}

/// All step ops of a step, in an order in which each comes after what it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    nodes: Vec<StepNode>,
}

impl Ending {
    /// That of a model on `placement`, whose tied tensor's gradient two devices exchange, if `tied` says so. Stages that stand on
    /// two devices exchange theirs. A norm, where there is one, is a barrier: every device's optimizer waits for all of them.
    pub fn new(placement: &Placement, tied: Option<[u32; 2]>, norm: bool) -> Ending {
        let devices = 0..placement.devices();
        let mut ending = Ending::default();
        if placement.directions() == 2 {
            // In the order of stages on every device: then no two wait for each other at different ones.
            let held = devices.clone().map(|device| {
                let mut held = placement.held_by(device).to_vec();
                held.sort_by_key(|chunk| chunk.stage);
                (device, held.into_iter().map(Twofold::Stage).collect())
            });
            let partner = |gradient: Twofold| match gradient {
                Twofold::Stage(chunk) => placement.device_of_stage(chunk.stage, 1 - chunk.direction),
                Twofold::Tied => unreachable!("these are stages"),
            };
            ending.exchange(&held.collect::<Vec<_>>(), |_, gradient| partner(gradient));
        }
        if let Some([first, last]) = tied {
            let both = [first, last].map(|device| (device, vec![Twofold::Tied]));
            ending.exchange(&both, |device, _| if device == first { last } else { first });
        }
        let mut barrier = Vec::new();
        if norm {
            barrier.extend(devices.clone().map(|device| ending.add(device, StepOp::Norm, Vec::new(), Vec::new())));
        }
        for device in devices {
            let others = barrier.iter().copied().filter(|&number| ending.nodes[number].device != device).collect();
            ending.add(device, StepOp::Optimizer, Vec::new(), others);
        }
        ending
    }

    /// Optimizers alone.
    pub fn optimizers(devices: u32) -> Ending {
        Ending::new(&Placement::linear(devices), None, false)
    }

    /// Each device puts its gradients, then adds those of its `partner`s to them.
    fn exchange(&mut self, held: &[(u32, Vec<Twofold>)], partner: impl Fn(u32, Twofold) -> u32) {
        let put = |(device, gradients): &(u32, Vec<Twofold>)| {
            (*device, self.add(*device, StepOp::Put, gradients.clone(), Vec::new()))
        };
        let puts: Vec<(u32, usize)> = held.iter().map(put).collect();
        for (device, gradients) in held {
            for &gradient in gradients {
                let from = partner(*device, gradient);
                let needs = puts.iter().filter(|(other, _)| *other == from).map(|&(_, number)| number).collect();
                self.add(*device, StepOp::Reduce, vec![gradient], needs);
            }
        }
    }

    /// Another node behind the others; its number.
    fn add(&mut self, device: u32, op: StepOp, gradients: Vec<Twofold>, needs: Vec<usize>) -> usize {
        self.nodes.push(StepNode { device, op, gradients, needs });
        self.nodes.len() - 1
    }

    /// All nodes; each comes after what it waits for.
    pub fn nodes(&self) -> &[StepNode] {
        &self.nodes
    }

    /// Those of one device, in the order in which it goes through them.
    pub fn of(&self, device: u32) -> impl Iterator<Item = &StepNode> {
        self.nodes.iter().filter(move |node| node.device == device)
    }

    /// When each node starts and ends, in ticks. A device begins when it is `free`, which is then when it has ended. By node, `lasts`
    /// are how long it takes, and from its end until another device may use what it made.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(ending: &Ending, device: u32) -> Vec<&'static str> {
        ending.of(device).map(|node| node.op.name()).collect()
    }

    #[test]
    fn a_norm_is_a_barrier_and_the_tied_gradient_waits_for_the_other_end() {
        let ending = Ending::new(&Placement::linear(3), Some([0, 2]), true);
        assert_eq!(ops(&ending, 0), ["put", "reduce", "norm", "optimizer"]);
        assert_eq!(ops(&ending, 1), ["norm", "optimizer"]);
        let lasts = |number: usize| match ending.nodes()[number].op {
            StepOp::Put => (1, 2),
            StepOp::Reduce | StepOp::Norm => (4, 0),
            StepOp::Optimizer => (10, 0),
        };
        let mut free = [100, 90, 50];
        let times = ending.run(&mut free, lasts);
        // device 2 waits for device 0's put, which ends at 101 and arrives at 103; the norm is whole at 111
        let last = |device: u32| {
            let nodes = ending.nodes().iter().zip(&times).filter(|(node, _)| node.device == device);
            nodes.map(|(node, &times)| (node.op.name(), times)).collect::<Vec<_>>()
        };
        assert_eq!(
            last(2),
            [("put", (50, 51)), ("reduce", (103, 107)), ("norm", (107, 111)), ("optimizer", (111, 121))]
        );
        assert_eq!(last(1), [("norm", (90, 94)), ("optimizer", (111, 121))]);
        assert_eq!(free, [121, 121, 121]);
    }

    #[test]
    fn stages_that_stand_twice_exchange_their_gradients() {
        let ending = Ending::new(&Placement::bidirectional(4, 1).unwrap(), None, false);
        for device in 0..4 {
            assert_eq!(ops(&ending, device), ["put", "reduce", "reduce", "optimizer"]);
            for node in ending.of(device).filter(|node| node.op == StepOp::Reduce) {
                let [put] = node.needs[..] else { panic!("{node:?}") };
                assert_eq!(ending.nodes()[put].device, 3 - device);
            }
        }
    }

    #[test]
    fn without_norm_or_exchange_devices_end_on_their_own() {
        let ending = Ending::optimizers(2);
        let mut free = [5, 9];
        let times = ending.run(&mut free, |_| (3, 0));
        assert_eq!((times, free), (vec![(5, 8), (9, 12)], [8, 12]));
    }
}
