//! Lowering: the sends and receives of a schedule under a delivery, and the queues that hold them.
//!
//! All entries are enqueued before the devices reach them. So the schedule alone determines the order in each queue, and whether
//! devices can block each other does not depend on timing.

use crate::delivery::{ChannelOptions, Delivery, QueueCount, Receives};
use crate::graph::TaskGraph;
use crate::op::{Kind, Op, boundary_letter};
use fixedbitset::FixedBitSet;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// One side of the transfer of a message. A message is identified by the index of the op that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(u32);

impl Entry {
    /// Sends the output of op number `message`.
    pub fn send(message: usize) -> Entry {
        Entry((message as u32) << 1)
    }

    /// Receives the output of op number `message`.
    pub fn receive(message: usize) -> Entry {
        Entry((message as u32) << 1 | 1)
    }

    /// Returns the op whose output is sent or received.
    pub fn message(self) -> usize {
        (self.0 >> 1) as usize
    }

    /// Whether it is the receiver's side.
    pub fn is_receive(self) -> bool {
        self.0 & 1 == 1
    }

    /// Returns the other side of the transfer.
    pub fn partner(self) -> Entry {
        Entry(self.0 ^ 1)
    }

    /// Returns its name in PyTorch: `2SEND_F3` on the sending stage, `3RECV_F3` on the receiving one.
    pub fn name(self, graph: &TaskGraph) -> String {
        let maker = graph.op(self.message());
        let stage = match (graph.consumer(self.message()), self.is_receive()) {
            (Some(user), true) => graph.op(user).stage(),
            _ => maker.stage(),
        };
        let side = if self.is_receive() { "RECV" } else { "SEND" };
        let letter = boundary_letter(maker.kind().is_backward());
        format!("{stage}{side}_{letter}{}", maker.microbatch())
    }
}

/// Which entries of its device a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// All entries; under buffered delivery only sends.
    All,
    /// Entries exchanged with this device.
    Peer(u32),
    /// Sends to this device.
    SendsTo(u32),
    /// Receives from this device.
    ReceivesFrom(u32),
    /// The sends of one channel: to this stage, gradients or not.
    Channel(u32, bool),
}

/// A communication queue: entries that complete in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommunicationQueue {
    /// Device whose queue it is.
    pub device: u32,
    /// Which of its entries it has.
    pub holds: Holds,
    /// In order.
    pub entries: Vec<Entry>,
    /// Ends of its groups; empty if every entry is a group.
    ends: Vec<u32>,
}

impl CommunicationQueue {
    /// Returns the number of groups of entries that complete together.
    pub fn groups(&self) -> usize {
        if self.ends.is_empty() { self.entries.len() } else { self.ends.len() }
    }

    /// Returns the entries of group `number`, which is below [`groups`](Self::groups).
    pub fn group(&self, number: usize) -> &[Entry] {
        let range = match number.checked_sub(1) {
            _ if self.ends.is_empty() => number..number + 1,
            before => before.map_or(0, |before| self.ends[before] as usize)..self.ends[number] as usize,
        };
        &self.entries[range]
    }

    /// Returns the name of a group in messages: `0SEND_F1 with 0RECV_B0`.
    pub fn group_name(&self, graph: &TaskGraph, number: usize) -> String {
        self.group(number).iter().map(|entry| entry.name(graph)).collect::<Vec<_>>().join(" with ")
    }

    /// Returns its name in messages, after "its" or "device 3's".
    pub fn name(&self) -> String {
        match self.holds {
            Holds::All => "communication queue".to_string(),
            Holds::Peer(peer) => format!("queue with device {peer}"),
            Holds::SendsTo(peer) => format!("queue of sends to device {peer}"),
            Holds::ReceivesFrom(peer) => format!("queue of receives from device {peer}"),
            Holds::Channel(stage, gradient) => {
                format!("queue of {} to stage {stage}", if gradient { "gradients" } else { "activations" })
            }
        }
    }
}

/// The route of all messages made by ops with the same (stage, direction, kind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRoute {
    /// The channel: stage boundary and direction.
    pub channel: usize,
    /// The queue of their sends.
    pub send: usize,
    /// The queue of their receives; under buffered delivery the queue of their sends.
    pub receive: usize,
}

/// The communication queues of a graph.
#[derive(Clone, Debug)]
pub struct Lowering {
    queues: Vec<CommunicationQueue>,
    /// By [`Op::slot`]; `None` if the output stays on its device.
    routes: Vec<Option<MessageRoute>>,
    channels: usize,
    slots: Option<u32>,
}

