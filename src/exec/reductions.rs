//! Barriers and sums over all workers of a session.

use super::arena::{ArenaLayout, Region};
use super::atomic::Ordering;
use super::heap::Heap;
use super::signal::{Aborted, WaitPolicy};
use super::spanning::{GroupList, Part};

/// Exchanges among all workers once per step: the barrier at its start, and the sum of the gradient norm.
#[derive(Debug)]
pub struct Reductions {
    /// Number of the group of all workers.
    group: usize,
    /// By worker: a part without numbers; its signal counts the steps that the worker was ready for.
    ready: Vec<Part>,
    /// By worker: partial sums of squares, for even and odd steps: a worker can be one step ahead of a reader.
    norms: [Vec<Part>; 2],
    /// Number of partial sums, by all workers.
    norm_parts: usize,
}

impl Reductions {
    /// Reserves memory for `workers` workers and a norm of `norm_parts` parts, and adds their group.
    pub fn new(layout: &mut ArenaLayout, groups: &mut GroupList, workers: u32, norm_parts: usize) -> Reductions {
        let group = groups.add((0..workers).collect());
        let ready = (0..workers).map(|_| layout.signal()).map(|arrived| Part { data: arrived.first(0), arrived });
        let ready = ready.collect();
        let done: Vec<Region> = (0..workers).map(|_| layout.signal()).collect();
        let mut part = |&arrived: &Region| Part { data: layout.region(norm_parts * size_of::<u64>()), arrived };
        let norms = [(); 2].map(|()| done.iter().map(&mut part).collect());
        Reductions { group, ready, norms, norm_parts }
    }

    /// Waits until all workers are ready to begin the step.
    pub fn meet(&self, heap: &Heap, worker: u32, step: u64, watch: &impl WaitPolicy) -> Result<(), Aborted> {
        // SAFETY: the parts have no numbers.
        unsafe { heap.publish(self.group, worker as usize, &self.ready, step + 1) };
        self.ready.iter().try_for_each(|part| heap.signal(part.arrived).spin(step + 1, watch))
    }

    /// Contributes the partial sums of squares of `worker`, by order number. Workers that hold the same stage may all contribute it.
    pub fn put_norms(&self, heap: &Heap, worker: u32, step: u64, sums: &[(usize, f64)]) {
        let parts = &self.norms[(step % 2) as usize];
        for &(number, square) in sums {
            let word = heap.arena().word(parts[worker as usize].data.word(number));
            word.store(square.to_bits(), Ordering::Relaxed);
        }
        // SAFETY: a worker that puts its part has read the parts of the step before last, and the signals of the last step showed
        // that all workers have.
        unsafe { heap.publish(self.group, worker as usize, parts, step + 1) };
    }

    /// Waits for all parts, and returns their sum in the order of their numbers, so that it does not depend on the division into
    /// workers.
    pub fn sum_norms(&self, heap: &Heap, step: u64, watch: &impl WaitPolicy) -> Result<f64, Aborted> {
        let parts = &self.norms[(step % 2) as usize];
        parts.iter().try_for_each(|part| heap.signal(part.arrived).wait(step + 1, watch))?;
        let of_worker = |part: &Part, number| heap.arena().word(part.data.word(number)).load(Ordering::Relaxed);
        // A worker without a part of this number holds 0 there; workers that hold the same stage have equal parts, which count once.
        let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
        let of_all = |number| parts.iter().map(|part| f64::from_bits(of_worker(part, number))).fold(0.0, larger);
        Ok((0..self.norm_parts).map(of_all).sum())
    }
}
