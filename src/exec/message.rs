//! Messages between workers, and the buffers that they pass through: the buffers of the channels between stages, and the buffers
//! of the gradients that several workers sum at the end of a step.

use super::arena::{ArenaLayout, Region};
use super::groups::stage_holders;
use super::heap::HostBuffer;
use super::plan::{BufferUse, Plan};
use super::spanning::{GroupList, Part};
use pipesim_schedule::epilogue::{GradientSync, stage_group};
use pipesim_schedule::mesh::Mesh;
use pipesim_schedule::op::Op;
use std::collections::BTreeMap;

/// Sizes of messages in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The hidden state of a micro-batch, or its gradient; with slices, the hidden state of the longest slice.
    pub hidden: usize,
    /// The same of each slice; empty if micro-batches are whole.
    pub slices: Vec<usize>,
    /// The two devices that exchange the gradient of a tied tensor, and its size.
    pub tied: Option<([u32; 2], usize)>,
    /// By stage: size of the gradient of its parameters.
    pub stages: Vec<usize>,
    /// Number of parts of the gradient norm, on all tensor-parallel ranks.
    pub norm_parts: usize,
    /// Messages go from GPU to GPU: the hosts need no memory for them.
    pub past_hosts: bool,
    /// Workers are GPUs that sum the gradients of replicas by collective calls, not by messages.
    pub by_collectives: bool,
}

/// A buffer for messages from one worker to another, or to all others of its group.
#[derive(Clone, Debug)]
pub struct MessageBuffer {
    /// Worker that fills it.
    pub producer: u32,
    /// Worker that reads it: the first one.
    pub consumer: u32,
    /// The other readers.
    pub others: Vec<Reader>,
    /// Size of a message.
    pub bytes: usize,
    /// Memory and signals on the hosts.
    pub host: HostBuffer,
    /// For a part of a gradient: its group's number among the gradients', and the member that fills it.
    group: Option<(usize, usize)>,
}

/// One of several readers of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub worker: u32,
    /// Signal: number of messages that it has read.
    pub read: Region,
}

/// A message: one use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number of the buffer.
    pub buffer: usize,
    /// Index of the op that produces it; `None` for a gradient.
    pub op: Option<usize>,
    /// Value of the buffer's signals when the message has arrived, and when it was read.
    pub value: u64,
    /// The put must wait until this many messages were read from the buffer.
    pub credit: Option<u64>,
    /// Number of the reader that waits for it, from 0.
    pub reader: usize,
}

/// The channels of one copy of the pipeline.
#[derive(Debug)]
struct Channels {
    /// By channel.
    slots: Vec<Vec<HostBuffer>>,
    /// By channel and slot.
    of_slot: Vec<Vec<Option<usize>>>,
}

/// Workers that sum a gradient, in the order in which they sum it, each with the buffer of its part.
#[derive(Debug)]
struct Group {
    members: Vec<(u32, usize)>,
    /// Its number among the groups that make collective calls.
    number: usize,
}

/// Use of a gradient's buffers in an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Sum of the gradient.
    Gradients,
    /// Exchange of the updated parameters afterwards, if workers share the optimizer's work.
    Values,
}

/// The parts of a gradient in one update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GradientParts {
    /// In the order in which they are summed; the worker's own is the outgoing message.
    pub messages: Vec<Message>,
    /// Position of the worker's own part.
    pub own: usize,
}

/// All buffers of a session, with the same numbers in every process.
#[derive(Debug)]
pub struct MessageBuffers {
    mesh: Mesh,
    /// Bytes of a hidden state by slice, in whole numbers of floats; empty if all are as long as their buffer.
    slices: Vec<usize>,
    all: Vec<MessageBuffer>,
    /// By copy of the pipeline.
    copies: Vec<Channels>,
    /// By worker: outputs of ops with even and odd index until they are put, because an overlapped pair puts both at its end.
    send_buffers: Vec<[Region; 2]>,
    groups: Vec<Group>,
    /// By worker and gradient: the number of its group.
    group_of: BTreeMap<(u32, GradientSync), usize>,
}

