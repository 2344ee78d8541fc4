//! GELU with the tanh approximation, 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), which equals x · sigmoid(2u) with
//! u = √(2/π) (x + 0.044715 x³).

use crate::vector;

const CUBE: f32 = 0.044_715;
const ROOT: f32 = 0.797_884_6; // √(2/π)

/// `out` = gelu(`values` + `bias`) for rows of `bias.len()` elements; `values` is overwritten by the derivative at that
/// point, which is all that the backward needs of it.
pub fn forward(out: &mut [f32], values: &mut [f32], bias: &[f32]) {
    vector::widest(
        #[inline(always)]
        || {
            for (out, values) in out.chunks_exact_mut(bias.len()).zip(values.chunks_exact_mut(bias.len())) {
                for ((out, value), &bias) in out.iter_mut().zip(values).zip(bias) {
                    let x = *value + bias;
                    let square = x * x;
                    let twice_u = 2.0 * ROOT * x * square.mul_add(CUBE, 1.0);
                    let sigmoid = 1.0 / (1.0 + vector::exp(-twice_u));
                    let y = x * sigmoid;
                    let slope = 2.0 * ROOT * square.mul_add(3.0 * CUBE, 1.0);
                    *out = y;
                    *value = (y * (1.0 - sigmoid)).mul_add(slope, sigmoid);
                }
            }
        },
    );
}

/// `derivative` becomes the gradient of gelu's input: it is multiplied by `gradient`, the gradient of gelu's output.
pub fn backward(derivative: &mut [f32], gradient: &[f32]) {
    vector::widest(
        #[inline(always)]
        || {
            for (derivative, &gradient) in derivative.iter_mut().zip(gradient) {
                *derivative *= gradient;
            }
        },
    );
}
