//! Barriers and sums over all workers of a session.

use super::arena::{ArenaLayout, Region};
use super::atomic::Ordering;
use super::heap::Heap;
use super::signal::{Aborted, WaitPolicy};

/// Exchanges among all workers once per step: the barrier at its start, and the sum of the gradient norm.
#[derive(Debug)]
pub struct Reductions {
    /// By worker: number of steps that it was ready for.
    ready: Vec<Region>,
    /// Partial sums of squares, for even and odd steps: a worker can be one step ahead of a reader.
    norms: [Vec<Region>; 2],
    /// By worker: number of steps to which it has contributed its sums.
    norms_in: Vec<Region>,
}

impl Reductions {
    /// Reserves memory for `workers` workers and a norm of `norm_parts` parts.
    pub fn new(layout: &mut ArenaLayout, workers: u32, norm_parts: usize) -> Reductions {
        Reductions {
            ready: (0..workers).map(|_| layout.signal()).collect(),
            norms: [(); 2].map(|()| (0..norm_parts).map(|_| layout.word()).collect()),
            norms_in: (0..workers).map(|_| layout.signal()).collect(),
        }
    }

    /// Waits until all workers are ready to begin the step.
    pub fn meet(&self, heap: &Heap, worker: u32, step: u64, watch: &impl WaitPolicy) -> Result<(), Aborted> {
        heap.raise_everywhere(self.ready[worker as usize], step + 1);
        self.ready.iter().try_for_each(|&ready| heap.signal(ready).spin(step + 1, watch))
    }

    /// Contributes the partial sums of squares of `worker`, by order number.
    pub fn put_norms(&self, heap: &Heap, worker: u32, step: u64, parts: &[(usize, f64)]) {
        let (words, done) = (&self.norms[(step % 2) as usize], self.norms_in[worker as usize]);
        for &(number, square) in parts {
            heap.store_everywhere(words[number], square.to_bits(), done);
        }
        heap.raise_everywhere(done, step + 1);
    }

    /// Waits for all parts, and returns their sum in the order of their numbers, so that it does not depend on the division into
    /// workers.
    pub fn sum_norms(&self, heap: &Heap, step: u64, watch: &impl WaitPolicy) -> Result<f64, Aborted> {
        self.norms_in.iter().try_for_each(|&done| heap.signal(done).wait(step + 1, watch))?;
        let parts = self.norms[(step % 2) as usize].iter();
        Ok(parts.map(|&word| f64::from_bits(heap.arena().word(word).load(Ordering::Relaxed))).sum())
    }
}
