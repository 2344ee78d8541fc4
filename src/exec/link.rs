//! How data gets from one device to another.

use super::plan::{Plan, Port};
use super::queues::Queues;
use super::signal::Signal;
use super::watch::{Aborted, Watch};
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One buffer slot: data, how many messages have arrived in it, how many were read.
#[derive(Debug)]
struct Slot {
    data: Mutex<Vec<f32>>,
    arrived: Signal,
    read: Signal,
}

impl Slot {
    fn new(len: usize) -> Slot {
        Slot { data: Mutex::new(vec![0.0; len]), arrived: Signal::default(), read: Signal::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<f32>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A delivery that is not one-sided, on top of one-sided puts.
#[derive(Debug)]
struct Emulation {
    queues: Queues,
    graph: Arc<TaskGraph>,
    /// By message.
    ports: Vec<Option<Port>>,
}

/// The link of threads in one process: shared memory, one-sided put with signal; on request it holds messages back as another
/// delivery would.
#[derive(Debug)]
pub struct Local {
    delivery: Delivery,
    emulation: Option<Emulation>,
    devices: u64,
    slots: Vec<Vec<Slot>>,
    /// The two halves of the tied embedding's gradient, by sender: embedding's device, head's device.
    tied: [Slot; 2],
    /// Partial squares of the gradient norm, of even and odd steps: a device can be one step ahead while another reads.
    norms: [Mutex<BTreeMap<usize, f64>>; 2],
    norms_in: Signal,
}

impl Local {
    /// Buffers for `plan`, each message `hidden_len` numbers, the tied embedding's gradient `tied_len`.
    pub fn new(plan: &Plan, delivery: Delivery, hidden_len: usize, tied_len: usize) -> Local {
        let slots = plan.slots.iter().map(|&n| (0..n).map(|_| Slot::new(hidden_len)).collect()).collect();
        let devices = u64::from(plan.graph.schedule().devices());
        let tied = [Slot::new(tied_len), Slot::new(tied_len)];
        let queues = Queues::new(&plan.graph, delivery);
        let emulation =
            queues.map(|queues| Emulation { queues, graph: plan.graph.clone(), ports: plan.outputs.clone() });
        Local { delivery, emulation, devices, slots, tied, norms: Default::default(), norms_in: Signal::default() }
    }

    /// What this link promises.
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// What stands at the heads of communication queues in step `step`; empty under one-sided delivery.
    pub fn report(&self, step: u64) -> String {
        self.emulation.as_ref().map_or_else(String::new, |all| all.queues.report(&all.graph, step))
    }

    fn slot(&self, port: &Port) -> &Slot {
        &self.slots[port.channel][port.slot]
    }

    /// Waits, where the graph asks for it, until the slot is free again.
    ///
    /// # Errors
    /// Called off.
    pub fn wait_credit(&self, port: &Port, step: u64, watch: &Watch) -> Result<(), Aborted> {
        if port.credit { self.slot(port).read.wait(port.signal(step) - 1, watch) } else { Ok(()) }
    }

    /// Copies `data` into the receiver's slot, then signals, as soon as the delivery allows it.
    pub fn put(&self, port: &Port, step: u64, data: &[f32]) {
        self.slot(port).lock().copy_from_slice(data);
        match &self.emulation {
            None => self.slot(port).arrived.raise(port.signal(step)),
            Some(all) => self.arrive(all, all.queues.post(&all.graph, port.message)),
        }
    }

    /// Signals the arrival of `messages`, each with its step.
    fn arrive(&self, emulation: &Emulation, messages: Vec<(usize, u64)>) {
        for (message, step) in messages {
            if let Some(port) = &emulation.ports[message] {
                self.slot(port).arrived.raise(port.signal(step));
            }
        }
    }

    /// Waits for the message.
    ///
    /// # Errors
    /// Called off.
    pub fn wait(&self, port: &Port, step: u64, watch: &Watch) -> Result<(), Aborted> {
        self.slot(port).arrived.wait(port.signal(step), watch)
    }

    /// The slot's memory: the receiver's own.
    pub fn memory(&self, port: &Port) -> MutexGuard<'_, Vec<f32>> {
        self.slot(port).lock()
    }

    /// The receiver has read the message.
    pub fn release(&self, port: &Port, step: u64) {
        if !port.crosses {
            return;
        }
        self.slot(port).read.raise(port.signal(step));
        if let Some(all) = &self.emulation {
            self.arrive(all, all.queues.release(&all.graph, port.message));
        }
    }

    /// Puts this side's part of the tied embedding's gradient (`side` 0: embedding, 1: head).
    ///
    /// # Errors
    /// Called off while the other side still reads the step before.
    pub fn put_tied(&self, side: usize, step: u64, data: &[f32], watch: &Watch) -> Result<(), Aborted> {
        self.tied[side].read.wait(step, watch)?;
        self.tied[side].lock().copy_from_slice(data);
        self.tied[side].arrived.raise(step + 1);
        Ok(())
    }

    /// Waits for the other side's part and hands it to `add`.
    ///
    /// # Errors
    /// Called off.
    pub fn take_tied(&self, side: usize, step: u64, watch: &Watch, add: impl FnOnce(&[f32])) -> Result<(), Aborted> {
        let other = &self.tied[1 - side];
        other.arrived.wait(step + 1, watch)?;
        add(&other.lock());
        other.read.raise(step + 1);
        Ok(())
    }

    /// Contributes partial squares by order number.
    pub fn put_norms(&self, step: u64, parts: Vec<(usize, f64)>) {
        let mut norms = self.norms[(step % 2) as usize].lock().unwrap_or_else(PoisonError::into_inner);
        norms.extend(parts); // every part is overwritten each step by its only owner
        drop(norms);
        self.norms_in.increment();
    }

    /// Waits for all devices' parts; their sum in order number, so that no partition changes a bit of it.
    ///
    /// # Errors
    /// Called off.
    pub fn sum_norms(&self, step: u64, watch: &Watch) -> Result<f64, Aborted> {
        self.norms_in.wait((step + 1) * self.devices, watch)?;
        let norms = self.norms[(step % 2) as usize].lock().unwrap_or_else(PoisonError::into_inner);
        Ok(norms.values().sum())
    }
}
