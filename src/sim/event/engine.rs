//! The general engine: ops and messages that wait for processors, queues, slots, partners and links.

use super::host_links::CopyState;
use super::messages::{EventRule, MessageLane, Messages, NONE};
use super::prepared::Prepared;
use super::sharing::{Grain, LinkState};
use super::{Observer, Put};
use crate::gates::Gates;
use crate::rules::{first_share, pair_duration, pairs};
use pipesim_schedule::metrics::Activity;
use pipesim_schedule::op::Op;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Not yet.
pub(super) const NEVER: u64 = u64::MAX;

/// Kinds of events besides ends of ops, in the order in which events of one time and device are handled; an op's end comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventKind {
    /// A message has left its link.
    Through,
    /// A message arrives at its receiver.
    Arrival,
    /// The second output of a pair can be sent, after the overhead of the first.
    Ready,
    /// A device is free again after host overhead or a put.
    Free,
    /// A copy to or from the host has ended.
    Copied,
    /// A result has gone to all devices.
    Met,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimedEvent {
    time: u64,
    /// 8 * device + kind.
    place: u64,
    /// Link or message.
    which: u32,
    /// For [`EventKind::Through`] on shared links: void unless it is the link's current one.
    turn: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DevicePhase {
    /// Waits for the input of its next op, or has none.
    Idle,
    /// Runs an op or a pair.
    Running,
    /// Busy with the overhead or the put of an op that ended.
    Held,
}

/// Progress of a device through its program.
#[derive(Clone, Debug)]
pub(super) struct DeviceState {
    next: usize,
    end: usize,
    state: DevicePhase,
    free: u64,
    /// When compute was free, and when collectives let it continue.
    gate: (u64, u64),
    start: u64,
    /// Durations of the running op alone, or of both ops of a pair.
    alone: [u64; 2],
    /// Ended ops whose outputs are still to be put, one after the other.
    to_put: Range<usize>,
    /// Remaining time for which it sums gradients before its next op.
    pause: u64,
    /// Grains left of the running op at time `since`, and its speed in grains per tick.
    left: u128,
    since: u64,
    speed: u64,
    processor: Option<usize>,
    /// Number of messages in transit from or to it.
    pub(super) transfers: u32,
    activity: Activity,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MessageProgress {
    pub(super) queued: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct QueueState {
    pub(super) next: u32,
    pub(super) end: u32,
    /// Whether its head is in transit, if sends go into slots.
    pub(super) busy: bool,
    /// Number of messages of the group at its head that have not arrived.
    pub(super) left: u32,
}

impl QueueState {
    pub(super) fn new(messages: &Messages, next: u32, end: u32) -> QueueState {
        let left = if next < end { messages.group_end(next) - next } else { 0 };
        QueueState { next, end, busy: false, left }
    }
}

pub(super) struct Simulation<'a, L, O> {
    pub(super) prepared: &'a Prepared<'a>,
    pub(super) messages: &'a Messages,
    pub(super) lasts: L,
    pub(super) observer: &'a mut O,
    pub(super) now: u64,
    pub(super) grain: Grain,
    pub(super) ends: Tournament,
    pub(super) events: BinaryHeap<Reverse<TimedEvent>>,
    pub(super) pairs: bool,
    pub(super) devices: Vec<DeviceState>,
    gates: Option<Gates<'a>>,
    /// By processor: number of its devices that run an op.
    pub(super) running: Vec<u32>,
    pub(super) progress: Vec<MessageProgress>,
    pub(super) queues: Vec<QueueState>,
    /// By channel: number of messages that hold a slot.
    pub(super) held: Vec<u32>,
    pub(super) links: Vec<LinkState>,
    pub(super) copies: CopyState,
}

impl<'a, L: Fn(usize, u32, u64, u64) -> u64, O: Observer> Simulation<'a, L, O> {
    pub(super) fn new(prepared: &'a Prepared<'a>, messages: &'a Messages, lasts: L, observer: &'a mut O) -> Self {
        let (schedule, config) = (prepared.graph.schedule(), prepared.config);
        let device = |device: u32| DeviceState {
            next: schedule.range(device).start,
            end: schedule.range(device).end,
            state: if prepared.begin[device as usize] > 0 { DevicePhase::Held } else { DevicePhase::Idle },
            free: prepared.begin[device as usize],
            gate: (0, 0),
            start: 0,
            alone: [0; 2],
            to_put: 0..0,
            pause: 0,
            left: 0,
            since: 0,
            speed: 0,
            processor: config.processors.iter().position(|processor| processor.devices.contains(&device)),
            transfers: 0,
            activity: Activity { first_start: NEVER, ..Activity::default() },
        };
        Simulation {
            prepared,
            messages,
            lasts,
            observer,
            now: 0,
            grain: Grain::of(config),
            ends: Tournament::new(schedule.devices() as usize),
            events: BinaryHeap::with_capacity(4 * schedule.devices() as usize),
            pairs: schedule.has_pairs(),
            devices: (0..schedule.devices()).map(device).collect(),
            gates: Gates::new(prepared.graph, prepared.extras.collectives.as_ref()),
            running: vec![0; config.processors.len()],
            progress: vec![MessageProgress { queued: NEVER, start: NEVER, end: NEVER }; messages.all.len()],
            queues: messages.starts.windows(2).map(|w| QueueState::new(messages, w[0], w[1])).collect(),
            held: vec![0; messages.channels],
            links: vec![LinkState::default(); messages.links],
            copies: CopyState::new(prepared.graph),
        }
    }

    /// Runs to the end; `None` for a deadlock.
    pub(super) fn run(mut self) -> Option<Vec<Activity>> {
        for device in 0..self.devices.len() as u32 {
            let DeviceState { next, end, .. } = self.devices[device as usize];
            self.devices[device as usize].next = self.skip_copies(next, end);
            match self.passed(device, self.prepared.begin[device as usize]) {
                0 => self.try_start(device),
                begin => {
                    self.devices[device as usize].state = DevicePhase::Held;
                    self.schedule(begin, device, EventKind::Free, 0, 0);
                }
            }
        }
        (0..self.queues.len()).for_each(|queue| self.advance(queue));
        self.start_first_copies();
        loop {
            let (time, device) = self.ends.first();
            match self.events.peek() {
                Some(Reverse(event)) if (event.time, event.place >> 3) <= (time, u64::from(device)) => {
                    let event = *event;
                    self.events.pop();
                    self.now = event.time;
                    self.handle(event);
                }
                _ if time == NEVER => break,
                _ => {
                    self.now = time;
                    self.finish(device);
                }
            }
        }
        if (0..self.devices.len() as u32).any(|device| self.next_op(device).is_some()) {
            return None;
        }
        Some(self.devices.iter().map(|device| device.activity.counted(device.free)).collect())
    }

    fn handle(&mut self, TimedEvent { place, which, turn, .. }: TimedEvent) {
        const THROUGH: u64 = EventKind::Through as u64;
        const ARRIVAL: u64 = EventKind::Arrival as u64;
        const READY: u64 = EventKind::Ready as u64;
        const COPIED: u64 = EventKind::Copied as u64;
        const MET: u64 = EventKind::Met as u64;
        match place & 7 {
            THROUGH => self.link_event(which, turn),
            ARRIVAL => self.arrive(which),
            READY => self.enqueue(which),
            COPIED => self.end_copy(which as usize),
            MET => self.count_met(which as usize),
            _ => self.put_next((place >> 3) as u32),
        }
    }

    pub(super) fn schedule(&mut self, time: u64, device: u32, kind: EventKind, which: u32, turn: u32) {
        self.events.push(Reverse(TimedEvent { time, place: u64::from(device) << 3 | kind as u64, which, turn }));
    }

    pub(super) fn rule(&self, index: usize) -> &EventRule {
        let graph = self.prepared.graph;
        &self.prepared.rules[graph.schedule().class(graph.op(index))]
    }

    pub(super) fn lane(&self, message: u32) -> &'a MessageLane {
        self.messages.lane(message)
    }
}

// Compute.
impl<L: Fn(usize, u32, u64, u64) -> u64, O: Observer> Simulation<'_, L, O> {
    pub(super) fn next_op(&self, device: u32) -> Option<usize> {
        let DeviceState { next, end, .. } = self.devices[device as usize];
        (next < end).then_some(next)
    }

    fn op(&self, index: usize) -> Op {
        self.prepared.graph.op(index)
    }

    /// Returns 2 if op number `index` is the first of a pair that runs as one op, else 1.
    fn width(&self, index: usize) -> usize {
        let whole = || self.prepared.graph.overlap().starts_together();
        if self.pairs && whole() && self.op(index).opens_pair() { 2 } else { 1 }
    }

    /// Returns the messages that the next op or pair of a device waits for.
    fn inputs(&self, device: u32) -> impl Iterator<Item = u32> {
        let next = self.devices[device as usize].next;
        self.messages.input[next..next + self.width(next)].iter().copied().filter(|&message| message != NONE)
    }

    /// Whether the activations of the next op or pair of a device are back from the host.
    fn has_copies_back(&self, device: u32) -> bool {
        let next = self.devices[device as usize].next;
        (next..next + self.width(next)).all(|op| self.copies.inputs_ready(op))
    }

    /// Starts the next op of a device if it can start.
    pub(super) fn try_start(&mut self, device: u32) {
        if self.devices[device as usize].state != DevicePhase::Idle
            || self.next_op(device).is_none()
            || self.inputs(device).any(|message| self.progress[message as usize].end == NEVER)
            || !self.has_copies_back(device)
        {
            return;
        }
        let (next, now) = (self.devices[device as usize].next, self.now);
        let (op, microbatches) = (self.op(next), self.prepared.graph.schedule().microbatches);
        let duration = self.prepared.extras.vocabulary.duration(op, microbatches, self.rule(next).duration);
        let first = (self.lasts)(next, device, now, duration);
        let mut alone = [first, 0];
        let mut whole = first;
        if self.width(next) == 2 {
            let (graph, extras) = (self.prepared.graph, &self.prepared.extras);
            let overlap = graph.overlap();
            let from = if overlap.is_shorter() { now } else { now + first };
            alone[1] = (self.lasts)(next + 1, device, from, self.rule(next + 1).duration);
            let streams = pairs(graph, extras).and_then(|pairs| pairs.of(self.op(next), self.op(next + 1)));
            whole = pair_duration(overlap, streams, first, alone[1]);
        }
        let left = self.grain.work(whole);
        let arrived = self.inputs(device).map(|message| self.progress[message as usize].end).max().unwrap_or(0);
        let state = &mut self.devices[device as usize];
        let (ungated, gated) = std::mem::take(&mut state.gate);
        state.activity.gated += gated.saturating_sub(ungated.max(arrived));
        (state.state, state.start, state.alone) = (DevicePhase::Running, now, alone);
        (state.left, state.since, state.speed) = (left, now, 0);
        self.change_running(device, 1);
        (next..next + self.width(next)).for_each(|op| self.note_begun(op));
    }

    /// Counts an op of `device` that started (1) or ended (-1).
    fn change_running(&mut self, device: u32, by: i32) {
        let Some(processor) = self.devices[device as usize].processor else {
            return self.set_speed(device);
        };
        let prepared = self.prepared;
        let before = self.running[processor];
        let after = before.saturating_add_signed(by);
        self.running[processor] = after;
        let processor = &prepared.config.processors[processor];
        if before.max(after) > processor.cores || !processor.contention.is_empty() {
            processor.devices.iter().for_each(|&device| self.set_speed(device));
        } else {
            self.set_speed(device);
        }
    }

    /// Updates the speed of the running op of `device`.
    pub(super) fn set_speed(&mut self, device: u32) {
        let config = self.prepared.config;
        let state = &self.devices[device as usize];
        if state.state != DevicePhase::Running {
            return;
        }
        let (mut share, mut of) = (1, 1);
        if let Some(number) = state.processor {
            (share, of) = config.processors[number].share(self.running[number]);
        }
        if state.transfers > 0 {
            (share, of) = (share * 1000, of * u64::from(config.overlap_per_mille));
        }
        let (speed, now) = (self.grain.speed(share, of), self.now);
        let state = &mut self.devices[device as usize];
        if speed == state.speed {
            return;
        }
        state.left = state.left.saturating_sub(u128::from(now - state.since) * u128::from(state.speed));
        (state.since, state.speed) = (now, speed);
        let ticks = match u64::try_from(state.left) {
            Ok(left) => left.div_ceil(speed),
            Err(_) => state.left.div_ceil(u128::from(speed)) as u64,
        };
        self.ends.set(device, now + ticks);
    }

    /// Ends the running op or pair of `device`.
    fn finish(&mut self, device: u32) {
        let now = self.now;
        let state = &mut self.devices[device as usize];
        let (index, start, alone) = (state.next, state.start, state.alone);
        state.activity.ran(start, now);
        state.state = DevicePhase::Held;
        let width = self.width(index);
        let end = self.devices[device as usize].end;
        self.devices[device as usize].next = self.skip_copies(index + width, end);
        if width == 2 {
            let middle = start + first_share(now - start, alone[0], alone[1]);
            self.observer.op(index, start, middle);
            self.observer.op(index + 1, middle, now);
        } else {
            self.observer.op(index, start, now);
        }
        self.change_running(device, -1);
        (index..index + width).for_each(|op| self.note_ended(op));
        (index..index + width).for_each(|op| self.release_slot(op));
        let opens = self.op(index).opens_pair();
        let closes = self.pairs && width == 1 && self.prepared.graph.pair(index).is_some();
        self.ends.set(device, NEVER);
        let ended = match () {
            () if width == 2 => index..index + 2,
            () if closes && !opens => index - 1..index + 1,
            () if opens => index..index,
            () => index..index + 1,
        };
        let pause = ended.clone().filter_map(|op| self.prepared.extras.pauses.get(op)).sum();
        if self.prepared.config.network.put == Put::Holding {
            let state = &mut self.devices[device as usize];
            (state.to_put, state.pause) = (ended, pause);
            return self.put_next(device);
        }
        let free = self.hand_on(ended) + pause;
        let free = self.passed(device, free);
        self.devices[device as usize].free = free;
        if free > now {
            self.schedule(free, device, EventKind::Free, 0, 0);
        } else {
            self.devices[device as usize].state = DevicePhase::Idle;
            self.try_start(device);
        }
    }

    /// Puts the next output of the ended ops of a device that puts hold up; frees the device after the last.
    fn put_next(&mut self, device: u32) {
        let now = self.now;
        while let Some(index) = self.devices[device as usize].to_put.next() {
            match (self.messages.output[index], self.rule(index).after) {
                (NONE, 0) => {}
                (NONE, after) => return self.schedule(now + after, device, EventKind::Free, 0, 0),
                (message, _) => return self.enqueue(message),
            }
        }
        let pause = std::mem::take(&mut self.devices[device as usize].pause);
        let free = if pause > 0 { now + pause } else { self.passed(device, now) };
        if free > now {
            return self.schedule(free, device, EventKind::Free, 0, 0);
        }
        let state = &mut self.devices[device as usize];
        (state.state, state.free) = (DevicePhase::Idle, now);
        self.try_start(device);
    }

    /// Issues the collectives before the next op of a device that is free at `free`; returns when they let it continue.
    fn passed(&mut self, device: u32, free: u64) -> u64 {
        let state = &mut self.devices[device as usize];
        let Some(gates) = &mut self.gates else { return free };
        let passed = gates.pass(device, state.next, free, |_| ());
        // The same wait counts once, from its begin.
        if state.gate.1 < free || passed > free {
            state.gate = (free, passed);
        }
        if state.next == state.end {
            state.activity.gated += passed - free;
        }
        passed
    }

    /// Sends the outputs of ops that ended together, each after the overhead of the one before. Returns when the device is free.
    fn hand_on(&mut self, ops: Range<usize>) -> u64 {
        let mut time = self.now;
        for index in ops {
            let message = self.messages.output[index];
            if message != NONE && time > self.now {
                self.schedule(time, self.lane(message).from, EventKind::Ready, message, 0);
            } else if message != NONE {
                self.enqueue(message);
            }
            time += self.rule(index).after;
        }
        time
    }
}

/// The earliest of the devices' next ends: each inner node holds the earlier of its two children, by (time, device).
pub(super) struct Tournament {
    /// Number of leaves, a power of two; node n has the children 2n and 2n + 1.
    leaves: usize,
    nodes: Vec<(u64, u32)>,
}

impl Tournament {
    fn new(devices: usize) -> Tournament {
        let leaves = devices.next_power_of_two();
        Tournament { leaves, nodes: vec![(NEVER, u32::MAX); 2 * leaves] }
    }

    /// Returns the earliest end; [`NEVER`] if no op runs.
    fn first(&self) -> (u64, u32) {
        self.nodes[1]
    }

    fn set(&mut self, device: u32, time: u64) {
        let mut node = self.leaves + device as usize;
        self.nodes[node] = (time, device);
        while node > 1 {
            // The left subtree has the smaller device numbers, so that a tie needs no other rule.
            let best = self.nodes[node].min(self.nodes[node ^ 1]);
            node >>= 1;
            if self.nodes[node] == best {
                return; // nothing changes from here up
            }
            self.nodes[node] = best;
        }
    }
}
