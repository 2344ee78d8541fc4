//! Buffers that are used again, by length, last returned first: no allocation once every length has been seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A memory: a device's, or the host's. The threads that compute and copy share it.
#[derive(Clone, Default)]
pub(super) struct BufferPool {
    free: Arc<Mutex<BTreeMap<usize, Vec<Vec<f32>>>>>,
}

impl BufferPool {
    /// A buffer of `length` elements that hold anything.
    pub(super) fn take(&self, length: usize) -> Vec<f32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let known = free.get_mut(&length).and_then(Vec::pop);
        drop(free);
        known.unwrap_or_else(|| vec![0.0; length])
    }

    /// Frees the buffers that nobody holds.
    pub(super) fn clear(&self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes a buffer back.
    pub(super) fn give(&self, buffer: Vec<f32>) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).entry(buffer.len()).or_default().push(buffer);
    }
}

/// The memory of a device, and the memory of its host.
#[derive(Clone)]
pub struct Memories {
    pub(super) device: BufferPool,
    pub(super) host: BufferPool,
}

impl Memories {
    /// Moves a buffer of the device to the host.
    pub fn to_host(&self, buffer: Vec<f32>) -> Vec<f32> {
        moved(buffer, &self.device, &self.host)
    }

    /// Moves a buffer of the host to the device.
    pub fn to_device(&self, buffer: Vec<f32>) -> Vec<f32> {
        moved(buffer, &self.host, &self.device)
    }
}

/// Copies a buffer to another memory, and gives it back to its own.
fn moved(buffer: Vec<f32>, from: &BufferPool, to: &BufferPool) -> Vec<f32> {
    let mut copy = to.take(buffer.len());
    copy.copy_from_slice(&buffer);
    from.give(buffer);
    copy
}
