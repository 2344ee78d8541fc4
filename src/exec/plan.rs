//! Assigns a buffer to the input and the output of each op.
//!
//! A channel is the boundary between two stages, per direction of data (forward or backward) and of micro-batches. Its messages are
//! the micro-batches, all from one device to one other. A put may reuse a slot of the channel if it is a descendant, in the graph,
//! of the op that last read the slot: then no timing can overwrite data that is still needed. Slots are assigned greedily under
//! this rule. Between steps the same rule decides whether the first put of the next step must wait for a credit.

use pipesim_schedule::epilogue::StepEpilogue;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_schedule::op::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The use of a channel's slot by one op in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferUse {
    /// The message: index of the op that produces it.
    pub message: usize,
    /// Number of the channel.
    pub channel: usize,
    /// Number of the slot in the channel.
    pub slot: usize,
    /// Position of the message among the slot's messages in a step, from 0.
    pub turn: u64,
    /// Number of messages of the slot per step.
    pub turns: u64,
    /// Device that produces the message.
    pub producer: u32,
    /// Device that consumes the message.
    pub consumer: u32,
    /// Whether the put must wait until the slot's last message of the previous step was read.
    pub credit: bool,
}

impl BufferUse {
    /// Returns the value of the slot's signal once this message of step `step` (from 0) has arrived.
    pub fn signal(&self, step: u64) -> u64 {
        step * self.turns + self.turn + 1
    }

    /// Whether the two ops are on different devices.
    pub fn crosses(&self) -> bool {
        self.producer != self.consumer
    }
}

/// A graph with its buffers.
#[derive(Debug)]
pub struct Plan {
    pub graph: Arc<TaskGraph>,
    /// By op: its input from another stage.
    pub inputs: Vec<Option<BufferUse>>,
    /// By op: its output for another stage.
    pub outputs: Vec<Option<BufferUse>>,
    /// By channel: number of slots.
    pub slots: Vec<usize>,
    /// Step ops.
    pub epilogue: StepEpilogue,
}

impl Plan {
    /// Assigns slots to the messages of `graph`. `mesh` has replicas of the graph. The devices in `tied` exchange the gradient of a
    /// tied tensor.
    pub fn new(graph: Arc<TaskGraph>, mesh: Mesh, tied: Option<[u32; 2]>) -> Plan {
        let ancestors = graph.ancestors();
        let consumers = graph.consumers();
        let mut channels: BTreeMap<(bool, u32, u32), Vec<(usize, usize)>> = BTreeMap::new();
        for device in 0..graph.schedule().devices() {
            for producer in graph.schedule().range(device) {
                if let Some(consumer) = consumers[producer] {
                    let op = graph.op(consumer);
                    channels
                        .entry((op.kind() == Kind::F, op.stage(), op.direction()))
                        .or_default()
                        .push((producer, consumer));
                }
            }
        }
        let (inputs, outputs) = (vec![None; graph.len()], vec![None; graph.len()]);
        let epilogue = StepEpilogue::of_graph(&graph, mesh, tied, true);
        let mut plan = Plan { graph, inputs, outputs, slots: Vec::new(), epilogue };
        for (channel, messages) in channels.into_values().enumerate() {
            plan.assign(channel, &messages, &ancestors);
        }
        plan
    }

    /// Assigns the slots of one channel to its (producer, consumer) pairs, in the producer's order.
    fn assign(&mut self, channel: usize, messages: &[(usize, usize)], ancestors: &[Vec<u32>]) {
        let graph = self.graph.clone();
        let number = |op: usize| (op - graph.schedule().range(graph.device_of(op)).start) as u32;
        let follows =
            |producer: usize, reader: usize| ancestors[producer][graph.device_of(reader) as usize] > number(reader);
        let mut slots: Vec<Vec<usize>> = Vec::new(); // by slot: its messages
        for (message, &(producer, _)) in messages.iter().enumerate() {
            let free =
                slots.iter().position(|slot| slot.last().is_none_or(|&last| follows(producer, messages[last].1)));
            match free {
                Some(slot) => slots[slot].push(message),
                None => slots.push(vec![message]),
            }
        }
        // By device: ancestors of its last op.
        let behind: Vec<Option<&Vec<u32>>> = (0..graph.schedule().devices())
            .map(|device| graph.schedule().range(device).last().map(|last| &ancestors[last]))
            .collect();
        for (slot, list) in slots.iter().enumerate() {
            let (first, last) = (messages[list[0]].0, messages[list[list.len() - 1]].1);
            let covered = (0..graph.schedule().devices()).any(|device| {
                let known = device == graph.device_of(first) || ancestors[first][device as usize] > 0;
                let clock = behind[device as usize];
                known && clock.is_some_and(|clock| clock[graph.device_of(last) as usize] > number(last))
            });
            for (turn, &message) in list.iter().enumerate() {
                let (producer, consumer) = messages[message];
                let port = BufferUse {
                    message: producer,
                    channel,
                    slot,
                    turn: turn as u64,
                    turns: list.len() as u64,
                    producer: graph.device_of(producer),
                    consumer: graph.device_of(consumer),
                    credit: turn == 0 && !covered,
                };
                self.outputs[producer] = Some(port);
                self.inputs[consumer] = Some(port);
            }
        }
        self.slots.push(slots.len());
    }
}
