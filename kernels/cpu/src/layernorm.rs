//! LayerNorm over the channels of each token, as llm.c's `layernorm_forward` and `layernorm_backward`.

use crate::vector::{self, LANES};

/// `out` (n, C) = (`input` - mean) / √(variance + `epsilon`) * `weight` + `bias`. `statistics` (n, 2) receives each row's mean
/// and reciprocal standard deviation.
pub fn forward(out: &mut [f32], statistics: &mut [f32], input: &[f32], [weight, bias]: [&[f32]; 2], epsilon: f32) {
    let channels = weight.len();
    vector::widest(
        #[inline(always)]
        || {
            let rows = out.chunks_exact_mut(channels).zip(input.chunks_exact(channels));
            for ((out, input), statistics) in rows.zip(statistics.chunks_exact_mut(2)) {
                let mean = vector::sum(input, |x| x) / channels as f32;
                let variance = vector::sum(input, |x| (x - mean) * (x - mean)) / channels as f32;
                let scale = 1.0 / (variance + epsilon).sqrt();
                for (((out, &x), &weight), &bias) in out.iter_mut().zip(input).zip(weight).zip(bias) {
                    *out = ((x - mean) * scale).mul_add(weight, bias);
                }
                statistics.copy_from_slice(&[mean, scale]);
            }
        },
    );
}

/// What [`backward_input`] reads: the operands of the forward pass and the gradient of its output.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// (n, C)
    pub gradient: &'a [f32],
    /// (n, C)
    pub input: &'a [f32],
    /// (n, 2)
    pub statistics: &'a [f32],
    /// (C)
    pub weight: &'a [f32],
}

/// `out` (n, C) = `residual` (n, C) + gradient of the input. `sums` (2, C) receives the gradients of weight and bias:
/// they fall out of the same pass, and are added to the parameter's gradients by the backward for the weights.
pub fn backward_input(out: &mut [f32], sums: &mut [f32], residual: Option<&[f32]>, operands: Operands) {
    let Operands { gradient, input, statistics, weight } = operands;
    let channels = weight.len();
    sums.fill(0.0);
    let (weight_sums, bias_sums) = sums.split_at_mut(channels);
    vector::widest(
        #[inline(always)]
        || {
            let rows = gradient.chunks_exact(channels).zip(input.chunks_exact(channels));
            let rows = rows.zip(statistics.chunks_exact(2)).zip(out.chunks_exact_mut(channels));
            for (row, (((gradient, input), statistics), out)) in rows.enumerate() {
                let (mean, scale) = (statistics[0], statistics[1]);
                let (first, second) = row_sums(gradient, input, weight, mean, scale, weight_sums, bias_sums);
                let (first, second) = (first / channels as f32, second / channels as f32);
                let values = gradient.iter().zip(input).zip(weight);
                if let Some(residual) = residual {
                    let residual = &residual[row * channels..][..channels];
                    for ((out, ((&g, &x), &w)), &residual) in out.iter_mut().zip(values).zip(residual) {
                        let normal = (x - mean) * scale;
                        *out = (g * w - first - normal * second).mul_add(scale, residual);
                    }
                } else {
                    for (out, ((&g, &x), &w)) in out.iter_mut().zip(values) {
                        let normal = (x - mean) * scale;
                        *out = (g * w - first - normal * second) * scale;
                    }
                }
            }
        },
    );
}

/// Sums over one row of g·w and of g·w·normal; adds g·normal to `weight_sums` and g to `bias_sums`.
#[inline(always)]
fn row_sums(
    gradient: &[f32],
    input: &[f32],
    weight: &[f32],
    mean: f32,
    scale: f32,
    weight_sums: &mut [f32],
    bias_sums: &mut [f32],
) -> (f32, f32) {
    let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
    let (gradients, gradient) = gradient.as_chunks::<LANES>();
    let (inputs, input) = input.as_chunks::<LANES>();
    let (weights, weight) = weight.as_chunks::<LANES>();
    let (weights_sums, weight_sums) = weight_sums.as_chunks_mut::<LANES>();
    let (biases_sums, bias_sums) = bias_sums.as_chunks_mut::<LANES>();
    let chunks = gradients.iter().zip(inputs).zip(weights).zip(weights_sums).zip(biases_sums);
    for ((((gradient, input), weight), weight_sums), bias_sums) in chunks {
        for lane in 0..LANES {
            let normal = (input[lane] - mean) * scale;
            let product = gradient[lane] * weight[lane];
            first[lane] += product;
            second[lane] = product.mul_add(normal, second[lane]);
            weight_sums[lane] = gradient[lane].mul_add(normal, weight_sums[lane]);
            bias_sums[lane] += gradient[lane];
        }
    }
    let rest =
        gradient.iter().zip(input).zip(weight).zip(weight_sums).zip(bias_sums).zip(first.iter_mut().zip(&mut second));
    for (((((&gradient, &input), &weight), weight_sum), bias_sum), (first, second)) in rest {
        let normal = (input - mean) * scale;
        let product = gradient * weight;
        *first += product;
        *second = product.mul_add(normal, *second);
        *weight_sum = gradient.mul_add(normal, *weight_sum);
        *bias_sum += gradient;
    }
    (vector::tree(first), vector::tree(second))
}
