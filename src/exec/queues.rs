//! The communication queues of a delivery that is not one-sided, as the local link keeps them.
//!
//! Data itself goes the one-sided way, into slots that no timing can overwrite; the queues decide when a message counts as
//! arrived. They are a shared table that whoever makes progress advances: the device whose op has ended, or which has used a
//! message. Queues run on from step to step: an entry of the next step follows the last of this one.

use crate::deadlock::Party;
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::lowering::{Entry, Lowering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The queues of all devices.
#[derive(Debug)]
pub struct CommunicationQueues {
    lowering: Lowering,
    /// Slots of a channel, under buffered delivery.
    slots: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By queue: entries done since the session began.
    done: Vec<u64>,
    /// By message: steps in which it has been made.
    made: Vec<u64>,
    /// By channel: messages that have arrived and are not yet used.
    held: Vec<u64>,
}

impl CommunicationQueues {
    /// The queues of `graph` under `delivery`; `None` under one-sided delivery, which needs none.
    pub fn new(graph: &TaskGraph, delivery: Delivery) -> Option<CommunicationQueues> {
        let slots = match delivery {
            Delivery::OneSided => return None,
            Delivery::Buffered(slots) => Some(u64::from(slots)),
            Delivery::Channel(_) => None,
        };
        let lowering = Lowering::new(graph, delivery);
        let state = State {
            done: vec![0; lowering.queues().len()],
            made: vec![0; graph.len()],
            held: vec![0; lowering.channels()],
        };
        Some(CommunicationQueues { lowering, slots, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Op number `message` has made its output, which another device waits for: the messages that arrive thereby, each with
    /// its step.
    pub fn post(&self, graph: &TaskGraph, message: usize) -> Vec<(usize, u64)> {
        let mut state = self.lock();
        state.made[message] += 1;
        let sends = self.lowering.route(graph.op(message)).map(|route| route.send);
        sends.map_or_else(Vec::new, |queue| self.advance(graph, &mut state, queue))
    }

    /// The output of op number `message` has been used: the messages that arrive thereby, each with its step.
    pub fn release(&self, graph: &TaskGraph, message: usize) -> Vec<(usize, u64)> {
        let Some(route) = self.lowering.route(graph.op(message)).filter(|_| self.slots.is_some()) else {
            return Vec::new();
        };
        let mut state = self.lock();
        state.held[route.channel] -= 1;
        self.advance(graph, &mut state, route.send)
    }

    /// Completes what can be completed now that something changed for `queue`.
    fn advance(&self, graph: &TaskGraph, state: &mut State, queue: usize) -> Vec<(usize, u64)> {
        let mut arrived = Vec::new();
        let mut look = vec![queue];
        while let Some(queue) = look.pop() {
            while let Some((message, step, queues)) = self.completable(graph, state, queue) {
                queues.iter().for_each(|&queue| state.done[queue] += 1);
                look.extend(queues.into_iter().filter(|&other| other != queue));
                if let (Some(_), Some(route)) = (self.slots, self.lowering.route(graph.op(message))) {
                    state.held[route.channel] += 1;
                }
                arrived.push((message, step));
            }
        }
        arrived
    }

    /// The message at the head of `queue`, if its transfer can be completed, its step, and the queues that it leaves then.
    fn completable(&self, graph: &TaskGraph, state: &State, queue: usize) -> Option<(usize, u64, Vec<usize>)> {
        let (entry, step) = self.head(state, queue)?;
        let message = entry.message();
        let route = self.lowering.route(graph.op(message))?;
        let made = state.made[message] > step;
        match self.slots {
            Some(slots) => (made && state.held[route.channel] < slots).then(|| (message, step, vec![queue])),
            None => {
                let other = if entry.is_receive() { route.send } else { route.receive };
                let meets = self.head(state, other) == Some((entry.partner(), step));
                (made && meets).then(|| (message, step, vec![queue, other]))
            }
        }
    }

    /// The entry at the head of `queue` and the step that it belongs to, from 0.
    fn head(&self, state: &State, queue: usize) -> Option<(Entry, u64)> {
        let entries = &self.lowering.queues()[queue].entries;
        let (length, done) = (entries.len() as u64, state.done[queue]);
        (length > 0).then(|| (entries[(done % length) as usize], done / length))
    }

    /// What stands at the heads of the queues in `step`, for the report of a hang.
    pub fn report(&self, graph: &TaskGraph, step: u64) -> String {
        let (state, mut text) = (self.lock(), String::new());
        for (number, queue) in self.lowering.queues().iter().enumerate() {
            let Some((entry, _)) = self.head(&state, number).filter(|&(_, of)| of <= step) else { continue };
            let (queue, head) = (queue.name(), entry.name(graph));
            let party = Party::Queue { device: self.lowering.queues()[number].device, queue, head };
            text += &format!("  {party}\n");
        }
        text
    }
}