impl Lowering {
    /// Creates the queues of `graph` under `delivery`; none under one-sided delivery.
    pub fn new(graph: &TaskGraph, delivery: Delivery) -> Lowering {
        let (options, batched) = match delivery.on(graph.schedule()) {
            Delivery::Buffered(slots) => {
                let mut lowering = Lowering::lay_out(graph, false, |_, _, _| Holds::All);
                lowering.fill(graph, false, false);
                return Lowering { slots: Some(slots), ..lowering };
            }
            Delivery::Channel(options) => (options, false),
            Delivery::Batched => (ChannelOptions::default(), true),
            Delivery::OneSided | Delivery::Megatron | Delivery::PyTorch(_) => {
                let routes = vec![None; graph.schedule().placement.slots()];
                return Lowering { queues: Vec::new(), routes, channels: 0, slots: None };
            }
        };
        let mut lowering = Lowering::lay_out(graph, true, layout(options.queues));
        match options.receives {
            Receives::JustInTime => lowering.fill(graph, true, batched),
            Receives::FrontLoaded => lowering.front_load(graph, false),
            Receives::Deferred => lowering.front_load(graph, true),
            Receives::Ahead => lowering.fill_ahead(graph),
        }
        lowering
    }

    /// Creates a queue of sends for each channel of `slots` slots, so that channels do not wait for each other.
    pub fn by_channel(graph: &TaskGraph, slots: u32) -> Lowering {
        let layout = |_, _, user: Op| Holds::Channel(user.stage(), user.kind().is_backward());
        let mut lowering = Lowering::lay_out(graph, false, layout);
        lowering.fill(graph, false, false);
        Lowering { slots: Some(slots), ..lowering }
    }

    /// Returns all queues, by device.
    pub fn queues(&self) -> &[CommunicationQueue] {
        &self.queues
    }

    /// Returns the route of the output of `op`; `None` if it stays on its device or is unused, and under one-sided delivery.
    pub fn route(&self, op: Op) -> Option<MessageRoute> {
        self.routes[op.slot()]
    }

    /// Returns the number of channels that messages take.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the slots per channel; `None` if a send completes together with its receive, or if there are no queues.
    pub fn slots(&self) -> Option<u32> {
        self.slots
    }

    /// Returns the queue of the partner of `entry`; `None` if sends go into slots.
    pub fn partner_queue(&self, graph: &TaskGraph, entry: Entry) -> Option<usize> {
        let route = self.route(graph.op(entry.message()))?;
        let partner = if entry.is_receive() { route.send } else { route.receive };
        self.slots.is_none().then_some(partner)
    }

    /// Numbers channels and queues; the queues are empty. Without `receives`, queues hold only sends.
    fn lay_out(graph: &TaskGraph, receives: bool, layout: QueueOf) -> Lowering {
        let placement = &graph.schedule().placement;
        let mut ends = Vec::new(); // by channel: the slots of its makers, the queues of its two ends
        for direction in 0..placement.directions() {
            for stage in 0..placement.stages() {
                for makers in [&[Kind::F][..], &[Kind::B, Kind::I]] {
                    let user = Op::new(makers[0], stage, 0).in_direction(direction);
                    let receiver = placement.device_of(user);
                    let sender = placement.sender(user).filter(|&sender| sender != receiver);
                    let Some((sender, from)) = sender.zip(user.upstream(placement.stages())) else { continue };
                    let slots: Vec<usize> =
                        makers.iter().map(|&kind| user.on_stage(from).of_kind(kind).slot()).collect();
                    let send = (sender, layout(true, receiver, user));
                    let receive = if receives { (receiver, layout(false, sender, user)) } else { send };
                    ends.push((slots, send, receive));
                }
            }
        }
        let mut numbers: BTreeMap<(u32, Holds), usize> =
            ends.iter().flat_map(|&(_, send, receive)| [(send, 0), (receive, 0)]).collect();
        let (mut queues, mut routes, channels) = (Vec::new(), vec![None; placement.slots()], ends.len());
        for (number, (&(device, holds), entry)) in numbers.iter_mut().enumerate() {
            *entry = number;
            queues.push(CommunicationQueue { device, holds, entries: Vec::new(), ends: Vec::new() });
        }
        for (channel, (slots, send, receive)) in ends.into_iter().enumerate() {
            let route = MessageRoute { channel, send: numbers[&send], receive: numbers[&receive] };
            slots.into_iter().for_each(|slot| routes[slot] = Some(route));
        }
        Lowering { queues, routes, channels, slots: None }
    }

