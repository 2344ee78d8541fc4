//! Softmax cross-entropy on the logits, as llm.c's fused classifier: loss and gradient in one go.

//!
//! Where several ranks share the vocabulary (Shoeybi et al., arXiv 1909.08053, section 3), each has the logits of some ids. Of each
//! token they exchange the largest logit, then the sum of exponentials and the target's logit: [`largest`], [`exponentials`],
//! [`gradient`].

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

/// Logits of the ids `first` to `first + vocabulary`, (n, `vocabulary`) with rows `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    pub first: u32,
    pub vocabulary: usize,
    pub stride: usize,
    pub targets: &'a [u32],
}

impl Share<'_> {
    /// The place of a target in its row, if it is here.
    fn place(&self, target: u32) -> Option<usize> {
        Some(target.wrapping_sub(self.first) as usize).filter(|&place| place < self.vocabulary)
    }
}

/// Sets `largest` (n) to the largest logit of each row; minus infinity if the share is empty.
pub fn largest(logits: &[f32], share: Share, largest: &mut [f32]) {
    vector::widest(
        #[inline(always)]
        || {
            for (row, largest) in logits.chunks_exact(share.stride).zip(largest) {
                *largest = vector::max(&row[..share.vocabulary]);
            }
        },
    );
}

/// Replaces the logits by e^(logit - `largest`), and sets `sums` (n) to the sum of each row and `target_logits` (n) to the
/// target's logit less the largest, or 0 where the target is in another share.
pub fn exponentials(logits: &mut [f32], share: Share, largest: &[f32], [sums, target_logits]: [&mut [f32]; 2]) {
    let rows = logits.chunks_exact_mut(share.stride).zip(share.targets).zip(largest);
    vector::widest(
        #[inline(always)]
        || {
            for (((row, &target), &largest), (sum, logit)) in rows.zip(sums.iter_mut().zip(target_logits)) {
                let row = &mut row[..share.vocabulary];
                *logit = share.place(target).map_or(0.0, |place| row[place] - largest);
                *sum = vector::exponentials(row, 1.0, largest);
            }
        },
    );
}

/// Replaces the exponentials by the gradient of the loss, with the `sums` and the targets' logits of all shares. Returns the sum
/// of the tokens' losses, as [`forward`] does.
pub fn gradient(exponentials: &mut [f32], share: Share, [sums, target_logits]: [&[f32]; 2], weight: f32) -> f64 {
    let rows = exponentials.chunks_exact_mut(share.stride).zip(share.targets);
    vector::widest(
        #[inline(always)]
        || {
            let mut loss = 0.0;
            for ((row, &target), (&sum, &logit)) in rows.zip(sums.iter().zip(target_logits)) {
                loss += f64::from(sum).ln() - f64::from(logit);
                let factor = weight / sum;
                row[..share.vocabulary].iter_mut().for_each(|value| *value *= factor);
                if let Some(place) = share.place(target) {
                    row[place] -= weight;
                }
            }
            loss
        },
    )
}
