//! A buffer that one device fills and another reads, over and over: data, how many messages arrived, how many were read.

use super::arena::{Dealer, Region};
use super::heap::Heap;
use super::watch::{Aborted, Watch};

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

    /// Waits until the message of step `step` (from 0) may be put, then puts it to device `to`. For slots that carry one message
    /// a step.
    ///
    /// # Errors
    /// Called off while the other side still reads the step before.
    pub fn put_once(&self, heap: &Heap, to: u32, step: u64, data: &[f32], watch: &Watch) -> Result<(), Aborted> {
        heap.signal(self.read).wait(step, watch)?;
        self.put(heap, to, data, step + 1);
        Ok(())
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

    /// Waits for the message of step `step` that device `from` put, hands it to `add`, and releases it.
    ///
    /// # Errors
    /// Called off.
    pub fn take_once(
        &self,
        heap: &Heap,
        from: u32,
        step: u64,
        watch: &Watch,
        add: impl FnOnce(&[f32]),
    ) -> Result<(), Aborted> {
        heap.signal(self.arrived).wait(step + 1, watch)?;
        self.take(heap, add);
        heap.raise(from, self.read, step + 1);
        Ok(())
    }
}
