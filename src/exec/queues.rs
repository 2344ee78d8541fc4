//! Communication queues, by which the local link emulates a delivery that is not one-sided.
//!
//! Data is still put one-sided, into buffers that no timing can overwrite; the queues decide when a message counts as arrived. They
//! are a table in memory shared by all devices, threads or ranks. A device advances it when its op has ended or it has used a
//! message. Queues continue from step to step: the first entry of the next step follows the last of this one.

use super::arena::{ArenaLayout, Region};
use super::atomic::{AtomicU64, Ordering};
use super::heap::Heap;
use super::signal::{Aborted, WaitPolicy};
use pipesim_schedule::deadlock::Party;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::lowering::{Entry, Lowering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The queues of all devices.
#[derive(Debug)]
pub struct CommunicationQueues {
    lowering: Lowering,
    /// Serializes the threads of this process.
    turn: Mutex<()>,
    /// Whether a thread of any process has locked the table.
    taken: Region,
    /// By queue: number of groups done since the session began.
    done: Region,
    /// By message: number of steps in which it was produced.
    made: Region,
    /// By message: number of steps in which its send and receive have met.
    met: Region,
    /// By channel: number of messages that have arrived and are not yet used.
    held: Region,
}

/// The locked table. The next thread that locks it sees all changes.
struct LockedQueues<'a> {
    queues: &'a CommunicationQueues,
    heap: &'a Heap,
    /// `None` for reading without the lock.
    turn: Option<MutexGuard<'a, ()>>,
}

impl Drop for LockedQueues<'_> {
    fn drop(&mut self) {
        if self.turn.is_some() {
            self.heap.arena().word(self.queues.taken).store(0, Ordering::Release);
        }
    }
}

