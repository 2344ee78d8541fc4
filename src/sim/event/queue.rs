//! Communication queues: the messages of a graph and the order in which each device sends and receives them.

use super::plan::Rule;
use super::{Config, Scope};
use crate::delivery::{ChannelOptions, Delivery, Queues, Receives};
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};
use crate::schedule::Overlap;

/// No message, no queue.
pub(super) const NONE: u32 = u32::MAX;

/// The output of an op on its way to another device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// The op that makes it.
    pub op: u32,
    /// That op's [`Op::slot`], by which its lane is found.
    pub slot: u32,
}

/// The way of the messages that ops of one stage, direction and kind make.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    pub from: u32,
    pub to: u32,
    pub link: u32,
    /// Stage boundary and direction.
    pub channel: u32,
    /// The queue from which they are sent; [`NONE`]: at once.
    pub send_queue: u32,
    /// The queue in which their receiver asks for them; [`NONE`]: it need not ask.
    pub receive_queue: u32,
    /// How long one occupies its link.
    pub transfer: u64,
    /// How long it travels.
    pub latency: u64,
}

/// One entry of a communication queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub message: u32,
    pub receives: bool,
}

/// All messages of a graph, by the index of the op that makes them, and the queues through which they go.
#[derive(Debug)]
pub(super) struct Messages {
    pub all: Vec<Message>,
    /// By slot of the op that makes them.
    pub lanes: Vec<Lane>,
    /// By op: the message that it makes.
    pub output: Vec<u32>,
    /// By op: the message that it uses.
    pub input: Vec<u32>,
    /// The entries of all queues, queue after queue.
    pub entries: Vec<Entry>,
    /// By queue: where its entries start; and their end.
    pub starts: Vec<u32>,
    /// By queue: its device.
    pub owners: Vec<u32>,
    pub links: usize,
    pub channels: usize,
}

impl Messages {
    /// The messages of `graph` and the queues that `config` gives each device.
    pub fn new(graph: &TaskGraph, config: &Config, rules: &[Rule]) -> Messages {
        let ops = graph.schedule().ops();
        let mut messages = Messages {
            all: Vec::new(),
            lanes: lanes(graph, rules),
            output: vec![NONE; ops.len()],
            input: vec![NONE; ops.len()],
            entries: Vec::new(),
            starts: vec![0],
            owners: Vec::new(),
            links: 0,
            channels: rules.len(),
        };
        for (index, &op) in ops.iter().enumerate() {
            let Some(user) = graph.consumer(index).filter(|_| graph.schedule().placement.leaves_device(op)) else {
                continue;
            };
            let number = messages.all.len() as u32;
            messages.output[index] = number;
            messages.input[user] = number;
            messages.all.push(Message { op: index as u32, slot: op.slot() as u32 });
        }
        messages.number_links(config.network.scope);
        messages.fill_queues(graph, config);
        messages
    }

    /// The lane of a message.
    pub fn lane(&self, message: u32) -> &Lane {
        &self.lanes[self.all[message as usize].slot as usize]
    }

    fn number_links(&mut self, scope: Scope) {
        let key = |lane: &Lane| match scope {
            Scope::Pair => (lane.from, lane.to),
            Scope::Egress => (lane.from, 0),
        };
        let mut keys: Vec<(u32, u32)> = self.lanes.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        for lane in &mut self.lanes {
            lane.link = keys.binary_search(&key(lane)).unwrap_or(0) as u32;
        }
        self.links = keys.len();
    }

