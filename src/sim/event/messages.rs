//! The rules of ops, the messages of a graph, and the queues in which devices send and receive them.

use super::{Config, Put, Scope};
use pipesim_cost::CostTable;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::lowering::Lowering;
use pipesim_schedule::op::Kind;

/// How the ops of one (stage, direction, kind, slice) run and how their output travels, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventRule {
    pub duration: u64,
    /// From an op's end until its device is free again; where its put holds the device up, from the put's end.
    pub after: u64,
    /// How long its message occupies its link; 0 if nothing leaves the device.
    pub transfer: u64,
    /// How long its message travels after that.
    pub latency: u64,
    /// Whether its output leaves the device.
    pub leaves: bool,
    /// The device that uses the output; its own if none does.
    pub consumer: u32,
}

/// Returns the rules by [`class`](pipesim_schedule::schedule::Schedule::class); `None` if a transfer takes longer than the costs allow for it.
pub(super) fn rules(graph: &TaskGraph, costs: &CostTable, config: &Config) -> Option<Vec<EventRule>> {
    let (schedule, placement) = (graph.schedule(), &graph.schedule().placement);
    let mut rules = vec![EventRule::default(); schedule.classes()];
    for op in schedule.op_classes() {
        let (time, rule) = (costs.of(op), &mut rules[schedule.class(op)]);
        (rule.duration, rule.after) = (time.duration, time.after);
        rule.consumer = graph.route(op).consumer;
        rule.leaves = placement.leaves_device(op);
        if rule.leaves {
            (rule.transfer, rule.latency) = (config.network.transfer, time.arrival);
            if config.network.put != Put::Apart {
                rule.latency = rule.latency.checked_sub(rule.transfer)?;
            }
            if config.network.put == Put::Holding {
                rule.after = rule.after.checked_sub(rule.transfer)?;
            }
        }
    }
    Some(rules)
}

pub(super) const NONE: u32 = u32::MAX;

/// The output of an op that is sent to another device.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentOutput {
    pub op: u32,
    /// That op's [`Op::slot`], the index of its lane.
    pub slot: u32,
}

/// The route of messages that ops of one (stage, direction, kind) make.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageLane {
    pub from: u32,
    pub to: u32,
    pub link: u32,
    /// Stage boundary and direction.
    pub channel: u32,
    /// The queue of their sends; [`NONE`] if they are sent at once.
    pub send_queue: u32,
    /// The queue of their receives; [`NONE`] if there are no receives.
    pub receive_queue: u32,
    /// For how long a message occupies its link.
    pub transfer: u64,
    /// For how long it travels after that.
    pub latency: u64,
}

/// One entry of a communication queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueEntry {
    pub message: u32,
    pub receives: bool,
}

/// All messages of a graph, in order of the ops that make them, and their queues.
#[derive(Debug)]
pub(super) struct Messages {
    pub all: Vec<SentOutput>,
    /// By slot of the op that makes them.
    pub lanes: Vec<MessageLane>,
    /// By op: the message that it makes.
    pub output: Vec<u32>,
    /// By op: the message that it uses.
    pub input: Vec<u32>,
    /// The entries of all queues, queue after queue.
    pub entries: Vec<QueueEntry>,
    /// By queue: where its entries start; then the end of the last.
    pub starts: Vec<u32>,
    /// By entry: where its group ends; empty if every entry is a group.
    pub ends: Vec<u32>,
    /// Whether a send completes together with its receive.
    pub meet: bool,
    pub links: usize,
    pub channels: usize,
}

impl Messages {
    /// Creates the messages of `graph` and the queues under `config`.
    pub fn new(graph: &TaskGraph, config: &Config, rules: &[EventRule]) -> Messages {
        let ops = graph.schedule().ops();
        let mut messages = Messages {
            all: Vec::new(),
            lanes: lanes(graph, rules),
            output: vec![NONE; ops.len()],
            input: vec![NONE; ops.len()],
            entries: Vec::new(),
            starts: vec![0],
            ends: Vec::new(),
            meet: false,
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
            messages.all.push(SentOutput { op: index as u32, slot: op.slot() as u32 });
        }
        messages.number_links(config.network.scope);
        messages.fill_queues(graph, config);
        messages
    }

    pub fn lane(&self, message: u32) -> &MessageLane {
        &self.lanes[self.all[message as usize].slot as usize]
    }

    /// Returns the end of the group that begins with entry number `first`.
    pub fn group_end(&self, first: u32) -> u32 {
        self.ends.get(first as usize).copied().unwrap_or(first + 1)
    }

    fn number_links(&mut self, scope: Scope) {
        let key = |lane: &MessageLane| match scope {
            Scope::Pair => (lane.from, lane.to),
            Scope::Egress => (lane.from, 0),
            Scope::Machine => (0, 0),
        };
        let mut keys: Vec<(u32, u32)> = self.lanes.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        for lane in &mut self.lanes {
            lane.link = keys.binary_search(&key(lane)).unwrap_or(0) as u32;
        }
        self.links = keys.len();
    }

    /// Fills the queues. One-sided delivery has one queue per channel if slots are limited, else none.
    fn fill_queues(&mut self, graph: &TaskGraph, config: &Config) {
        let lowering = match config.slots {
            Some(slots) => Lowering::by_channel(graph, slots),
            None => Lowering::new(graph, config.delivery),
        };
        self.meet = lowering.slots().is_none() && !lowering.queues().is_empty();
        let grouped = lowering.queues().iter().any(|queue| queue.groups() < queue.entries.len());
        for queue in lowering.queues() {
            let number = self.starts.len() as u32 - 1;
            for entry in &queue.entries {
                let message = self.output[entry.message()];
                let entry = QueueEntry { message, receives: entry.is_receive() };
                let lane = &mut self.lanes[self.all[message as usize].slot as usize];
                let place = if entry.receives { &mut lane.receive_queue } else { &mut lane.send_queue };
                *place = number;
                self.entries.push(entry);
            }
            for number in (0..queue.groups()).filter(|_| grouped) {
                let group = queue.group(number).len();
                let end = (self.ends.len() + group) as u32;
                self.ends.extend(std::iter::repeat_n(end, group));
            }
            self.starts.push(self.entries.len() as u32);
        }
    }
}

/// Returns the lanes by [`Op::slot`], without links and queues.
fn lanes(graph: &TaskGraph, rules: &[EventRule]) -> Vec<MessageLane> {
    let mut lanes = vec![MessageLane::default(); rules.len()];
    let placement = &graph.schedule().placement;
    for op in placement.op_kinds() {
        let EventRule { consumer: to, transfer, latency, .. } = rules[op.slot()];
        // I and B of a stage fill the same channel.
        let channel = op.of_kind(if op.kind() == Kind::B { Kind::I } else { op.kind() }).slot() as u32;
        let from = placement.device_of(op);
        let (link, send_queue, receive_queue) = (0, NONE, NONE);
        lanes[op.slot()] = MessageLane { from, to, link, channel, send_queue, receive_queue, transfer, latency };
    }
    lanes
}
