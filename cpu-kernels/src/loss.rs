//! Softmax cross-entropy on the logits, as llm.c's fused classifier: loss and gradient in one go.

use crate::vector;

/// Replaces the `logits` (n, V; a row starts `stride` elements after the one before) by the gradient of the loss, which is
/// `weight` times the sum over tokens of -log p(target). Returns that sum, without the weight.
pub fn forward(logits: &mut [f32], vocabulary: usize, stride: usize, targets: &[u32], weight: f32) -> f64 {
    vector::widest(
        #[inline(always)]
        || {
            let mut loss = 0.0;
            for (row, &target) in logits.chunks_exact_mut(stride).zip(targets) {
                let row = &mut row[..vocabulary];
                let target_logit = row[target as usize];
                let largest = vector::max(row);
                let sum = vector::exponentials(row, 1.0, largest);
                loss += f64::from(sum).ln() + f64::from(largest) - f64::from(target_logit);
                let factor = weight / sum;
                row.iter_mut().for_each(|value| *value *= factor);
                row[target as usize] -= weight;
            }
            loss
        },
    )
}
