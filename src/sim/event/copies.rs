//! Waits beyond those for inputs: for copies to and from the host, on links that neighbouring devices may share, and for results of all devices.

use super::Observer;
use super::engine::{EventKind, Simulation};
use pipesim_schedule::graph::{Besides, Until};
use pipesim_schedule::op::Engine;

impl<L: Fn(usize, u32, u64, u64) -> u64, O: Observer> Simulation<'_, L, O> {
    /// Returns the first compute op of a device from number `next` on, before `end`.
    pub(super) fn skip_copies(&self, next: usize, end: usize) -> usize {
        let graph = self.prepared.graph;
        if !graph.has_waits() {
            return next;
        }
        (next..end).find(|&index| graph.op(index).kind().is_compute()).unwrap_or(end)
    }

    /// Starts the copies that wait for nothing.
    pub(super) fn start_first_copies(&mut self) {
        let graph = self.prepared.graph;
        let is_first = |index: &usize| !graph.op(*index).kind().is_compute() && graph.waits(*index).is_empty();
        if graph.has_waits() {
            (0..graph.len()).filter(is_first).collect::<Vec<_>>().into_iter().for_each(|index| self.queue_copy(index));
        }
    }

    /// Notes that op number `index` has ended, for all that wait for that.
    pub(super) fn note_ended(&mut self, index: usize) {
        let (graph, barrier) = (self.prepared.graph, self.prepared.extras.vocabulary.barrier);
        for &Besides { op, until } in graph.waiting(index) {
            match until {
                Until::Begun => {}
                Until::Gathered if barrier > 0 => {
                    self.schedule(self.now + barrier, graph.device_of(op as usize), EventKind::Met, op, 0);
                }
                Until::Gathered | Until::Ended => self.count_met(op as usize),
            }
        }
    }

    /// Notes that op number `index` has begun, for all that wait for that.
    pub(super) fn note_begun(&mut self, index: usize) {
        let begun = self.prepared.graph.waiting(index).iter().filter(|wait| wait.until == Until::Begun);
        begun.for_each(|wait| self.count_met(wait.op as usize));
    }

    /// Counts one of the waits of op number `index` as over; starts it if it was the last.
    pub(super) fn count_met(&mut self, index: usize) {
        let graph = self.prepared.graph;
        self.copies.left[index] -= 1;
        if self.copies.left[index] > 0 {
            return;
        }
        if graph.op(index).kind().is_compute() {
            self.try_start(graph.device_of(index));
        } else {
            self.queue_copy(index);
        }
    }

    /// Returns the link that a copy uses.
    fn link_of(&self, index: usize) -> usize {
        let graph = self.prepared.graph;
        let shared = graph.device_of(index) / self.prepared.config.devices_per_host_link.max(1);
        2 * shared as usize + usize::from(graph.op(index).kind().engine() == Engine::FromHost)
    }

    /// Starts a copy, or lets it wait for its link.
    fn queue_copy(&mut self, index: usize) {
        let link = self.link_of(index);
        match std::mem::replace(&mut self.copies.links[link].busy, true) {
            true => self.copies.links[link].waiting.push_back(index as u32),
            false => self.start_copy(index),
        }
    }

    fn start_copy(&mut self, index: usize) {
        let device = self.prepared.graph.device_of(index);
        let start = self.now.max(self.prepared.begin[device as usize]);
        let lasts = (self.lasts)(index, device, start, self.rule(index).duration);
        self.copies.starts[index] = start;
        self.schedule(start + lasts, device, EventKind::Copied, index as u32, 0);
    }

    /// Ends a copy; its link goes to the next one.
    pub(super) fn end_copy(&mut self, index: usize) {
        self.observer.op(index, self.copies.starts[index], self.now);
        let link = self.link_of(index);
        self.copies.links[link].busy = false;
        if let Some(next) = self.copies.links[link].waiting.pop_front() {
            self.copies.links[link].busy = true;
            self.start_copy(next as usize);
        }
        self.note_ended(index);
    }
}
