//! The link between hosts: one-sided puts with a signal into the receiver's buffers, through shared memory or the transport between
//! ranks. On request it delays messages as another delivery would.

use super::super::arena::Region;
use super::super::message::{Message, MessageBuffer};
use super::super::shared::Shared;
use super::{Link, Refusal, Setting};
use crate::ranks::HAS_MPI;
use anyhow::Result;
use std::sync::Arc;

/// A device's end.
pub struct Local(Arc<Shared>);

impl Local {
    pub fn new(shared: Arc<Shared>) -> Local {
        Local(shared)
    }

    fn buffer(&self, message: Message) -> &MessageBuffer {
        self.0.buffers.of(message)
    }

    /// Waits until the buffer is free, if the graph requires it.
    fn wait_credit(&self, message: Message) -> Result<()> {
        let read = self.0.heap.signal(self.buffer(message).host.read);
        Ok(message.credit.map_or(Ok(()), |credit| read.wait(credit, &self.0.watch))?)
    }

    /// Signals the arrival of `messages`, each with its step.
    fn arrive(&self, messages: Vec<(usize, u64)>) {
        for (message, step) in messages {
            if let Some(port) = &self.0.plan.outputs[message] {
                self.0.heap.raise(port.consumer, self.0.buffers.slot(port).arrived, port.signal(step));
            }
        }
    }
}

impl Link for Local {
    type Location = Region;
    type Timestamp = u64;

    fn send_buffer(&mut self, message: Message) -> Result<Region> {
        let buffer = self.buffer(message);
        match message.op {
            Some(op) => Ok(self.0.buffers.send_buffer(buffer.producer, op)),
            // A gradient is large, so it is written where it is read, or at the same offset of this process's memory.
            None => self.wait_credit(message).map(|()| buffer.host.data),
        }
    }

    fn put(&mut self, message: Message) -> Result<()> {
        self.wait_credit(message)?;
        let Shared { heap, buffers, queues, .. } = &*self.0;
        let MessageBuffer { producer, consumer, host: slot, .. } = *self.buffer(message);
        let Some(op) = message.op else {
            // SAFETY: this device has filled it, and no one reads it before the signal is raised.
            unsafe { heap.publish(consumer, slot.data, slot.arrived, message.value) };
            return Ok(());
        };
        // SAFETY: the send buffer is this device's own, which does not write now.
        let made = unsafe { heap.arena().data(buffers.send_buffer(producer, op)) };
        match queues {
            None => slot.put(heap, consumer, made, message.value),
            Some(_) => {
                // SAFETY: the buffer's last message was read; the signal follows when the queues allow it.
                unsafe { heap.arena().data_mut(slot.data) }.copy_from_slice(made);
                self.arrive(self.0.post(op)?.unwrap_or_default());
            }
        }
        Ok(())
    }

    fn wait(&mut self, message: Message) -> Result<Region> {
        let slot = &self.buffer(message).host;
        self.0.heap.signal(slot.arrived).wait(message.value, &self.0.watch)?;
        Ok(slot.data)
    }

    fn release(&mut self, message: Message) -> Result<()> {
        let buffer = self.buffer(message);
        self.0.heap.raise(buffer.producer, buffer.host.read, message.value);
        if let Some(op) = message.op {
            self.arrive(self.0.release(op)?.unwrap_or_default());
        }
        Ok(())
    }
}

/// Checks the requirement of peer copies and the hosts' shared memory.
pub fn one_machine(setting: &Setting<'_>) -> Result<(), Refusal> {
    if setting.ranks.share_memory() {
        return Ok(());
    }
    Err(Refusal::of("expected all ranks on one machine, found several; use mpi, nvshmem or nccl"))
}

/// Checks the requirement of MPI.
pub fn under_mpirun(setting: &Setting<'_>) -> Result<(), Refusal> {
    if setting.ranks.under_mpi() {
        return Ok(());
    }
    let how = if HAS_MPI { "start with mpirun" } else { "build with --features mpi and start with mpirun" };
    Err(Refusal::of(format!("expected ranks that mpirun started, found none; leave --link out, or {how}")))
}
