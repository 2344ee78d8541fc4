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
