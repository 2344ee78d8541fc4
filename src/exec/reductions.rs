//! What all devices tell each other once a step: that they are ready to begin, and their parts of the gradient norm.

use super::arena::{Dealer, Region};
use super::heap::Heap;
use super::signal::Aborted;
use super::watch::Watch;
use std::sync::atomic::Ordering;

/// The places for it.
#[derive(Debug)]
pub struct Reductions {
    /// By device: how many steps it was ready for.
    ready: Vec<Region>,
    /// Partial squares of the norm, of even and odd steps: a device can be one step ahead while another reads.
    norms: [Vec<Region>; 2],
    /// By device: of how many steps it has contributed its squares.
    norms_in: Vec<Region>,
}

impl Reductions {
    /// Places for `devices` devices and a norm of so many parts.
    pub fn new(dealer: &mut Dealer, devices: u32, norm_parts: usize) -> Reductions {
        Reductions {
            ready: (0..devices).map(|_| dealer.signal()).collect(),
            norms: [(); 2].map(|()| (0..norm_parts).map(|_| dealer.word()).collect()),
            norms_in: (0..devices).map(|_| dealer.signal()).collect(),
        }
    }

    /// All devices begin a step together.
    pub fn meet(&self, heap: &Heap, device: u32, step: u64, watch: &Watch) -> Result<(), Aborted> {
        heap.raise_everywhere(self.ready[device as usize], step + 1);
        self.ready.iter().try_for_each(|&ready| heap.signal(ready).spin(step + 1, watch))
    }

    /// Contributes `device`'s partial squares, by order number.
    pub fn put_norms(&self, heap: &Heap, device: u32, step: u64, parts: &[(usize, f64)]) {
        let (words, done) = (&self.norms[(step % 2) as usize], self.norms_in[device as usize]);
        for &(number, square) in parts {
            heap.store_everywhere(words[number], square.to_bits(), done);
        }
        heap.raise_everywhere(done, step + 1);
    }

    /// Waits for all devices' parts; their sum in order number, so that no partition changes a bit of it.
    pub fn sum_norms(&self, heap: &Heap, step: u64, watch: &Watch) -> Result<f64, Aborted> {
        self.norms_in.iter().try_for_each(|&done| heap.signal(done).wait(step + 1, watch))?;
        let parts = self.norms[(step % 2) as usize].iter();
        Ok(parts.map(|&word| f64::from_bits(heap.arena().word(word).load(Ordering::Relaxed))).sum())
    }
}