    /// Puts every device's entries, which stand in program order, into its queues.
    fn fill_queues(&mut self, graph: &TaskGraph, config: &Config) {
        let programs = match config.delivery {
            Delivery::Channel(ChannelOptions { receives: Receives::FrontLoaded, .. }) => self.front_loaded(graph),
            Delivery::Channel(_) => self.in_place(graph, true),
            Delivery::OneSided if config.slots.is_none() => return,
            Delivery::OneSided | Delivery::Buffered(_) => self.in_place(graph, false),
        };
        let key = |lane: &Lane, receives: bool| {
            let peer = if receives { lane.from } else { lane.to };
            match config.delivery {
                Delivery::OneSided => (lane.channel, false), // channels do not wait for one another
                Delivery::Buffered(_) => (0, false),
                Delivery::Channel(ChannelOptions { queues: Queues::One, .. }) => (0, false),
                Delivery::Channel(ChannelOptions { queues: Queues::PerPeer, .. }) => (peer, false),
                Delivery::Channel(ChannelOptions { queues: Queues::PerDirection, .. }) => (peer, receives),
            }
        };
        for (device, program) in programs.into_iter().enumerate() {
            let (all, lanes) = (&self.all, &self.lanes);
            let lane = |message: u32| &lanes[all[message as usize].slot as usize];
            let key = |entry: &Entry| key(lane(entry.message), entry.receives);
            let mut program = program;
            program.sort_by_key(key); // stable: program order stays within a queue
            for queue in program.chunk_by(|a, b| key(a) == key(b)) {
                self.entries.extend_from_slice(queue);
                self.starts.push(self.entries.len() as u32);
                self.owners.push(device as u32);
            }
        }
        for queue in 0..self.owners.len() {
            for entry in &self.entries[self.starts[queue] as usize..self.starts[queue + 1] as usize] {
                let lane = &mut self.lanes[self.all[entry.message as usize].slot as usize];
                let place = if entry.receives { &mut lane.receive_queue } else { &mut lane.send_queue };
                *place = queue as u32;
            }
        }
    }

    /// By device: what each op receives just before it, if `receives`, and what it sends just after. An overlapped pair
    /// that is one op receives for both before it.
    fn in_place(&self, graph: &TaskGraph, receives: bool) -> Vec<Vec<Entry>> {
        let program = |device: u32| {
            let mut entries = Vec::new();
            for unit in units(graph, device) {
                if receives {
                    entries.extend(self.received(unit.clone()));
                }
                entries.extend(self.sent(unit));
            }
            entries
        };
        (0..graph.schedule().devices()).map(program).collect()
    }

    /// By device: the order into which PyTorch lowers a schedule. Devices take turns; who can run its next op (all that
    /// it needs has been entered as received) runs it, enters what it sends, and enters it as received in the program of
    /// whoever uses it, at once.
    fn front_loaded(&self, graph: &TaskGraph) -> Vec<Vec<Entry>> {
        let devices = graph.schedule().devices();
        let mut units: Vec<_> = (0..devices).map(|device| units(graph, device).peekable()).collect();
        let mut entries: Vec<Vec<Entry>> = vec![Vec::new(); devices as usize];
        let mut entered = vec![false; self.all.len()];
        loop {
            let mut progress = false;
            for device in 0..devices as usize {
                let can = |unit: &std::ops::Range<usize>| {
                    self.received(unit.clone()).all(|entry| entered[entry.message as usize])
                };
                let Some(unit) = units[device].next_if(can) else { continue };
                progress = true;
                for sent in self.sent(unit) {
                    let to = self.lane(sent.message).to;
                    entered[sent.message as usize] = true;
                    entries[device].push(sent);
                    entries[to as usize].push(Entry { receives: true, ..sent });
                }
            }
            if !progress {
                return entries; // the graph has no circle, so nothing is left
            }
        }
    }

    fn received(&self, unit: std::ops::Range<usize>) -> impl Iterator<Item = Entry> {
        let messages = self.input[unit].iter().filter(|&&message| message != NONE);
        messages.map(|&message| Entry { message, receives: true })
    }

    fn sent(&self, unit: std::ops::Range<usize>) -> impl Iterator<Item = Entry> {
        let messages = self.output[unit].iter().filter(|&&message| message != NONE);
        messages.map(|&message| Entry { message, receives: false })
    }
}

