//! Times of scans, convolutions and indexers. Scans are bound by memory and launches more than by their products, which are small.

use super::part::{PartCosts, Sums};
use pipesim_models::layout::Replicas;
use pipesim_models::model_spec::{Operation, ScanWork, Window};

/// Speed of a scan's products, as a share of FlashAttention-2's. Mamba-2's scan takes as long as FlashAttention-2 at 2,048 tokens (Dao & Gu,
/// arXiv 2405.21060, figure 10: chunks of 256, state and heads of 64), with 768 FLOPs per channel where causal attention has 4,096.
const SCAN_SPEED: f64 = 768.0 / 4096.0;

/// Times of a scan's backward in forwards: it computes the states of chunks again, and two gradients per product.
const SCAN_BACKWARD: f64 = 3.0;

/// Bytes per score of an indexer: written in float32, and read by the choice.
const SCORE_BYTES: f64 = 8.0;

impl PartCosts<'_> {
    /// Adds an operation that mixes tokens without softmax.
    pub(super) fn add_mixing(&self, sums: &mut Sums, operation: &Operation) {
        match *operation {
            Operation::Convolve { width, .. } => self.add_traffic(sums, 2.0 * width as f64),
            Operation::Gate { width, gates } => self.add_traffic(sums, (2 * width + gates) as f64),
            Operation::Scan(work) => self.add_scan(sums, &work),
            Operation::Index { heads, size, .. } => self.add_index(sums, heads as f64, size as f64),
            _ => {}
        }
    }

    /// Adds a memory-bound kernel that moves this many elements per token, which tensor-parallel ranks share.
    fn add_traffic(&self, sums: &mut Sums, elements: f64) {
        let bytes = self.width() * self.tokens() * elements / self.tensor();
        sums.forward += self.machine.operation(bytes);
        sums.input += self.machine.operation(bytes * self.machine.stack.backward_traffic);
    }

    fn scan_speed(&self) -> f64 {
        let h = &self.machine.hardware;
        h.flash_speed(self.layout.precision.between_layers(), h.flash2_share)
    }

    fn add_scan(&self, sums: &mut Sums, work: &ScanWork) {
        let (machine, n, t) = (self.machine, self.tokens(), self.tensor());
        let elements = |count: usize| self.width() * n * count as f64 / t;
        let launches = (work.kernels as f64 - 1.0).max(0.0) * machine.hardware.kernel_us * 1e-6;
        let products = n * work.flops as f64 / t / (self.scan_speed() * SCAN_SPEED);
        let forward = machine.operation(elements(work.moved)).max(products) + launches;
        sums.forward += forward;
        sums.input += SCAN_BACKWARD * forward;
        if self.layout.cp > 1 {
            // ranks exchange tokens for heads before the scan, and back (Megatron's mamba_context_parallel.py)
            let ranks = Replicas { ranks: self.layout.cp, stride: self.layout.tp, shard: 1 };
            sums.ring += machine.gather(machine.group(self.layout, ranks), elements(work.kept));
        }
    }

    /// Adds an indexer, of which each tensor-parallel rank has a copy: scores of all keys, and the choice among them.
    fn add_index(&self, sums: &mut Sums, heads: f64, size: f64) {
        let (sequence, before) = (self.layout.sequence as usize, self.before as usize);
        let all = (Window::scores(None, before + sequence) - Window::scores(None, before)) as f64 / 2.0;
        let seen = all / sequence.max(1) as f64;
        let products = 2.0 * self.tokens() * seen * heads * size / self.scan_speed();
        let choice = self.machine.operation(SCORE_BYTES * self.tokens() * seen);
        sums.forward += products + choice;
        sums.input += 2.0 * products + choice;
    }
}
