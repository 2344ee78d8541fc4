//! The communication queues of a delivery that is not one-sided, as the local link keeps them.
//!
//! Data itself goes the one-sided way, into slots that no timing can overwrite; the queues decide when a message counts as
//! arrived. They are a table in the memory that all devices share, threads or ranks, which whoever makes progress advances: the
//! device whose op has ended, or which has used a message. Queues run on from step to step: an entry of the next step follows
//! the last of this one.

use super::arena::{Dealer, Region};
use super::heap::Heap;
use super::signal::{Aborted, Patience};
use crate::deadlock::Party;
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::lowering::{Entry, Lowering};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The queues of all devices.
#[derive(Debug)]
pub struct CommunicationQueues {
    lowering: Lowering,
    /// Slots of a channel, under buffered delivery.
    slots: Option<u64>,
    /// Which of this process's threads may ask for the table.
    turn: Mutex<()>,
    /// Whether a thread of some process has the table.
    taken: Region,
    /// By queue: entries done since the session began.
    done: Region,
    /// By message: steps in which it has been made.
    made: Region,
    /// By channel: messages that have arrived and are not yet used.
    held: Region,
}

/// The table as whoever has it sees it. What is written here is seen by who has it next.
struct State<'a> {
    queues: &'a CommunicationQueues,
    heap: &'a Heap,
    /// None for one who only looks.
    turn: Option<MutexGuard<'a, ()>>,
}

impl Drop for State<'_> {
    fn drop(&mut self) {
        if self.turn.is_some() {
            self.heap.arena().word(self.queues.taken).store(0, Ordering::Release);
        }
    }
}

impl State<'_> {
    fn word(&self, table: Region, index: usize) -> &AtomicU64 {
        self.heap.arena().word(table.word(index))
    }

    fn get(&self, table: Region, index: usize) -> u64 {
        self.word(table, index).load(Ordering::Relaxed)
    }

    fn add(&self, table: Region, index: usize) {
        self.word(table, index).fetch_add(1, Ordering::Relaxed);
    }
}

impl CommunicationQueues {
    /// The queues of `graph` under `delivery`; `None` under one-sided delivery, which needs none.
    pub fn new(dealer: &mut Dealer, graph: &TaskGraph, delivery: Delivery) -> Option<CommunicationQueues> {
        let slots = match delivery {
            Delivery::OneSided => return None,
            Delivery::Buffered(slots) => Some(u64::from(slots)),
            Delivery::Channel(_) => None,
        };
        let lowering = Lowering::new(graph, delivery);
        let taken = dealer.word();
        let mut table = |length: usize| dealer.region(length * size_of::<AtomicU64>());
        let (done, made, held) = (table(lowering.queues().len()), table(graph.len()), table(lowering.channels()));
        Some(CommunicationQueues { lowering, slots, turn: Mutex::new(()), taken, done, made, held })
    }

    /// Takes the table, whichever process has it. One that died with it is noticed by who watches over the step.
    fn lock<'a>(&'a self, heap: &'a Heap, watch: &impl Patience) -> Result<State<'a>, Aborted> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = heap.arena().word(self.taken);
        while taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if watch.is_aborted() {
                return Err(Aborted);
            }
            std::thread::yield_now();
        }
        Ok(State { queues: self, heap, turn: Some(turn) })
    }

    /// Op number `message` has made its output, which another device waits for: the messages that arrive thereby, each with
    /// its step.
    pub fn post(
        &self,
        heap: &Heap,
        watch: &impl Patience,
        graph: &TaskGraph,
        message: usize,
    ) -> Result<Vec<(usize, u64)>, Aborted> {
        let state = self.lock(heap, watch)?;
        state.add(self.made, message);
        let sends = self.lowering.route(graph.op(message)).map(|route| route.send);
        Ok(sends.map_or_else(Vec::new, |queue| self.advance(graph, &state, queue)))
    }

    /// The output of op number `message` has been used: the messages that arrive thereby, each with its step.
    pub fn release(
        &self,
        heap: &Heap,
        watch: &impl Patience,
        graph: &TaskGraph,
        message: usize,
    ) -> Result<Vec<(usize, u64)>, Aborted> {
        let Some(route) = self.lowering.route(graph.op(message)).filter(|_| self.slots.is_some()) else {
            return Ok(Vec::new());
        };
        let state = self.lock(heap, watch)?;
        state.word(self.held, route.channel).fetch_sub(1, Ordering::Relaxed);
        Ok(self.advance(graph, &state, route.send))
    }

    /// Completes what can be completed now that something changed for `queue`.
    fn advance(&self, graph: &TaskGraph, state: &State<'_>, queue: usize) -> Vec<(usize, u64)> {
        let mut arrived = Vec::new();
        let mut look = vec![queue];
        while let Some(queue) = look.pop() {
            while let Some((message, step, queues)) = self.completable(graph, state, queue) {
                queues.iter().for_each(|&queue| state.add(self.done, queue));
                look.extend(queues.into_iter().filter(|&other| other != queue));
                if let (Some(_), Some(route)) = (self.slots, self.lowering.route(graph.op(message))) {
                    state.add(self.held, route.channel);
                }
                arrived.push((message, step));
            }
        }
        arrived
    }

    /// The message at the head of `queue`, if its transfer can be completed, its step, and the queues that it leaves then.
    fn completable(&self, graph: &TaskGraph, state: &State<'_>, queue: usize) -> Option<(usize, u64, Vec<usize>)> {
        let (entry, step) = self.head(state, queue)?;
        let message = entry.message();
        let route = self.lowering.route(graph.op(message))?;
        let made = state.get(self.made, message) > step;
        match self.slots {
            Some(slots) => (made && state.get(self.held, route.channel) < slots).then(|| (message, step, vec![queue])),
            None => {
                let other = if entry.is_receive() { route.send } else { route.receive };
                let meets = self.head(state, other) == Some((entry.partner(), step));
                (made && meets).then(|| (message, step, vec![queue, other]))
            }
        }
    }

    /// The entry at the head of `queue` and the step that it belongs to, from 0.
    fn head(&self, state: &State<'_>, queue: usize) -> Option<(Entry, u64)> {
        let entries = &self.lowering.queues()[queue].entries;
        let (length, done) = (entries.len() as u64, state.get(self.done, queue));
        (length > 0).then(|| (entries[(done % length) as usize], done / length))
    }

    /// What stands at the heads of the queues in `step`, for the report of a hang: of a table that somebody may have died with.
    pub fn report(&self, heap: &Heap, graph: &TaskGraph, step: u64) -> String {
        let (state, mut text) = (State { queues: self, heap, turn: None }, String::new());
        for (number, queue) in self.lowering.queues().iter().enumerate() {
            let Some((entry, _)) = self.head(&state, number).filter(|&(_, of)| of <= step) else { continue };
            let (queue, head) = (queue.name(), entry.name(graph));
            let party = Party::Queue { device: self.lowering.queues()[number].device, queue, head };
            text += &format!("  {party}\n");
        }
        text
    }
}
