//! Places through which messages go from one device to another, one after the other: slots of channels between devices, and
//! the exchanges around the pipeline.

use super::arena::{Dealer, Region};
use super::plan::{Plan, Port};
use super::slot::Slot;
use crate::placement::Chunk;

/// How much devices exchange: lengths of messages in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The hidden state of a micro-batch, or its gradient.
    pub hidden: usize,
    /// The devices with the sides of a tied tensor, where two must exchange its gradient, and its length.
    pub tied: Option<([u32; 2], usize)>,
    /// By stage: the gradient of its parameters.
    pub stages: Vec<usize>,
    /// How many parts the gradient norm has.
    pub norm_parts: usize,
    /// Messages go from GPU to GPU: the hosts need no room for them.
    pub past_hosts: bool,
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
    /// Its place and its signals on the hosts.
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
    /// By channel.
    slots: Vec<Vec<Slot>>,
    /// By channel and slot.
    of_slot: Vec<Vec<Option<usize>>>,
    /// By device: where outputs lie on its host until they are put, those of ops of even and of odd index, since both ops of an
    /// overlapped pair put theirs at its end.
    outboxes: Vec<[Region; 2]>,
    /// Of a tied tensor's gradient, by side of the sender.
    tied: Option<[usize; 2]>,
    /// By stage and direction of the sender; none where there is one direction.
    replicas: Vec<[usize; 2]>,
}

impl Mailboxes {
    /// The mailboxes of a session.
    pub fn new(dealer: &mut Dealer, plan: &Plan, sizes: &Sizes) -> Mailboxes {
        let length = |bytes: usize| if sizes.past_hosts { 0 } else { bytes.div_ceil(size_of::<f32>()) };
        let mut of_channel = |&count: &usize| (0..count).map(|_| Slot::new(dealer, length(sizes.hidden))).collect();
        let slots: Vec<Vec<Slot>> = plan.slots.iter().map(&mut of_channel).collect();
        let mut all = Vec::new();
        let mut of_slot: Vec<Vec<Option<usize>>> = slots.iter().map(|slots| vec![None; slots.len()]).collect();
        for port in plan.outputs.iter().flatten().filter(|port| port.crosses()) {
            of_slot[port.channel][port.slot].get_or_insert_with(|| {
                let slot = slots[port.channel][port.slot];
                all.push(Mailbox { producer: port.producer, consumer: port.consumer, bytes: sizes.hidden, slot });
                all.len() - 1
            });
        }
        let placement = &plan.graph.schedule().placement;
        let mut outbox = || dealer.region(length(sizes.hidden) * size_of::<f32>());
        let outboxes = (0..placement.devices()).map(|_| [outbox(), outbox()]).collect();
        let mut exchange = |devices: [u32; 2], bytes: usize| {
            [0, 1].map(|side| {
                let slot = Slot::new(dealer, length(bytes));
                all.push(Mailbox { producer: devices[side], consumer: devices[1 - side], bytes, slot });
                all.len() - 1
            })
        };
        let tied = sizes.tied.map(|(devices, bytes)| exchange(devices, bytes));
        let stages = if placement.directions() == 2 { placement.stages() } else { 0 };
        let replicas = (0..stages).map(|stage| {
            let holders = [0, 1].map(|direction| placement.device_of_stage(stage, direction));
            exchange(holders, sizes.stages.get(stage as usize).copied().unwrap_or(0))
        });
        let replicas = replicas.collect();
        Mailboxes { all, slots, of_slot, outboxes, tied, replicas }
    }

    /// All of them.
    pub fn all(&self) -> &[Mailbox] {
        &self.all
    }

    /// That of a message.
    pub fn of(&self, message: Message) -> &Mailbox {
        &self.all[message.mailbox]
    }

    /// The slot of a port, whether or not its messages go to another device.
    pub fn slot(&self, port: &Port) -> &Slot {
        &self.slots[port.channel][port.slot]
    }

    /// Where the output of op number `op` lies on the host of `device` until it is put.
    pub fn outbox(&self, device: u32, op: usize) -> Region {
        self.outboxes[device as usize][op % 2]
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

    /// What goes out from `device`'s side of the tied tensor, and what comes in, in the update of this number (from 0).
    pub fn tied(&self, device: u32, number: u64) -> Option<[Message; 2]> {
        let boxes = self.tied?;
        let side = boxes.iter().position(|&own| self.all[own].producer == device)?;
        Some([exchanged(boxes[side], number), exchanged(boxes[1 - side], number)])
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
