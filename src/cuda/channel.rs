//! NCCL on a stream of its own: sends and receives of whole buffers, each of which meets its partner.

use super::api::stream::Stream;
use super::gpu::Gpu;
use super::memory::Buffer;
use super::nccl::{Communicator, Nccl, UniqueId};
use anyhow::Result;
use std::sync::Arc;

/// A GPU among others, each with a rank of its own. What is sent and received completes in order.
pub struct Channel {
    library: Nccl,
    communicator: Communicator,
    stream: Stream,
}

impl Channel {
    /// Rank `rank` of `ranks` with this GPU; returns when all have come, each on its own thread or in its own process.
    ///
    /// # Errors
    /// NCCL's own: two ranks on one GPU, no way from one to another.
    pub fn join(library: &Nccl, gpu: &Arc<Gpu>, rank: u32, ranks: u32, id: UniqueId) -> Result<Channel> {
        gpu.make_current()?;
        let stream = Stream::new(gpu.context())?;
        // SAFETY: only the stream beside it is used, which lives as long; memory comes as buffers, and freeing one waits for the
        // device.
        let communicator = unsafe { Communicator::new(library, rank as i32, ranks as i32, id)? };
        Ok(Channel { library: library.clone(), communicator, stream })
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Enqueues: the buffer goes to rank `to`.
    pub fn send(&self, buffer: &Buffer, to: u32) -> Result<()> {
        Ok(self.communicator.send(buffer.address().0, buffer.bytes(), to as i32, self.stream.raw())?)
    }

    /// Enqueues: the buffer is filled by rank `from`.
    pub fn receive(&self, buffer: &Buffer, from: u32) -> Result<()> {
        Ok(self.communicator.receive(buffer.address().0, buffer.bytes(), from as i32, self.stream.raw())?)
    }

    /// Enqueues both at once, so that neither waits for the other.
    pub fn swap(&self, out: &Buffer, into: &Buffer, peer: u32) -> Result<()> {
        let stream = self.stream.raw();
        self.library.group(|| {
            self.communicator.send(out.address().0, out.bytes(), peer as i32, stream)?;
            self.communicator.receive(into.address().0, into.bytes(), peer as i32, stream)
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
