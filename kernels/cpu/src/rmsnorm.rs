//! RMSNorm over the channels of each token (Zhang and Sennrich, arXiv 1910.07467), as Llama has it.

use crate::layernorm::Operands;
use crate::vector::{self, LANES};

/// `out` (n, C) = `input` / √(mean of squares + `epsilon`) * `weight`. `statistics` (n) receives the reciprocal of that root.
pub fn forward(out: &mut [f32], statistics: &mut [f32], input: &[f32], weight: &[f32], epsilon: f32) {
    let channels = weight.len();
    vector::widest(
        #[inline(always)]
        || {
            let rows = out.chunks_exact_mut(channels).zip(input.chunks_exact(channels));
            for ((out, input), statistic) in rows.zip(statistics) {
                let mean = vector::sum(input, |x| x * x) / channels as f32;
                let scale = 1.0 / (mean + epsilon).sqrt();
                for ((out, &x), &weight) in out.iter_mut().zip(input).zip(weight) {
                    *out = x * scale * weight;
                }
                *statistic = scale;
            }
        },
    );
}

/// `out` (n, C) = `residual` (n, C) + gradient of the input. `sums` (C) receives the gradient of the weight, which the backward
/// for the weights adds to the parameter's. The operands' statistics are (n).
pub fn backward_input(out: &mut [f32], sums: &mut [f32], residual: Option<&[f32]>, operands: Operands) {
    let Operands { gradient, input, statistics, weight } = operands;
    let channels = weight.len();
    sums.fill(0.0);
    vector::widest(
        #[inline(always)]
        || {
            let rows = gradient.chunks_exact(channels).zip(input.chunks_exact(channels));
            let rows = rows.zip(statistics).zip(out.chunks_exact_mut(channels));
            for (row, (((gradient, input), &scale), out)) in rows.enumerate() {
                let mean = row_sum(gradient, input, weight, scale, sums) / channels as f32;
                let values = gradient.iter().zip(input).zip(weight);
                if let Some(residual) = residual {
                    let residual = &residual[row * channels..][..channels];
                    for ((out, ((&g, &x), &w)), &residual) in out.iter_mut().zip(values).zip(residual) {
                        *out = (g * w - x * scale * mean).mul_add(scale, residual);
                    }
                } else {
                    for (out, ((&g, &x), &w)) in out.iter_mut().zip(values) {
                        *out = (g * w - x * scale * mean) * scale;
                    }
                }
            }
        },
    );
}

/// Sum over one row of g·w·normal; adds g·normal to `sums`.
#[inline(always)]
fn row_sum(gradient: &[f32], input: &[f32], weight: &[f32], scale: f32, sums: &mut [f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let chunks = gradient.chunks(LANES).zip(input.chunks(LANES)).zip(weight.chunks(LANES));
    for (((gradient, input), weight), sums) in chunks.zip(sums.chunks_mut(LANES)) {
        for lane in 0..gradient.len() {
            let normal = input[lane] * scale;
            lanes[lane] = (gradient[lane] * weight[lane]).mul_add(normal, lanes[lane]);
            sums[lane] = gradient[lane].mul_add(normal, sums[lane]);
        }
    }
    vector::tree(lanes)
}
