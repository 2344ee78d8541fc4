//! How data gets from one device to another on the CPU: one-sided puts with a signal into the receiver's slots.

use super::arena::Dealer;
use super::heap::Heap;
use super::plan::{Plan, Port};
use super::queues::CommunicationQueues;
use super::slot::Slot;
use super::watch::{Aborted, Watch};
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use std::sync::Arc;

/// A delivery that is not one-sided, on top of one-sided puts.
#[derive(Debug)]
struct Emulation {
    queues: CommunicationQueues,
    graph: Arc<TaskGraph>,
    /// By message.
    ports: Vec<Option<Port>>,
}

/// Where the slots of all channels lie.
#[derive(Debug)]
pub struct Slots(Vec<Vec<Slot>>);

impl Slots {
    /// Slots for `plan`, each message `hidden_len` float32 numbers.
    pub fn new(dealer: &mut Dealer, plan: &Plan, hidden_len: usize) -> Slots {
        let mut of_channel = |&count: &usize| (0..count).map(|_| Slot::new(dealer, hidden_len)).collect();
        Slots(plan.slots.iter().map(&mut of_channel).collect())
    }
}

/// The link: shared memory or messages, one-sided put with signal; on request it holds messages back as another delivery would.
#[derive(Debug)]
pub struct Local {
    emulation: Option<Emulation>,
    heap: Arc<Heap>,
    slots: Slots,
}

impl Local {
    /// The link over `slots` of `heap` for `plan`. A delivery that is not one-sided needs all devices in one process.
    pub fn new(plan: &Plan, delivery: Delivery, heap: Arc<Heap>, slots: Slots) -> Local {
        let queues = CommunicationQueues::new(&plan.graph, delivery);
        let emulation =
            queues.map(|queues| Emulation { queues, graph: plan.graph.clone(), ports: plan.outputs.clone() });
        Local { emulation, heap, slots }
    }

    /// What stands at the heads of communication queues in step `step`; empty under one-sided delivery.
    pub fn report(&self, step: u64) -> String {
        self.emulation.as_ref().map_or_else(String::new, |all| all.queues.report(&all.graph, step))
    }

    /// By channel: its slots.
    pub fn slots(&self) -> &[Vec<Slot>] {
        &self.slots.0
    }

    fn slot(&self, port: &Port) -> &Slot {
        &self.slots.0[port.channel][port.slot]
    }

    /// Waits, where the graph asks for it, until the slot is free again.
    ///
    /// # Errors
    /// Called off.
    pub fn wait_credit(&self, port: &Port, step: u64, watch: &Watch) -> Result<(), Aborted> {
        if port.credit { self.heap.signal(self.slot(port).read).wait(port.signal(step) - 1, watch) } else { Ok(()) }
    }

    /// Copies `data` into the receiver's slot, then signals, as soon as the delivery allows it. The credit was waited for.
    pub fn put(&self, port: &Port, step: u64, data: &[f32]) {
        let slot = self.slot(port);
        match &self.emulation {
            // SAFETY: the plan gives a slot to the next message only after the last one was read.
            None => unsafe { self.heap.put(port.consumer, slot.data, data, slot.arrived, port.signal(step)) },
            Some(all) => {
                // SAFETY: the same; the signal follows when the queues allow it.
                unsafe { self.heap.arena().data_mut(slot.data) }.copy_from_slice(data);
                self.arrive(all, all.queues.post(&all.graph, port.message));
            }
        }
    }

    /// Signals the arrival of `messages`, each with its step.
    fn arrive(&self, emulation: &Emulation, messages: Vec<(usize, u64)>) {
        for (message, step) in messages {
            if let Some(port) = &emulation.ports[message] {
                self.heap.raise(port.consumer, self.slot(port).arrived, port.signal(step));
            }
        }
    }

    /// Waits for the message.
    ///
    /// # Errors
    /// Called off.
    pub fn wait(&self, port: &Port, step: u64, watch: &Watch) -> Result<(), Aborted> {
        self.heap.signal(self.slot(port).arrived).wait(port.signal(step), watch)
    }

    /// The message in its slot: the receiver's own memory.
    ///
    /// # Safety
    /// It has arrived, or an op of this device made it, and it is not released while the result lives.
    pub unsafe fn message(&self, port: &Port) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { self.heap.arena().data(self.slot(port).data) }
    }

    /// The slot of a message between two ops of one device, to be filled.
    ///
    /// # Safety
    /// The slot's last message was read, and nobody reads this one while the result lives.
    #[expect(clippy::mut_from_ref, reason = "the plan, not the borrow checker, says who may write")]
    pub unsafe fn target(&self, port: &Port) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.heap.arena().data_mut(self.slot(port).data) }
    }

    /// The receiver has read the message.
    pub fn release(&self, port: &Port, step: u64) {
        if !port.crosses() {
            return;
        }
        self.heap.raise(port.producer, self.slot(port).read, port.signal(step));
        if let Some(all) = &self.emulation {
            self.arrive(all, all.queues.release(&all.graph, port.message));
        }
    }
}