/// The lanes by [`Op::slot`], as far as `rules` tell.
fn lanes(graph: &TaskGraph, rules: &[Rule]) -> Vec<Lane> {
    let mut lanes = vec![Lane::default(); rules.len()];
    let placement = &graph.schedule().placement;
    for op in placement.op_kinds() {
        let Rule { consumer: to, transfer, latency, .. } = rules[op.slot()];
        // I and B of a stage fill the same channel.
        let channel = Op::new(if op.kind() == Kind::F { Kind::F } else { Kind::I }, op.stage(), 0);
        let (from, channel) = (placement.device_of(op), channel.in_direction(op.direction()).slot() as u32);
        let (link, send_queue, receive_queue) = (0, NONE, NONE);
        lanes[op.slot()] = Lane { from, to, link, channel, send_queue, receive_queue, transfer, latency };
    }
    lanes
}

/// The ops of a device, an overlapped pair as one wherever its outputs leave together.
fn units(graph: &TaskGraph, device: u32) -> impl Iterator<Item = std::ops::Range<usize>> {
    let range = graph.schedule().range(device);
    let paired = graph.overlap() != Overlap::Serial;
    let mut next = range.start;
    std::iter::from_fn(move || {
        let start = next;
        if start == range.end {
            return None;
        }
        next += if paired && graph.op(start).opens_pair() { 2 } else { 1 };
        Some(start..next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Placement;
    use crate::schedule::{Programs, Schedule};

    /// Compute and communication in one order: an op is entered before what it sends and after what it receives.
    fn lowered(rows: [&str; 2], receives: Receives) -> [Vec<String>; 2] {
        let mut programs = Programs::default();
        for row in rows {
            programs.ops.extend(row.split(' ').map(|op| op.parse::<Op>().unwrap()));
            programs.finish(Vec::new());
        }
        let schedule = Schedule::new("interleaved", Placement::looped("loop", 2, 2), 2, programs);
        schedule.validate().unwrap();
        let graph = TaskGraph::new(schedule).unwrap();
        let delivery = Delivery::Channel(ChannelOptions { queues: Queues::One, receives });
        let config = Config { delivery, ..Config::default() };
        let costs =
            crate::cost::GivenCosts::default().table(&graph.schedule().placement, 2, &Default::default()).unwrap();
        let plan = super::super::Plan::new(&graph, &costs, &config).unwrap();
        let messages = Messages::new(&graph, &config, &plan.rules);
        [0, 1].map(|queue: usize| {
            let range = messages.starts[queue] as usize..messages.starts[queue + 1] as usize;
            let name = |entry: &Entry| {
                let op = graph.op(messages.all[entry.message as usize].op as usize);
                let (stage, letter) = match (op.kind(), entry.receives) {
                    (Kind::F, false) => (op.stage(), "SEND_F"),
                    (Kind::F, true) => (op.stage() + 1, "RECV_F"),
                    (_, false) => (op.stage(), "SEND_B"),
                    (_, true) => (op.stage() - 1, "RECV_B"),
                };
                format!("{stage}{letter}{}", op.microbatch())
            };
            messages.entries[range].iter().map(name).collect()
        })
    }

    const ROWS: [&str; 2] = ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"];

    #[test]
    fn front_loading_is_pytorchs() {
        // The sends and receives of the program printed in pytorch/pytorch issue 172668.
        let printed = [
            "0SEND_F0 2RECV_F0 0SEND_F1 2RECV_F1 2SEND_F0 2SEND_F1 2RECV_B0 2SEND_B0 2RECV_B1 2SEND_B1 0RECV_B0 0RECV_B1",
            "1RECV_F0 1SEND_F0 1RECV_F1 1SEND_F1 3RECV_F0 3RECV_F1 3SEND_B0 1RECV_B0 3SEND_B1 1RECV_B1 1SEND_B0 1SEND_B1",
        ];
        let ours = lowered(ROWS, Receives::FrontLoaded).map(|row| row.join(" "));
        assert_eq!(ours, printed);
    }

    #[test]
    fn just_in_time_is_before_the_user() {
        let ours = lowered(ROWS, Receives::JustInTime).map(|row| row.join(" "));
        assert_eq!(
            ours[0],
            "0SEND_F0 0SEND_F1 2RECV_F0 2SEND_F0 2RECV_F1 2SEND_F1 2RECV_B0 2SEND_B0 2RECV_B1 2SEND_B1 0RECV_B0 0RECV_B1"
        );
    }
}
