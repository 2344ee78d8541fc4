//! Between hosts: one-sided puts with a signal into the receiver's slots, through memory that both have, or by whatever joins
//! the ranks. On request it holds messages back as another delivery would.

use super::super::arena::Region;
use super::super::mailbox::{Mailbox, Message};
use super::super::shared::Shared;
use super::Link;
use super::need::{Refusal, Setting};
use crate::ranks::HAS_MPI;
use anyhow::Result;
use std::sync::Arc;

/// A device's end.
pub struct Local(Arc<Shared>);

impl Local {
    /// The end of any device of a session.
    pub fn new(shared: Arc<Shared>) -> Local {
        Local(shared)
    }

    fn mailbox(&self, message: Message) -> &Mailbox {
        self.0.mailboxes.of(message)
    }

    /// Waits, where the graph asks for it, until the slot is free again.
    fn wait_credit(&self, message: Message) -> Result<()> {
        let read = self.0.heap.signal(self.mailbox(message).slot.read);
        Ok(message.credit.map_or(Ok(()), |credit| read.wait(credit, &self.0.watch))?)
    }

    /// Signals the arrival of `messages`, each with its step.
    fn arrive(&self, messages: Vec<(usize, u64)>) {
        for (message, step) in messages {
            if let Some(port) = &self.0.plan.outputs[message] {
                self.0.heap.raise(port.consumer, self.0.mailboxes.slot(port).arrived, port.signal(step));
            }
        }
    }
}

impl Link for Local {
    type Place = Region;
    type Moment = u64;

    fn outbox(&mut self, message: Message) -> Result<Region> {
        let mailbox = self.mailbox(message);
        match message.op {
            Some(op) => Ok(self.0.mailboxes.outbox(mailbox.producer, op)),
            // A gradient is long: it is written where it will be read, or to the same place in this process's own memory.
            None => self.wait_credit(message).map(|()| mailbox.slot.data),
        }
    }

    fn put(&mut self, message: Message) -> Result<()> {
        self.wait_credit(message)?;
        let Shared { heap, mailboxes, queues, .. } = &*self.0;
        let Mailbox { producer, consumer, slot, .. } = *self.mailbox(message);
        let Some(op) = message.op else {
            // SAFETY: filled by this device, and not read before the signal is raised.
            unsafe { heap.publish(consumer, slot.data, slot.arrived, message.value) };
            return Ok(());
        };
        // SAFETY: the outbox is this device's own, which writes nothing now.
        let made = unsafe { heap.arena().data(mailboxes.outbox(producer, op)) };
        match queues {
            None => slot.put(heap, consumer, made, message.value),
            Some(_) => {
                // SAFETY: the slot's last message was read; the signal follows when the queues allow it.
                unsafe { heap.arena().data_mut(slot.data) }.copy_from_slice(made);
                self.arrive(self.0.post(op)?.unwrap_or_default());
            }
        }
        Ok(())
    }

    fn wait(&mut self, message: Message) -> Result<Region> {
        let slot = &self.mailbox(message).slot;
        self.0.heap.signal(slot.arrived).wait(message.value, &self.0.watch)?;
        Ok(slot.data)
    }

    fn release(&mut self, message: Message) -> Result<()> {
        let mailbox = self.mailbox(message);
        self.0.heap.raise(mailbox.producer, mailbox.slot.read, message.value);
        if let Some(op) = message.op {
            self.arrive(self.0.release(op)?.unwrap_or_default());
        }
        Ok(())
    }
}

/// What peer copies and the hosts' shared memory need.
pub fn one_machine(setting: &Setting<'_>) -> Result<(), Refusal> {
    if setting.ranks.share_memory() {
        return Ok(());
    }
    Err(Refusal::of("expected all ranks on one machine, found several; use mpi, nvshmem or nccl"))
}

/// What MPI needs.
pub fn under_mpirun(setting: &Setting<'_>) -> Result<(), Refusal> {
    if setting.ranks.under_mpi() {
        return Ok(());
    }
    let how = if HAS_MPI { "start with mpirun" } else { "build with --features mpi and start with mpirun" };
    Err(Refusal::of(format!("expected ranks that mpirun started, found none; leave --link out, or {how}")))
}
