//! Copies to pinned memory of the host and back, on two streams next to compute: one per direction, each in order.

use anyhow::Result;
use pipesim_gpu::Gpu;
use pipesim_gpu::api::{Buffer, Context, Event, Move, Pinned, Stream, most_taken};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToHost,
    FromHost,
}

/// Pinned memory, with the end of the copy that still reads it.
pub(super) type Free = (Pinned, Option<Arc<Event>>);

/// The streams of copies, and pinned memory to use again.
pub(super) struct HostCopies {
    streams: Arc<[Stream; 2]>,
    /// By size, oldest first.
    pub(super) free: BTreeMap<usize, VecDeque<Free>>,
    /// What the copy that has begun frees at its end: memory of the device.
    pub(super) leaving: Vec<Buffer>,
    /// The same of the host.
    pub(super) read: Vec<Pinned>,
}

impl HostCopies {
    pub(super) fn new(gpu: &Gpu) -> Result<HostCopies> {
        let (free, leaving, read) = (BTreeMap::new(), Vec::new(), Vec::new());
        Ok(HostCopies { streams: gpu.copies()?, free, leaving, read })
    }

    pub(super) fn stream(&self, direction: Direction) -> &Stream {
        &self.streams[direction as usize]
    }

    /// Takes pinned memory for the stream to the host.
    pub(super) fn take(&mut self, context: &Arc<Context>, bytes: usize) -> Result<Pinned> {
        let Some((pinned, read)) = self.free.get_mut(&bytes).and_then(VecDeque::pop_front) else {
            return Ok(Pinned::new(context, bytes)?);
        };
        read.map_or(Ok(()), |read| self.stream(Direction::ToHost).wait(&read))?;
        Ok(pinned)
    }

    /// Allocates pinned memory so that these moves allocate none.
    pub(super) fn reserve(&mut self, context: &Arc<Context>, moves: &[Move]) -> Result<()> {
        for (bytes, most) in most_taken(moves.iter().copied()) {
            let free = self.free.entry(bytes).or_default();
            while free.len() < most {
                free.push_back((Pinned::new(context, bytes)?, None));
            }
        }
        Ok(())
    }
}
