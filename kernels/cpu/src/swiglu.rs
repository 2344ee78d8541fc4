//! SwiGLU (Shazeer, arXiv 2002.05202): silu(gate) · up, where silu(x) = x · sigmoid(x). A row holds the gate, then up.

use crate::vector;

/// `out` (n, F) = silu(gate) · up of `values` (n, 2F), which the backward needs again.
pub fn forward(out: &mut [f32], values: &[f32], width: usize) {
    vector::widest(
        #[inline(always)]
        || {
            for (out, row) in out.chunks_exact_mut(width).zip(values.chunks_exact(2 * width)) {
                let (gate, up) = row.split_at(width);
                for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                    *out = gate / (1.0 + vector::exp(-gate)) * up;
                }
            }
        },
    );
}

/// Replaces `values` (n, 2F) by their gradient, given the gradient of the output, `gradient` (n, F).
pub fn backward(values: &mut [f32], gradient: &[f32], width: usize) {
    vector::widest(
        #[inline(always)]
        || {
            for (row, gradient) in values.chunks_exact_mut(2 * width).zip(gradient.chunks_exact(width)) {
                let (gate, up) = row.split_at_mut(width);
                for ((gate, up), &gradient) in gate.iter_mut().zip(up).zip(gradient) {
                    let sigmoid = 1.0 / (1.0 + vector::exp(-*gate));
                    let silu = *gate * sigmoid;
                    let slope = silu.mul_add(1.0 - sigmoid, sigmoid);
                    *gate = gradient * *up * slope;
                    *up = gradient * silu;
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_the_slopes_in_double_precision() {
        let value = |gate: f64, up: f64| gate / (1.0 + (-gate).exp()) * up;
        let pairs: Vec<(f32, f32)> = (-90..90).map(|i| (i as f32 * 0.1, (i * 7 % 11) as f32 - 5.0)).collect();
        for (gate, up) in pairs {
            let (mut out, mut values) = ([0.0], [gate, up]);
            forward(&mut out, &values, 1);
            backward(&mut values, &[2.0], 1);
            let (gate, up) = (f64::from(gate), f64::from(up));
            assert!((f64::from(out[0]) - value(gate, up)).abs() < 1e-5);
            let slopes =
                [value(gate + 1e-5, up) - value(gate - 1e-5, up), value(gate, up + 1e-5) - value(gate, up - 1e-5)];
            for (found, slope) in values.iter().zip(slopes) {
                assert!((f64::from(*found) - 2.0 * slope / 2e-5).abs() < 1e-4, "{gate} {up}");
            }
        }
    }
}
