//! A buffer that one device fills and another reads, over and over: data, how many messages arrived, how many were read.

use super::arena::{Dealer, Region};
use super::heap::Heap;

/// The slot's places in the heap.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Its data.
    pub data: Region,
    /// How many messages have arrived in it.
    pub arrived: Region,
    /// How many were read.
    pub read: Region,
}

impl Slot {
    /// A slot for messages of `len` float32 numbers.
    pub fn new(dealer: &mut Dealer, len: usize) -> Slot {
        Slot { data: dealer.region(len * size_of::<f32>()), arrived: dealer.signal(), read: dealer.signal() }
    }

    /// Puts a message to device `to`, after which the slot's signal has this value. Whoever calls it has seen that the message
    /// before was read.
    pub fn put(&self, heap: &Heap, to: u32, data: &[f32], value: u64) {
        // SAFETY: the message before was read, and this one has not arrived.
        unsafe { heap.put(to, self.data.first(size_of_val(data)), data, self.arrived, value) };
    }

    /// Hands the message in the slot to `use_it`. Whoever calls it has seen that it arrived, and has not released it.
    pub fn take(&self, heap: &Heap, use_it: impl FnOnce(&[f32])) {
        // SAFETY: it has arrived, and the next one waits for the release.
        use_it(unsafe { heap.arena().data(self.data) });
    }
}
