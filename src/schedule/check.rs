//! Checker: whether a schedule can run under a delivery, and the cycle of waits if it cannot.
//!
//! Each device and each communication queue is a party that processes its entries in a fixed order and waits if the next one is not
//! possible yet. Progress of one party never takes away another's progress, so the final state does not depend on the order of events:
//! running each party as far as possible, and waking those that its progress may help, is an exact proof in time linear in the ops.
//! Sums and broadcasts of a vocabulary that all devices share run on streams of their own, so only ops wait for them, under every delivery.
//! Under one-sided delivery only cycles of the task graph could block, and a [`TaskGraph`] has none.

use crate::deadlock::{Awaited, Deadlock, Party, Wait};
use crate::delivery::{ChannelOptions, Delivery, PyTorch, QueueCount, Receives};
use crate::graph::TaskGraph;
use crate::lowering::{Entry, Lowering, inputs, outputs};
use fixedbitset::FixedBitSet;

/// Returns the deliveries that `check` reports.
pub fn standard_deliveries() -> Vec<Delivery> {
    let channel = |queues, receives| Delivery::Channel(ChannelOptions { queues, receives });
    let mut list = vec![Delivery::OneSided, Delivery::Buffered(1), Delivery::Buffered(2)];
    for queues in [QueueCount::One, QueueCount::PerPeer, QueueCount::PerDirection] {
        list.extend([Receives::JustInTime, Receives::FrontLoaded].map(|receives| channel(queues, receives)));
    }
    list.extend([
        Delivery::Batched,
        Delivery::Megatron,
        Delivery::PyTorch(PyTorch::Newest),
        Delivery::PyTorch(PyTorch::PerEdge),
    ]);
    list
}

/// Checks that `graph` completes under `delivery`, whatever the durations of ops and transfers.
///
/// # Errors
/// A cycle of devices and queues that wait for each other.
pub fn check(graph: &TaskGraph, delivery: Delivery) -> Result<(), Deadlock> {
    ProtocolState::new(graph, &Lowering::new(graph, delivery)).prove(&format!("{delivery} delivery"))
}

/// [`check()`] under one-sided delivery with room for `slots` messages per channel.
pub fn check_slots(graph: &TaskGraph, slots: u32) -> Result<(), Deadlock> {
    let under = format!("one-sided delivery with room for {slots} in a channel");
    ProtocolState::new(graph, &Lowering::by_channel(graph, slots)).prove(&under)
}

/// Returns the smallest k for which `graph` completes under buffered(k). More slots never hurt, and with a slot for each micro-batch no
/// send waits for a slot.
pub fn fewest_slots(graph: &TaskGraph) -> u32 {
    let survives = |slots| check(graph, Delivery::Buffered(slots)).is_ok();
    let (mut fails, mut runs) = (0, 1_u32);
    while !survives(runs) && runs < graph.schedule().microbatches {
        (fails, runs) = (runs, runs.saturating_mul(2));
    }
    while runs - fails > 1 {
        let middle = fails + (runs - fails) / 2;
        if survives(middle) { runs = middle } else { fails = middle }
    }
    runs
}

/// The state of all parties, numbered: first the devices, then the queues.
struct ProtocolState<'a> {
    graph: &'a TaskGraph,
    lowering: &'a Lowering,
    /// By device: its first op that has not run.
    next: Vec<usize>,
    /// By queue: number of groups done.
    done: Vec<usize>,
    /// Messages whose send and receive have met.
    met: FixedBitSet,
    /// Messages that have arrived: all entries of the receiver's group have met.
    arrived: FixedBitSet,
    /// By channel: number of messages that have arrived and are unused.
    full: Vec<u32>,
    /// Parties that may make progress, as a stack and as a set.
    awake: Vec<usize>,
    is_awake: FixedBitSet,
}

