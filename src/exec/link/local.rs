//! The link between hosts: one-sided puts with a signal into the receiver's buffers, through shared memory or the transport between
//! ranks, and collective calls for gradients. On request it delays messages as another delivery would.

use super::super::arena::Region;
use super::super::message::{Message, MessageBuffer};
use super::super::shared::Shared;
use super::{Link, Refusal, Setting};
use crate::ranks::HAS_MPI;
use anyhow::Result;
use std::sync::Arc;

/// A worker's end.
pub struct Local {
    worker: u32,
    shared: Arc<Shared>,
}

impl Local {
    pub fn new(worker: u32, shared: Arc<Shared>) -> Local {
        Local { worker, shared }
    }

    fn buffer(&self, message: Message) -> &MessageBuffer {
        self.shared.buffers.of(message)
    }

    /// Waits until all readers have read the last message, if the graph requires it. For a gradient those in this memory: a collective
    /// call overwrites parts in other ranks only when their workers have put the next ones.
    fn wait_credit(&self, message: Message) -> Result<()> {
        let Some(credit) = message.credit else { return Ok(()) };
        let (buffer, Shared { heap, watch, .. }) = (self.buffer(message), &*self.shared);
        let others = buffer.others.iter().map(|reader| (reader.worker, reader.read));
        let readers = [(buffer.consumer, buffer.host.read)].into_iter().chain(others);
        let mut here = readers.filter(|&(worker, _)| message.op.is_some() || !heap.is_remote(worker));
        Ok(here.try_for_each(|(_, read)| heap.signal(read).wait(credit, watch))?)
    }

    /// Signals the arrival of `messages`, each with its step.
    fn arrive(&self, messages: Vec<(usize, u64)>) {
        for (message, step) in messages {
            if let Some(port) = &self.shared.plan.outputs[message] {
                let Shared { heap, buffers, mesh, .. } = &*self.shared;
                let consumer = mesh.worker_of(port.consumer, mesh.copy(self.worker));
                heap.raise(consumer, buffers.slot(self.worker, port).arrived, port.signal(step));
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
            Some(op) => Ok(self.shared.buffers.send_buffer(buffer.producer, op)),
            // A gradient is large, so it is written where it is read, or at the same offset of this process's memory.
            None => self.wait_credit(message).map(|()| buffer.host.data),
        }
    }

    fn put(&mut self, message: Message) -> Result<()> {
        self.wait_credit(message)?;
        let Shared { heap, buffers, queues, plan, .. } = &*self.shared;
        if let Some((group, member, parts)) = buffers.call(message) {
            // SAFETY: this worker has filled its part, no one reads it before the signal is raised, and it waits for the credit before
            // it fills it again.
            unsafe { heap.publish(group, member, &parts, message.value) };
            return Ok(());
        }
        let Some(op) = message.op else { return Ok(()) };
        let &MessageBuffer { producer, consumer, host: slot, .. } = self.buffer(message);
        let of_slice = |place| buffers.of_slice(plan.graph.op(op), place);
        // SAFETY: the send buffer is this device's own, which does not write now.
        let made = unsafe { heap.arena().data(of_slice(buffers.send_buffer(producer, op))) };
        if queues.is_empty() {
            slot.put(heap, consumer, made, message.value);
        } else {
            // SAFETY: the buffer's last message was read; the signal follows when the queues allow it.
            unsafe { heap.arena().data_mut(of_slice(slot.data)) }.copy_from_slice(made);
            self.arrive(self.shared.post(self.worker, op)?.unwrap_or_default());
        }
        Ok(())
    }

    fn wait(&mut self, message: Message) -> Result<Region> {
        let slot = &self.buffer(message).host;
        self.shared.heap.signal(slot.arrived).wait(message.value, &self.shared.watch)?;
        Ok(slot.data)
    }

    fn release(&mut self, message: Message) -> Result<()> {
        let buffer = self.buffer(message);
        let read = message.reader.checked_sub(1).map_or(buffer.host.read, |number| buffer.others[number].read);
        if message.op.is_some() || !self.shared.heap.is_remote(buffer.producer) {
            self.shared.heap.raise(buffer.producer, read, message.value);
        }
        if let Some(op) = message.op {
            self.arrive(self.shared.release(self.worker, op)?.unwrap_or_default());
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
    Err(Refusal::of(format!("expected ranks that mpirun started, found none; leave `link` out, or {how}")))
}