    /// Adds sends right after the ops that make them and, with `receives`, receives just before the ops that use them. With `batched`,
    /// entries between two ops that are exchanged with the same device form a group, at the place of its first entry.
    fn fill(&mut self, graph: &TaskGraph, receives: bool, batched: bool) {
        for device in 0..graph.schedule().devices() {
            let mut between: Vec<Entry> = Vec::new();
            for index in graph.schedule().range(device) {
                let needed = inputs(graph, index).into_iter().flatten().filter(|_| receives);
                between.extend(needed.map(Entry::receive));
                self.push_between(graph, &mut between, batched);
                between.extend(outputs(graph, index).into_iter().flatten().map(Entry::send));
            }
            self.push_between(graph, &mut between, batched);
        }
    }

    /// Appends the entries between two ops.
    fn push_between(&mut self, graph: &TaskGraph, entries: &mut Vec<Entry>, batched: bool) {
        entries.retain(|entry| self.routes[graph.op(entry.message()).slot()].is_some());
        while let Some(&first) = entries.first() {
            if !batched {
                entries.drain(..).for_each(|entry| self.push(graph, entry));
                return;
            }
            let peer = |entry: &Entry| self.partner_queue(graph, *entry).map(|queue| self.queues[queue].device);
            let group: Vec<Entry> = entries.extract_if(.., |entry| peer(entry) == peer(&first)).collect();
            group.into_iter().for_each(|entry| self.push(graph, entry));
            // Batched delivery has one queue per device.
            let own = self.routes[graph.op(first.message()).slot()];
            if let Some(own) = own.map(|route| if first.is_receive() { route.receive } else { route.send }) {
                let queue = &mut self.queues[own];
                queue.ends.push(queue.entries.len() as u32);
            }
        }
    }

    /// Adds sends right after the ops that make them, and receives as [`Receives::Ahead`] defines.
    fn fill_ahead(&mut self, graph: &TaskGraph) {
        let (schedule, devices) = (graph.schedule(), graph.schedule().devices() as usize);
        let is_forward = |index: &usize| graph.op(*index).kind() == Kind::F;
        let leading = |device: usize| {
            let first = |index: &usize| graph.op(*index).kind().is_backward();
            schedule.range(device as u32).position(|index| first(&index)).unwrap_or_default()
        };
        // Megatron's warm-up has two more forwards on each earlier device; the first backward of the last device follows the first
        // forward of its steady state.
        let warmup = |device: usize| (leading(devices - 1) + 2 * (devices - 1 - device)).saturating_sub(1);
        for device in 0..devices {
            let range = schedule.range(device as u32);
            let is_steady = warmup(device) < range.clone().filter(is_forward).count();
            // By direction: the op after which the next receive is posted.
            let (mut last, mut posts) = ([None, None], Vec::new());
            for index in range.clone().filter(|&index| graph.op(index).kind() != Kind::W) {
                let direction = usize::from(!is_forward(&index));
                let before = index.checked_sub(1).filter(|before| range.contains(before));
                let first = match before {
                    Some(forward) if direction == 1 && is_steady && is_forward(&forward) => {
                        forward.checked_sub(1).filter(|before| range.contains(before))
                    }
                    _ if direction == 1 => before,
                    _ => None,
                };
                let place: Option<usize> = last[direction].unwrap_or(first);
                posts.extend(inputs(graph, index).into_iter().flatten().map(|message| (place, index, message)));
                last[direction] = Some(Some(index));
            }
            posts.sort();
            let mut posts = posts.into_iter().peekable();
            for place in std::iter::once(None).chain(range.map(Some)) {
                let made = place.map(|index| outputs(graph, index)).into_iter().flatten().flatten();
                made.for_each(|message| self.push(graph, Entry::send(message)));
                while let Some((.., message)) = posts.next_if(|post| post.0 == place) {
                    self.push(graph, Entry::receive(message));
                }
            }
        }
    }

    /// Appends `entry` to its queue if its data leaves its device.
    fn push(&mut self, graph: &TaskGraph, entry: Entry) {
        if let Some(route) = self.routes[graph.op(entry.message()).slot()] {
            self.queues[if entry.is_receive() { route.receive } else { route.send }].entries.push(entry);
        }
    }

