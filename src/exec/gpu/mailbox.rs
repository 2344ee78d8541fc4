//! Places through which messages go from one device to another, one after the other: slots of channels between devices, and
//! the exchanges around the pipeline.

use super::super::plan::Port;
use super::super::shared::Shared;
use super::super::slot::Slot;
use crate::placement::Chunk;
use std::sync::Arc;

/// How long messages are on GPUs, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageBytes {
    /// The hidden state of a micro-batch, or its gradient.
    pub hidden: usize,
    /// The gradient of the tied embedding.
    pub tied: usize,
    /// By stage: the gradient of its parameters.
    pub stages: Vec<usize>,
}

/// A place for messages from one device to another.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox {
    /// The device that fills it.
    pub producer: u32,
    /// The device that reads it.
    pub consumer: u32,
    /// Length of a message.
    pub bytes: usize,
    /// Its signals on the hosts.
    pub slot: Slot,
}

/// One use of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The mailbox's number.
    pub mailbox: usize,
    /// The op that makes it, by its index; `None` for an exchange.
    pub op: Option<usize>,
    /// What its signal rises to when it is there, and when it was read.
    pub value: u64,
    /// The put must wait until the mailbox was read so often.
    pub credit: Option<u64>,
}

/// All mailboxes of a session, numbered alike in every process.
#[derive(Debug)]
pub struct Mailboxes {
    all: Vec<Mailbox>,
    /// By channel and slot.
    of_slot: Vec<Vec<Option<usize>>>,
    /// By sender: the embedding's device, the head's.
    tied: Option<[usize; 2]>,
    /// By stage and direction of the sender.
    replicas: Vec<[usize; 2]>,
}

impl Mailboxes {
    /// The mailboxes of a session.
    pub fn new(shared: &Shared, bytes: &MessageBytes) -> Arc<Mailboxes> {
        let mut all = Vec::new();
        let slots = shared.link.slots();
        let mut of_slot: Vec<Vec<Option<usize>>> = slots.iter().map(|slots| vec![None; slots.len()]).collect();
        for port in shared.plan.outputs.iter().flatten().filter(|port| port.crosses()) {
            of_slot[port.channel][port.slot].get_or_insert_with(|| {
                let slot = slots[port.channel][port.slot];
                all.push(Mailbox { producer: port.producer, consumer: port.consumer, bytes: bytes.hidden, slot });
                all.len() - 1
            });
        }
        let mut exchange = |slots: &[Slot; 2], devices: [u32; 2], bytes| {
            [0, 1].map(|side| {
                all.push(Mailbox { producer: devices[side], consumer: devices[1 - side], bytes, slot: slots[side] });
                all.len() - 1
            })
        };
        let tied = shared.reductions.tied().map(|(slots, devices)| exchange(slots, *devices, bytes.tied));
        let replicas = shared.reductions.replicas().iter().enumerate();
        let stage_bytes = |stage: usize| bytes.stages.get(stage).copied().unwrap_or(0);
        let replicas =
            replicas.map(|(stage, (slots, devices))| exchange(slots, *devices, stage_bytes(stage))).collect();
        Arc::new(Mailboxes { all, of_slot, tied, replicas })
    }

    /// All of them.
    pub fn all(&self) -> &[Mailbox] {
        &self.all
    }

    /// Those of the exchanges around the pipeline.
    pub fn exchanges(&self) -> impl Iterator<Item = &Mailbox> {
        self.tied.iter().chain(&self.replicas).flatten().map(|&number| &self.all[number])
    }

    /// The message of `port` in step `step`; `None` where it stays on its device.
    pub fn message(&self, port: &Port, step: u64) -> Option<Message> {
        let mailbox = self.of_slot[port.channel][port.slot]?;
        let value = port.signal(step);
        Some(Message { mailbox, op: Some(port.message), value, credit: port.credit.then(|| value - 1) })
    }

    /// What goes out from `side` of the tied embedding, and what comes in, in the update of this number (from 0).
    pub fn tied(&self, side: usize, number: u64) -> Option<[Message; 2]> {
        self.tied.map(|boxes| [exchanged(boxes[side], number), exchanged(boxes[1 - side], number)])
    }

    /// What goes out from `chunk`'s copy of its stage, and what comes in, in the update of this number (from 0).
    pub fn replica(&self, chunk: Chunk, number: u64) -> Option<[Message; 2]> {
        let boxes = self.replicas.get(chunk.stage as usize)?;
        let side = chunk.direction as usize;
        Some([exchanged(boxes[side], number), exchanged(boxes[1 - side], number)])
    }
}

fn exchanged(mailbox: usize, number: u64) -> Message {
    Message { mailbox, op: None, value: number + 1, credit: Some(number) }
}
