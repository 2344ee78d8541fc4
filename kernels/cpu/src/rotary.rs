//! Rotary positions (Su et al., arXiv 2104.09864) in Hugging Face's convention: channel i of a head is paired with channel
//! i + size / 2, and both turn by the pair's angle at the token's position.

use crate::vector;
use std::ops::Range;

/// Cosines and sines of every position and pair of channels.
pub struct Table {
    /// (T, size / 2)
    cosines: Vec<f32>,
    /// (T, size / 2)
    sines: Vec<f32>,
    pairs: usize,
}

/// Returns the cosines and sines (T, size / 2).
pub fn table(tokens: usize, frequencies: &[f64]) -> (Vec<f32>, Vec<f32>) {
    let angles = (0..tokens).flat_map(|at| frequencies.iter().map(move |frequency| at as f64 * frequency));
    angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip()
}

impl Table {
    /// A table for sequences of `tokens` tokens, by each pair's angle per position in radians.
    pub fn new(tokens: usize, frequencies: &[f64]) -> Table {
        let (cosines, sines) = table(tokens, frequencies);
        Table { cosines, sines, pairs: frequencies.len() }
    }

    /// Turns the first `heads` heads of each row of `values`; rows have `stride` elements, and sequences have the positions
    /// `tokens`. Backwards, a gradient is turned the other way.
    pub fn rotate(&self, values: &mut [f32], heads: usize, stride: usize, tokens: Range<usize>, backwards: bool) {
        let size = 2 * self.pairs;
        let direction = if backwards { -1.0 } else { 1.0 };
        vector::widest(
            #[inline(always)]
            || {
                for (row, values) in values.chunks_exact_mut(stride).enumerate() {
                    let at = (tokens.start + row % tokens.len()) * self.pairs;
                    let (cosines, sines) = (&self.cosines[at..][..self.pairs], &self.sines[at..][..self.pairs]);
                    for head in values[..heads * size].chunks_exact_mut(size) {
                        let (first, second) = head.split_at_mut(self.pairs);
                        for (((a, b), &cosine), &sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                            let sine = sine * direction;
                            (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
                        }
                    }
                }
            },
        );
    }
}