    /// Adds entries as PyTorch's `_add_send_recv` does: the devices take turns, one op each; an op whose inputs have no receives yet
    /// skips its turn. Each op adds its send to its own device's list and, at once, the receive to the user's list. If they are `deferred`,
    /// receives then move back in their list.
    fn front_load(&mut self, graph: &TaskGraph, deferred: bool) {
        let schedule = graph.schedule();
        let mut lists: Vec<Vec<Listed>> = vec![Vec::new(); if deferred { schedule.devices() as usize } else { 0 }];
        let mut next: Vec<usize> = (0..schedule.devices()).map(|device| schedule.range(device).start).collect();
        let mut listed = FixedBitSet::with_capacity(graph.len()); // messages whose receive is in its list
        let mut passes = vec![false; next.len()];
        let mut turns: BinaryHeap<Reverse<(usize, u32)>> =
            (0..schedule.devices()).map(|device| Reverse((0, device))).collect();
        while let Some(Reverse((round, device))) = turns.pop() {
            let index = next[device as usize];
            if index == schedule.range(device).end {
                continue;
            }
            let last = graph.pair(index).map_or(index, |(_, second)| second);
            let crossing = |message: &usize| self.routes[graph.op(*message).slot()].is_some();
            let mut awaited = (index..=last).flat_map(|op| inputs(graph, op)).flatten().filter(crossing);
            if awaited.any(|message| !listed.contains(message)) {
                passes[device as usize] = true;
                continue;
            }
            if deferred {
                lists[device as usize].push(Listed::Compute(index, last));
            }
            for message in (index..=last).flat_map(|op| outputs(graph, op)).flatten() {
                let Some(route) = self.routes[graph.op(message).slot()] else { continue };
                listed.insert(message);
                let user = self.queues[route.receive].device;
                if deferred {
                    lists[device as usize].push(Listed::Send(message, user));
                    lists[user as usize].push(Listed::Receive(message, device));
                } else {
                    self.push(graph, Entry::send(message));
                    self.push(graph, Entry::receive(message));
                }
                if std::mem::replace(&mut passes[user as usize], false) {
                    turns.push(Reverse((if user > device { round } else { round + 1 }, user)));
                }
            }
            next[device as usize] = last + 1;
            turns.push(Reverse((round + 1, device)));
        }
        for (device, list) in (0..).zip(lists) {
            self.defer(graph, device, list);
        }
    }

    /// Adds the entries of the list of `device`, each receive just before the op that uses it; before a send to a device of a higher number,
    /// first those from that device that the list has up to here.
    fn defer(&mut self, graph: &TaskGraph, device: u32, list: Vec<Listed>) {
        let mut waiting: Vec<(usize, u32)> = Vec::new();
        for entry in list {
            match entry {
                Listed::Receive(message, from) => waiting.push((message, from)),
                Listed::Send(message, to) => {
                    for (before, _) in waiting.extract_if(.., |(_, from)| device < to && *from == to) {
                        self.push(graph, Entry::receive(before));
                    }
                    self.push(graph, Entry::send(message));
                }
                Listed::Compute(first, last) => {
                    for needed in (first..=last).flat_map(|op| inputs(graph, op)).flatten() {
                        if let Some(place) = waiting.iter().position(|(message, _)| *message == needed) {
                            waiting.remove(place);
                            self.push(graph, Entry::receive(needed));
                        }
                    }
                }
            }
        }
    }
}

/// An entry of a device's list in PyTorch's lowering, ops included.
#[derive(Clone, Copy, Debug)]
enum Listed {
    /// An op, or the first and the last of a pair.
    Compute(usize, usize),
    /// The output of an op, to a device.
    Send(usize, u32),
    /// The output of an op, from a device.
    Receive(usize, u32),
}

/// Chooses the queue of an entry. Arguments: whether it is a send, the other device, and the op that uses the data.
type QueueOf = fn(bool, u32, Op) -> Holds;

fn layout(queues: QueueCount) -> QueueOf {
    match queues {
        QueueCount::One => |_, _, _| Holds::All,
        QueueCount::PerPeer => |_, peer, _| Holds::Peer(peer),
        QueueCount::PerDirection => |send, peer, _| if send { Holds::SendsTo(peer) } else { Holds::ReceivesFrom(peer) },
    }
}

/// Returns the messages, from any device, that must arrive before op number `index` starts. A pair waits for both inputs before it
/// starts, unless its ops run one after the other.
pub fn inputs(graph: &TaskGraph, index: usize) -> [Option<usize>; 2] {
    match graph.pair(index).filter(|_| graph.overlap().starts_together()) {
        None => [graph.upstream(index), None],
        Some((first, second)) if index == first => [graph.upstream(first), graph.upstream(second)],
        Some(_) => [None, None],
    }
}

/// Returns the messages, for any device, that leave when op number `index` ends; both of an overlapped pair leave at its end.
pub fn outputs(graph: &TaskGraph, index: usize) -> [Option<usize>; 2] {
    let used = |index: usize| graph.consumer(index).map(|_| index);
    match graph.pair(index) {
        None => [used(index), None],
        Some((first, second)) if index == second => [used(first), used(second)],
        Some(_) => [None, None],
    }
}
