//! Buffers that are used again, by length, last returned first: no allocation once every length has been seen.

use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Pool {
    free: BTreeMap<usize, Vec<Vec<f32>>>,
}

impl Pool {
    /// A buffer of `length` elements that hold anything.
    pub(super) fn take(&mut self, length: usize) -> Vec<f32> {
        self.free.get_mut(&length).and_then(Vec::pop).unwrap_or_else(|| vec![0.0; length])
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buffer: Vec<f32>) {
        self.free.entry(buffer.len()).or_default().push(buffer);
    }
}