/// Size of a message.
#[derive(Clone, Copy)]
struct BufferSize {
    bytes: usize,
    /// Numbers on the hosts; 0 if it does not pass them.
    numbers: usize,
}

impl MessageBuffers {
    /// Reserves the buffers of a session on `mesh`, and adds the groups that sum gradients to `list`.
    pub fn new(
        layout: &mut ArenaLayout,
        list: &mut GroupList,
        plan: &Plan,
        mesh: Mesh,
        sizes: &Sizes,
    ) -> MessageBuffers {
        let numbers = |bytes: usize| if sizes.past_hosts { 0 } else { bytes.div_ceil(size_of::<f32>()) };
        let size = |bytes: usize| BufferSize { bytes, numbers: numbers(bytes) };
        let mut all = Vec::new();
        let copies = (0..mesh.copies()).map(|copy| {
            let worker = |device| mesh.worker_of(device, copy);
            Channels::new(layout, plan, size(sizes.hidden), worker, &mut all)
        });
        let copies = copies.collect();
        let mut send_buffer = || layout.region(numbers(sizes.hidden) * size_of::<f32>());
        let workers = 0..mesh.world(plan.graph.schedule().devices());
        let send_buffers = workers.map(|_| [send_buffer(), send_buffer()]).collect();
        let (groups, group_of) = (Vec::new(), BTreeMap::new());
        let mut buffers =
            MessageBuffers { mesh, slices: sizes.slices.clone(), all, copies, send_buffers, groups, group_of };
        for (members, bytes) in groups_of(plan, mesh, sizes) {
            buffers.add_group(layout, list, &members, size(bytes));
        }
        buffers
    }

    /// Adds a group: every member has a buffer for its part, which all others read.
    fn add_group(
        &mut self,
        layout: &mut ArenaLayout,
        list: &mut GroupList,
        members: &[(u32, GradientSync)],
        size: BufferSize,
    ) {
        let mut buffers = Vec::with_capacity(members.len());
        for (member, &(producer, gradient)) in members.iter().enumerate() {
            let host = HostBuffer::new(layout, size.numbers);
            let mut readers = members.iter().map(|&(worker, _)| worker).filter(|&worker| worker != producer);
            let consumer = readers.next().unwrap_or(producer);
            let others = readers.map(|worker| Reader { worker, read: layout.signal() }).collect();
            buffers.push((producer, self.all.len()));
            let group = Some((self.groups.len(), member));
            self.all.push(MessageBuffer { producer, consumer, others, bytes: size.bytes, host, group });
            self.group_of.insert((producer, gradient), self.groups.len());
        }
        let number = list.add(members.iter().map(|&(worker, _)| worker).collect());
        self.groups.push(Group { members: buffers, number });
    }

    pub fn all(&self) -> &[MessageBuffer] {
        &self.all
    }

    /// Returns the buffer of a message.
    pub fn of(&self, message: Message) -> &MessageBuffer {
        &self.all[message.buffer]
    }

    /// Returns for a part of a gradient the number of the group that makes the call, the member that fills the part, and the parts of
    /// all members; `None` for other messages.
    pub fn call(&self, message: Message) -> Option<(usize, usize, Vec<Part>)> {
        let (group, member) = self.of(message).group?;
        let group = &self.groups[group];
        let part = |&(_, buffer): &(u32, usize)| {
            let host = &self.all[buffer].host;
            Part { data: host.data, arrived: host.arrived }
        };
        Some((group.number, member, group.members.iter().map(part).collect()))
    }

    fn channels(&self, worker: u32) -> &Channels {
        &self.copies[self.mesh.copy(worker) as usize]
    }

    /// Returns the host memory of a port of `worker`'s copy, also for messages that stay on a device.
    pub fn slot(&self, worker: u32, port: &BufferUse) -> &HostBuffer {
        &self.channels(worker).slots[port.channel][port.slot]
    }

    /// Returns the part of a buffer of a hidden state that the slice of `op` fills.
    pub fn of_slice(&self, op: Op, place: Region) -> Region {
        self.slices.get(op.slice_number()).map_or(place, |&bytes| place.first(bytes))
    }