impl LockedQueues<'_> {
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
    /// Reserves the queues of `graph` under `delivery`; `None` under one-sided delivery, which needs none.
    pub fn new(layout: &mut ArenaLayout, graph: &TaskGraph, delivery: Delivery) -> Option<CommunicationQueues> {
        if delivery == Delivery::OneSided {
            return None;
        }
        let lowering = Lowering::new(graph, delivery);
        let taken = layout.word();
        let mut table = |length: usize| layout.region(length * size_of::<AtomicU64>());
        let (done, made, met) = (table(lowering.queues().len()), table(graph.len()), table(graph.len()));
        let held = table(lowering.channels());
        Some(CommunicationQueues { lowering, turn: Mutex::new(()), taken, done, made, met, held })
    }

    /// Locks the table across processes. If a process dies with the lock, the watchdog aborts the step.
    fn lock<'a>(&'a self, heap: &'a Heap, watch: &impl WaitPolicy) -> Result<LockedQueues<'a>, Aborted> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = heap.arena().word(self.taken);
        while taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if watch.is_aborted() {
                return Err(Aborted);
            }
            std::thread::yield_now();
        }
        Ok(LockedQueues { queues: self, heap, turn: Some(turn) })
    }

    /// Records that op `message` has produced its output for another device. Returns the messages that arrive as a result, with
    /// their steps.
    pub fn post(
        &self,
        heap: &Heap,
        watch: &impl WaitPolicy,
        graph: &TaskGraph,
        message: usize,
    ) -> Result<Vec<(usize, u64)>, Aborted> {
        let state = self.lock(heap, watch)?;
        state.add(self.made, message);
        let sends = self.lowering.route(graph.op(message)).map(|route| route.send);
        Ok(sends.map_or_else(Vec::new, |queue| self.advance(graph, &state, queue)))
    }

    /// Records that the output of op `message` was used. Returns the messages that arrive as a result, with their steps.
    pub fn release(
        &self,
        heap: &Heap,
        watch: &impl WaitPolicy,
        graph: &TaskGraph,
        message: usize,
    ) -> Result<Vec<(usize, u64)>, Aborted> {
        let Some(route) = self.lowering.route(graph.op(message)).filter(|_| self.lowering.slots().is_some()) else {
            return Ok(Vec::new());
        };
        let state = self.lock(heap, watch)?;
        state.word(self.held, route.channel).fetch_sub(1, Ordering::Relaxed);
        Ok(self.advance(graph, &state, route.send))
    }

    /// Completes what a change of `queue` allows to complete.
    fn advance(&self, graph: &TaskGraph, state: &LockedQueues<'_>, queue: usize) -> Vec<(usize, u64)> {
        let (mut arrived, mut look) = (Vec::new(), vec![queue]);
        while let Some(queue) = look.pop() {
            while let Some((group, step)) =
                self.head(state, queue).filter(|&(group, step)| self.is_ready(state, group, step))
            {
                let complete = match self.lowering.slots() {
                    Some(slots) => self.take_slot(graph, state, group, slots.into()),
                    None => self.meet(graph, state, group, step, &mut look),
                };
                if !complete {
                    break;
                }
                state.add(self.done, queue);
                let has_come = |entry: &&Entry| entry.is_receive() || self.lowering.slots().is_some();
                arrived.extend(group.iter().filter(has_come).map(|entry| (entry.message(), step)));
            }
        }
        arrived
    }

    /// Whether everything that a group sends in `step` is produced. Until then the group is not in its queue.
    fn is_ready(&self, state: &LockedQueues<'_>, group: &[Entry], step: u64) -> bool {
        group.iter().all(|entry| entry.is_receive() || state.get(self.made, entry.message()) > step)
    }

    /// Takes a free slot for a send, if there is one.
    fn take_slot(&self, graph: &TaskGraph, state: &LockedQueues<'_>, group: &[Entry], slots: u64) -> bool {
        let route = group.first().and_then(|entry| self.lowering.route(graph.op(entry.message())));
        let free = route.filter(|route| state.get(self.held, route.channel) < slots);
        free.inspect(|route| state.add(self.held, route.channel)).is_some()
    }

    /// Matches the entries of a group with partners at the heads of their queues, which are appended to `look`. Returns whether all
    /// are matched.
    fn meet(
        &self,
        graph: &TaskGraph,
        state: &LockedQueues<'_>,
        group: &[Entry],
        step: u64,
        look: &mut Vec<usize>,
    ) -> bool {
        let mut all = true;
        for entry in group {
            let message = entry.message();
            if state.get(self.met, message) > step {
                continue;
            }
            let partner = self.lowering.partner_queue(graph, *entry);
            let other = partner.and_then(|queue| self.head(state, queue));
            let meets = other.is_some_and(|(other, of)| {
                of == step && other.contains(&entry.partner()) && self.is_ready(state, other, step)
            });
            if meets {
                state.add(self.met, message);
                look.extend(partner);
            }
            all &= meets;
        }
        all
    }

    /// Returns the group at the head of `queue` and its step, from 0.
    fn head(&self, state: &LockedQueues<'_>, queue: usize) -> Option<(&[Entry], u64)> {
        let (groups, done) = (self.lowering.queues()[queue].groups() as u64, state.get(self.done, queue));
        (groups > 0).then(|| (self.lowering.queues()[queue].group((done % groups) as usize), done / groups))
    }

    /// Describes the heads of the queues in `step`, for the report of a hang. Does not lock, because the owner of the lock may be dead.
    pub fn report(&self, heap: &Heap, graph: &TaskGraph, step: u64) -> String {
        let (state, mut text) = (LockedQueues { queues: self, heap, turn: None }, String::new());
        for (number, queue) in self.lowering.queues().iter().enumerate() {
            if self.head(&state, number).is_none_or(|(_, of)| of > step) {
                continue;
            }
            let group = state.get(self.done, number) % queue.groups() as u64;
            let head = queue.group_name(graph, group as usize);
            let party = Party::Queue { device: queue.device, queue: queue.name(), head };
            text += &format!("  {party}\n");
        }
        text
    }
}
