//! Messages between devices, and the buffers that they pass through: those of the channels between stages, and those of the
//! exchanges at the end of a step.

use super::arena::{ArenaLayout, Region};
use super::heap::HostBuffer;
use super::plan::{BufferUse, Plan};
use crate::placement::Chunk;

/// Sizes of messages in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The hidden state of a micro-batch, or its gradient.
    pub hidden: usize,
    /// The two devices that exchange the gradient of a tied tensor, and its size.
    pub tied: Option<([u32; 2], usize)>,
    /// By stage: size of the gradient of its parameters.
    pub stages: Vec<usize>,
    /// Number of parts of the gradient norm.
    pub norm_parts: usize,
    /// Messages go from GPU to GPU: the hosts need no memory for them.
    pub past_hosts: bool,
}

/// A buffer for messages from one device to another.
#[derive(Clone, Copy, Debug)]
pub struct MessageBuffer {
    /// Device that fills it.
    pub producer: u32,
    /// Device that reads it.
    pub consumer: u32,
    /// Size of a message.
    pub bytes: usize,
    /// Memory and signals on the hosts.
    pub host: HostBuffer,
}

/// A message: one use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number of the buffer.
    pub buffer: usize,
    /// Index of the op that produces it; `None` for an exchange.
    pub op: Option<usize>,
    /// Value of the buffer's signals when the message has arrived, and when it was read.
    pub value: u64,
    /// The put must wait until this many messages were read from the buffer.
    pub credit: Option<u64>,
}

/// All buffers of a session, with the same numbers in every process.
#[derive(Debug)]
pub struct MessageBuffers {
    all: Vec<MessageBuffer>,
    /// By channel.
    slots: Vec<Vec<HostBuffer>>,
    /// By channel and slot.
    of_slot: Vec<Vec<Option<usize>>>,
    /// By device: outputs of ops with even and odd index until they are put, because an overlapped pair puts both at its end.
    send_buffers: Vec<[Region; 2]>,
    /// Buffers of a tied tensor's gradient, by side of the sender.
    tied: Option<[usize; 2]>,
    /// By stage and direction of the sender; empty with one direction.
    replicas: Vec<[usize; 2]>,
}

impl MessageBuffers {
    /// Reserves the buffers of a session.
    pub fn new(layout: &mut ArenaLayout, plan: &Plan, sizes: &Sizes) -> MessageBuffers {
        let length = |bytes: usize| if sizes.past_hosts { 0 } else { bytes.div_ceil(size_of::<f32>()) };
        let mut of_channel =
            |&count: &usize| (0..count).map(|_| HostBuffer::new(layout, length(sizes.hidden))).collect();
        let slots: Vec<Vec<HostBuffer>> = plan.slots.iter().map(&mut of_channel).collect();
        let mut all = Vec::new();
        let mut of_slot: Vec<Vec<Option<usize>>> = slots.iter().map(|slots| vec![None; slots.len()]).collect();
        for port in plan.outputs.iter().flatten().filter(|port| port.crosses()) {
            of_slot[port.channel][port.slot].get_or_insert_with(|| {
                let slot = slots[port.channel][port.slot];
                all.push(MessageBuffer {
                    producer: port.producer,
                    consumer: port.consumer,
                    bytes: sizes.hidden,
                    host: slot,
                });
                all.len() - 1
            });
        }
        let placement = &plan.graph.schedule().placement;
        let mut send_buffer = || layout.region(length(sizes.hidden) * size_of::<f32>());
        let send_buffers = (0..placement.devices()).map(|_| [send_buffer(), send_buffer()]).collect();
        let mut exchange = |devices: [u32; 2], bytes: usize| {
            [0, 1].map(|side| {
                let slot = HostBuffer::new(layout, length(bytes));
                all.push(MessageBuffer { producer: devices[side], consumer: devices[1 - side], bytes, host: slot });
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
        MessageBuffers { all, slots, of_slot, send_buffers, tied, replicas }
    }

    pub fn all(&self) -> &[MessageBuffer] {
        &self.all
    }

    /// Returns the buffer of a message.
    pub fn of(&self, message: Message) -> &MessageBuffer {
        &self.all[message.buffer]
    }

    /// Returns the host memory of a port, also for messages that stay on a device.
    pub fn slot(&self, port: &BufferUse) -> &HostBuffer {
        &self.slots[port.channel][port.slot]
    }

    /// Returns the host memory of the output of op `op` on `device` until it is put.
    pub fn send_buffer(&self, device: u32, op: usize) -> Region {
        self.send_buffers[device as usize][op % 2]
    }

    /// Returns the buffers of the exchanges at the end of a step.
    pub fn exchanges(&self) -> impl Iterator<Item = &MessageBuffer> {
        self.tied.iter().chain(&self.replicas).flatten().map(|&number| &self.all[number])
    }

    /// Returns the message of `port` in step `step`; `None` if it stays on its device.
    pub fn message(&self, port: &BufferUse, step: u64) -> Option<Message> {
        let buffer = self.of_slot[port.channel][port.slot]?;
        let value = port.signal(step);
        Some(Message { buffer, op: Some(port.message), value, credit: port.credit.then(|| value - 1) })
    }

    /// Returns the outgoing and the incoming message of `device` for the tied tensor, in update `number` (from 0).
    pub fn tied(&self, device: u32, number: u64) -> Option<[Message; 2]> {
        let boxes = self.tied?;
        let side = boxes.iter().position(|&own| self.all[own].producer == device)?;
        Some([exchanged(boxes[side], number), exchanged(boxes[1 - side], number)])
    }

    /// Returns the outgoing and the incoming message of `chunk`'s copy of its stage, in update `number` (from 0).
    pub fn replica(&self, chunk: Chunk, number: u64) -> Option<[Message; 2]> {
        let boxes = self.replicas.get(chunk.stage as usize)?;
        let side = chunk.direction as usize;
        Some([exchanged(boxes[side], number), exchanged(boxes[1 - side], number)])
    }
}

fn exchanged(buffer: usize, number: u64) -> Message {
    Message { buffer, op: None, value: number + 1, credit: Some(number) }
}
