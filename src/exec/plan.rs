//! Where each op's input lies and its output goes: buffer slots sized from the graph.
//!
//! A channel is the boundary between two stages, for forward or backward, and for the micro-batches of one direction where there
//! are two; its messages are the micro-batches, all from one device to one other. A slot may be used
//! again by a put that is a descendant, in the graph, of the op that last read it: then no timing whatever can overwrite
//! what is still needed. Slots are dealt greedily under that rule. Between steps the same rule decides whether the first
//! put of the next step must wait for a credit.

use crate::ending::Ending;
use crate::graph::TaskGraph;
use crate::op::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A slot of a channel as one op of each step sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The message: index of the op that makes it.
    pub message: usize,
    /// The channel.
    pub channel: usize,
    /// The slot in it.
    pub slot: usize,
    /// This op's message is the slot's number `turn` in each step, from 0.
    pub turn: u64,
    /// How many messages the slot carries in each step.
    pub turns: u64,
    /// The device that makes it.
    pub producer: u32,
    /// The device that needs it.
    pub consumer: u32,
    /// Whether the put must wait until the slot's last message of the step before was read.
    pub credit: bool,
}

impl Port {
    /// Value of the slot's signal once this message of step `step` (from 0) is there. Signals only grow.
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
    /// What is executed.
    pub graph: Arc<TaskGraph>,
    /// By op: where it reads what another stage made.
    pub inputs: Vec<Option<Port>>,
    /// By op: where it leaves what another stage needs.
    pub outputs: Vec<Option<Port>>,
    /// By channel: number of slots.
    pub slots: Vec<usize>,
    /// What ends a step.
    pub ending: Ending,
}

impl Plan {
    /// Deals slots to the messages of `graph`. The gradient of a tied tensor is exchanged between two devices, if `tied` names any.
    pub fn new(graph: Arc<TaskGraph>, tied: Option<[u32; 2]>) -> Plan {
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
        let ending = Ending::new(&graph.schedule().placement, tied, true);
        let mut plan = Plan { graph, inputs, outputs, slots: Vec::new(), ending };
        for (channel, messages) in channels.into_values().enumerate() {
            plan.deal(channel, &messages, &ancestors);
        }
        plan
    }

    /// Deals the slots of one channel to its (producer, consumer) pairs, which come in the producer's order.
    fn deal(&mut self, channel: usize, messages: &[(usize, usize)], ancestors: &[Vec<u32>]) {
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
        // What a device has behind it when a step ends.
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
                let port = Port {
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
