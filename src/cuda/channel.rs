//! NCCL on a GPU's send stream: sends and receives of whole buffers, each of which meets its partner.

use super::gpu::Gpu;
use super::memory::Buffer;
use super::nccl::{Communicator, Nccl, UniqueId};
use anyhow::Result;
use std::sync::Arc;

/// A GPU among others, each with a rank of its own.
pub struct Channel {
    library: Nccl,
    communicator: Communicator,
    gpu: Arc<Gpu>,
}

impl Channel {
    /// Rank `rank` of `ranks` with this GPU; returns when all have come, each on its own thread or in its own process.
    ///
    /// # Errors
    /// NCCL's own: two ranks on one GPU, no way from one to another.
    pub fn join(library: &Nccl, gpu: &Arc<Gpu>, rank: u32, ranks: u32, id: UniqueId) -> Result<Channel> {
        gpu.make_current()?;
        // SAFETY: only this GPU's send stream is used, which the channel keeps alive; memory comes as buffers, and freeing one
        // waits for the device.
        let communicator = unsafe { Communicator::new(library, rank as i32, ranks as i32, id)? };
        Ok(Channel { library: library.clone(), communicator, gpu: gpu.clone() })
    }

    /// Enqueues: the buffer goes to rank `to`.
    ///
    /// # Errors
    /// NCCL's own.
    pub fn send(&self, buffer: &Buffer, to: u32) -> Result<()> {
        Ok(self.communicator.send(buffer.address().0, buffer.bytes(), to as i32, self.gpu.send.raw())?)
    }

    /// Enqueues: the buffer is filled by rank `from`.
    ///
    /// # Errors
    /// NCCL's own.
    pub fn receive(&self, buffer: &Buffer, from: u32) -> Result<()> {
        Ok(self.communicator.receive(buffer.address().0, buffer.bytes(), from as i32, self.gpu.send.raw())?)
    }

    /// Enqueues both at once, so that neither waits for the other.
    ///
    /// # Errors
    /// NCCL's own.
    pub fn swap(&self, out: (&Buffer, u32), into: (&Buffer, u32)) -> Result<()> {
        let stream = self.gpu.send.raw();
        self.library.group(|| {
            self.communicator.send(out.0.address().0, out.0.bytes(), out.1 as i32, stream)?;
            self.communicator.receive(into.0.address().0, into.0.bytes(), into.1 as i32, stream)
        })?;
        Ok(())
    }

    /// Whether what was enqueued can still complete.
    ///
    /// # Errors
    /// A rank that died, a connection that broke.
    pub fn check(&self) -> Result<()> {
        Ok(self.communicator.check()?)
    }
}