impl<'a> ProtocolState<'a> {
    fn new(graph: &'a TaskGraph, lowering: &'a Lowering) -> ProtocolState<'a> {
        let devices = graph.schedule().devices();
        let next: Vec<usize> = (0..devices).map(|device| graph.schedule().range(device).start).collect();
        let parties = next.len() + lowering.queues().len();
        ProtocolState {
            graph,
            lowering,
            next,
            done: vec![0; lowering.queues().len()],
            met: FixedBitSet::with_capacity(graph.len()),
            arrived: FixedBitSet::with_capacity(graph.len()),
            full: vec![0; lowering.channels()],
            awake: (0..parties).rev().collect(),
            is_awake: (0..parties).collect(),
        }
    }

    /// Runs all parties as far as possible.
    fn prove(mut self, under: &str) -> Result<(), Deadlock> {
        let schedule = self.graph.schedule();
        if self.lowering.queues().is_empty() {
            return Ok(());
        }
        self.run();
        let complete = (0..schedule.devices()).all(|d| self.next[d as usize] == schedule.range(d).end);
        if complete { Ok(()) } else { Err(self.deadlock(under)) }
    }

    fn wake(&mut self, party: usize) {
        if !self.is_awake.put(party) {
            self.awake.push(party);
        }
    }

    fn wake_queue(&mut self, queue: usize) {
        self.wake(self.next.len() + queue);
    }

    fn run(&mut self) {
        while let Some(party) = self.awake.pop() {
            self.is_awake.remove(party);
            match party.checked_sub(self.next.len()) {
                None => self.run_device(party),
                Some(queue) => self.run_queue(queue),
            }
        }
    }

    /// Returns the op whose end is the end of op number `index`: the second of an overlapped pair, else itself.
    fn last(&self, index: usize) -> usize {
        self.graph.pair(index).map_or(index, |(_, second)| second)
    }

    /// Whether op number `index` has ended, so that its output can leave.
    fn has_ended(&self, index: usize) -> bool {
        self.last(index) < self.next[self.graph.device_of(index) as usize]
    }

    /// Returns a message that op number `index` waits for.
    fn missing(&self, index: usize) -> Option<usize> {
        let crosses = |message: &usize| self.lowering.route(self.graph.op(*message)).is_some();
        inputs(self.graph, index).into_iter().flatten().filter(crosses).find(|&message| !self.arrived.contains(message))
    }

    /// Returns an op on another device, besides those that make messages, that op number `index` waits for: of a vocabulary that all
    /// devices share.
    fn unmet(&self, index: usize) -> Option<usize> {
        self.graph.waits(index).iter().map(|wait| wait.op as usize).find(|&awaited| !self.has_ended(awaited))
    }

    fn run_device(&mut self, device: usize) {
        let end = self.graph.schedule().range(device as u32).end;
        while self.next[device] < end {
            let index = self.next[device];
            if self.missing(index).is_some() || self.unmet(index).is_some() {
                return;
            }
            self.next[device] += 1;
            self.end(index);
        }
    }

    /// Handles the end of op number `index`: the slot of its input is free, and its output can leave.
    fn end(&mut self, index: usize) {
        let used = self.graph.upstream(index).and_then(|message| self.lowering.route(self.graph.op(message)));
        if let Some(route) = used.filter(|_| self.lowering.slots().is_some()) {
            self.full[route.channel] -= 1;
            self.wake_queue(route.send);
        }
        let graph = self.graph;
        graph.waiting(index).iter().for_each(|user| self.wake(graph.device_of(user.op as usize) as usize));
        for message in outputs(self.graph, index).into_iter().flatten() {
            if let Some(route) = self.lowering.route(self.graph.op(message)) {
                self.wake_queue(route.send);
            }
        }
    }

    /// Returns the group at the head of a queue; empty at its end.
    fn head(&self, queue: usize) -> &'a [Entry] {
        let (lowering, done) = (self.lowering, self.done[queue]);
        let queue = &lowering.queues()[queue];
        if done < queue.groups() { queue.group(done) } else { &[] }
    }

    /// Returns a send of a group whose message is not made yet: until then the group is not posted.
    fn unmade(&self, group: &[Entry]) -> Option<usize> {
        group
            .iter()
            .filter(|entry| !entry.is_receive())
            .map(|entry| entry.message())
            .find(|&made| !self.has_ended(made))
    }

    fn run_queue(&mut self, queue: usize) {
        match self.lowering.slots() {
            Some(slots) => self.run_sends(queue, slots),
            None => self.run_meetings(queue),
        }
    }

    /// Runs a queue of sends that only need a free slot.
    fn run_sends(&mut self, queue: usize, slots: u32) {
        while let Some(message) = self.head(queue).first().map(|entry| entry.message()) {
            let Some(route) = self.lowering.route(self.graph.op(message)) else { return };
            if !self.has_ended(message) || self.full[route.channel] >= slots {
                return;
            }
            self.done[queue] += 1;
            self.full[route.channel] += 1;
            self.arrive(message);
        }
    }

    /// Runs a queue of groups, which complete when all their entries have met their partners.
    fn run_meetings(&mut self, queue: usize) {
        loop {
            let group = self.head(queue);
            if group.is_empty() || self.unmade(group).is_some() {
                return;
            }
            for entry in group {
                let Some(partner) = self.lowering.partner_queue(self.graph, *entry) else { return };
                let other = self.head(partner);
                if !self.met.contains(entry.message())
                    && other.contains(&entry.partner())
                    && self.unmade(other).is_none()
                {
                    self.met.insert(entry.message());
                    self.wake_queue(partner);
                }
            }
            if !group.iter().all(|entry| self.met.contains(entry.message())) {
                return;
            }
            self.done[queue] += 1;
            group.iter().filter(|entry| entry.is_receive()).for_each(|entry| self.arrive(entry.message()));
        }
    }

    fn arrive(&mut self, message: usize) {
        self.arrived.insert(message);
        if let Some(user) = self.graph.consumer(message) {
            self.wake(self.graph.device_of(user) as usize);
        }
    }

    /// Returns the cycle of waits of a final state.
    fn deadlock(&self, under: &str) -> Deadlock {
        let is_stuck = |device: &usize| self.next[*device] < self.graph.schedule().range(*device as u32).end;
        let mut path: Vec<(usize, Awaited)> = Vec::new();
        let mut at = FixedBitSet::with_capacity(self.next.len() + self.done.len());
        let mut party = (0..self.next.len()).find(is_stuck).unwrap_or(0);
        while !at.put(party) {
            let (awaited, next) = self.awaits(party);
            path.push((party, awaited));
            party = next;
        }
        let start = path.iter().position(|&(passed, _)| passed == party).unwrap_or(0);
        let circle = path.split_off(start);
        let next = circle.iter().cycle().skip(1);
        let wait = |((party, awaited), (next, _)): (&(usize, Awaited), &(usize, Awaited))| {
            let (party, on) = (self.party(*party), self.party(*next));
            Wait { party, awaited: awaited.clone(), on, seconds: None }
        };
        let waits: Vec<Wait> = circle.iter().zip(next).map(wait).collect();
        let device = waits[0].party.device();
        let range = self.graph.schedule().range(device);
        let place = self.next[device as usize];
        let grid = self.graph.schedule().around(device, (place < range.end).then(|| place - range.start));
        Deadlock { under: under.to_string(), waits, grid }
    }

    fn party(&self, party: usize) -> Party {
        match party.checked_sub(self.next.len()) {
            None => {
                let index = self.next[party];
                let number = index - self.graph.schedule().range(party as u32).start;
                Party::Device { device: party as u32, number, op: Some(self.graph.op(index)) }
            }
            Some(number) => {
                let queue = &self.lowering.queues()[number];
                let head = if self.head(number).is_empty() {
                    String::new()
                } else {
                    queue.group_name(self.graph, self.done[number])
                };
                Party::Queue { device: queue.device, queue: queue.name(), head }
            }
        }
    }

    /// Returns what a stuck party waits for, and the party that would have to do it.
    fn awaits(&self, party: usize) -> (Awaited, usize) {
        let name = |entry: Entry| Awaited::Entry(entry.name(self.graph));
        let Some(queue) = party.checked_sub(self.next.len()) else {
            let Some(message) = self.missing(self.next[party]) else {
                let awaited = self.unmet(self.next[party]).expect("only a missing input or op stops a device");
                return (Awaited::Op(self.graph.op(awaited)), self.graph.device_of(awaited) as usize);
            };
            let route = self.lowering.route(self.graph.op(message)).expect("it comes from another device");
            let buffered = self.lowering.slots().is_some();
            let entry = if buffered { Entry::send(message) } else { Entry::receive(message) };
            return (name(entry), self.next.len() + route.receive);
        };
        let group = self.head(queue);
        let op = |message: usize| (Awaited::Op(self.graph.op(message)), self.graph.device_of(message) as usize);
        let entry =
            *group.iter().find(|entry| !self.met.contains(entry.message())).expect("a group is left for one entry");
        if let Some(partner) = self.lowering.partner_queue(self.graph, entry) {
            let other = self.head(partner);
            if !other.contains(&entry.partner()) {
                return (name(entry.partner()), self.next.len() + partner);
            }
            return op(self.unmade(group).or(self.unmade(other)).expect("two posted groups meet"));
        }
        let message = entry.message();
        if !self.has_ended(message) {
            return op(message);
        }
        let user = self.graph.consumer(message).expect("every message that is sent is used");
        let device = self.graph.device_of(user);
        (Awaited::Slot(self.graph.op(self.next_to_free(message, device))), device as usize)
    }

    /// Returns the next op of `device` that frees a slot of the channel of `message`.
    fn next_to_free(&self, message: usize, device: u32) -> usize {
        let channel = |message: usize| self.lowering.route(self.graph.op(message)).map(|route| route.channel);
        let frees = |index: &usize| {
            let used = self.graph.upstream(*index);
            used.is_some_and(|used| channel(used) == channel(message) && self.arrived.contains(used))
        };
        (self.next[device as usize]..self.graph.schedule().range(device).end)
            .find(frees)
            .expect("the messages of a full channel wait for their ops")
    }
}