    /// Returns the host memory of the output of op `op` on `worker` until it is put.
    pub fn send_buffer(&self, worker: u32, op: usize) -> Region {
        self.send_buffers[worker as usize][op % 2]
    }

    /// Returns the buffers of gradients.
    pub fn exchanges(&self) -> impl Iterator<Item = &MessageBuffer> {
        self.groups.iter().flat_map(|group| &group.members).map(|&(_, number)| &self.all[number])
    }

    /// Returns the message of `port` of `worker`'s copy in step `step`; `None` if it stays on its device.
    pub fn message(&self, worker: u32, port: &BufferUse, step: u64) -> Option<Message> {
        let buffer = self.channels(worker).of_slot[port.channel][port.slot]?;
        let value = port.signal(step);
        Some(Message { buffer, op: Some(port.message), value, credit: port.credit.then(|| value - 1), reader: 0 })
    }

    /// Returns the parts of `gradient` that `worker` sums, or of its parameters that it exchanges, in update `number` (from 0);
    /// `None` if no other worker holds it.
    pub fn parts(&self, worker: u32, gradient: GradientSync, number: u64, what: Use) -> Option<GradientParts> {
        let number = match gradient {
            GradientSync::Stage(_) if self.mesh.zero => 2 * number + u64::from(what == Use::Values),
            _ => number,
        };
        let group = &self.groups[*self.group_of.get(&(worker, gradient))?];
        let own = group.members.iter().position(|&(member, _)| member == worker)?;
        let message = |(member, &(_, buffer)): (usize, &(u32, usize))| Message {
            buffer,
            op: None,
            value: number + 1,
            credit: Some(number),
            // A part's readers are the other members of its group, in order.
            reader: own - usize::from(member < own),
        };
        Some(GradientParts { messages: group.members.iter().enumerate().map(message).collect(), own })
    }
}

impl Channels {
    /// Reserves the buffers of one copy of the pipeline for messages of this size, and appends those between two devices to `all`.
    fn new(
        layout: &mut ArenaLayout,
        plan: &Plan,
        size: BufferSize,
        worker: impl Fn(u32) -> u32,
        all: &mut Vec<MessageBuffer>,
    ) -> Channels {
        let mut of_channel = |&count: &usize| (0..count).map(|_| HostBuffer::new(layout, size.numbers)).collect();
        let slots: Vec<Vec<HostBuffer>> = plan.slots.iter().map(&mut of_channel).collect();
        let mut of_slot: Vec<Vec<Option<usize>>> = slots.iter().map(|slots| vec![None; slots.len()]).collect();
        for port in plan.outputs.iter().flatten().filter(|port| port.crosses()) {
            of_slot[port.channel][port.slot].get_or_insert_with(|| {
                all.push(MessageBuffer {
                    producer: worker(port.producer),
                    consumer: worker(port.consumer),
                    others: Vec::new(),
                    bytes: size.bytes,
                    host: slots[port.channel][port.slot],
                    group: None,
                });
                all.len() - 1
            });
        }
        Channels { slots, of_slot }
    }
}

/// Returns the groups of workers that sum a gradient, each in order of worker numbers, with its size in bytes.
fn groups_of(plan: &Plan, mesh: Mesh, sizes: &Sizes) -> Vec<(Vec<(u32, GradientSync)>, usize)> {
    let placement = &plan.graph.schedule().placement;
    let mut groups = Vec::new();
    if let Some((devices, bytes)) = sizes.tied {
        let of_copy = |copy| devices.map(|device| (mesh.worker_of(device, copy), GradientSync::Tied)).to_vec();
        groups.extend((0..mesh.copies()).map(|copy| (of_copy(copy), bytes)));
    }
    if stage_group(placement, mesh.data) > 1 && !sizes.by_collectives {
        let bytes = |stage: u32| sizes.stages.get(stage as usize).copied().unwrap_or(0);
        groups.extend(stage_holders(plan, mesh).into_iter().map(|(stage, holders)| (holders, bytes(stage))));
    }
    groups
}
