//! Copies of activations to pinned memory of the host and back.

use super::host::{Direction, HostCopies};
use super::{Activations, Cuda};
use anyhow::{Context as _, Result};
use pipesim_gpu::Event;
use std::sync::Arc;

impl Cuda {
    fn host(&mut self) -> Result<&mut HostCopies> {
        self.host.as_mut().context("expected streams for copies to the host, found none: create the module with copies")
    }

    /// Creates the streams of copies.
    pub fn allow_copies(&mut self) -> Result<()> {
        self.host = Some(HostCopies::new(&self.operations.gpu)?);
        Ok(())
    }

    /// Begins a copy behind everything on the compute stream and the events `after`. Returns its start.
    pub fn begin_copy(&mut self, direction: Direction, after: &[Arc<Event>]) -> Result<Event> {
        let (gpu, computed) = (self.operations.gpu.clone(), self.operations.gpu.events().untimed()?);
        gpu.compute.record(&computed)?;
        let stream = self.host()?.stream(direction);
        stream.wait(&computed)?;
        after.iter().try_for_each(|event| stream.wait(event))?;
        Ok(gpu.mark(stream)?)
    }

    /// Copies a buffer to the host.
    pub fn copy_out(&mut self, buffer: Activations) -> Result<Activations> {
        let Activations::Pooled(buffer) = buffer else { return Ok(buffer) };
        let context = self.operations.gpu.context().clone();
        let host = self.host()?;
        let pinned = host.take(&context, buffer.bytes())?;
        host.stream(Direction::ToHost).download(&pinned, 0..buffer.bytes(), buffer.address())?;
        host.leaving.push(buffer);
        Ok(Activations::Away(pinned))
    }

    /// Copies a buffer back from the host.
    pub fn copy_back(&mut self, buffer: Activations) -> Result<Activations> {
        let Activations::Away(pinned) = buffer else { return Ok(buffer) };
        let host = self.host.as_mut().context("expected streams for copies to the host, found none")?;
        let stream = host.stream(Direction::FromHost);
        let buffer = self.operations.pool.take(pinned.bytes(), stream)?;
        stream.upload(buffer.address(), &pinned, 0..buffer.bytes())?;
        host.read.push(pinned);
        Ok(Activations::Pooled(buffer))
    }

    /// Ends a copy. Returns its end.
    pub fn end_copy(&mut self, direction: Direction) -> Result<Arc<Event>> {
        let gpu = self.operations.gpu.clone();
        let host = self.host()?;
        let end = Arc::new(gpu.mark(host.stream(direction))?);
        for pinned in std::mem::take(&mut host.read) {
            host.free.entry(pinned.bytes()).or_default().push_back((pinned, Some(end.clone())));
        }
        let leaving = std::mem::take(&mut host.leaving);
        self.operations.pool.give_after(leaving, &end);
        Ok(end)
    }

    /// Whether all copies are done.
    pub fn has_copied(&self) -> Result<bool> {
        let Some(host) = &self.host else { return Ok(true) };
        Ok(host.stream(Direction::ToHost).is_done()? && host.stream(Direction::FromHost).is_done()?)
    }
}
