//! Linear layer: y = x Wᵀ + b with weights (OC, C), as llm.c's `matmul_forward` and `matmul_backward`. Rows are tokens.

use crate::matrix::{Matrix, MatrixMut};
use crate::product::Base;
use crate::product::{add_product, base_product, set_product};
use crate::vector;

/// `out` (n, OC) = `input` (n, C) · `weight` (OC, C)ᵀ + `bias` (OC).
pub fn forward(out: &mut [f32], input: &[f32], weight: &[f32], bias: &[f32]) {
    project(out, Base::Bias(bias), input, weight, bias.len());
}

/// `out` (n, OC) = `residual` (n, OC) + `input` (n, C) · `weight` (OC, C)ᵀ + `bias` (OC).
pub fn forward_residual(out: &mut [f32], residual: &[f32], input: &[f32], weight: &[f32], bias: &[f32]) {
    assert_eq!(residual.len(), out.len(), "the residual has another shape than the output");
    project(out, Base::Residual { residual, bias: Some(bias) }, input, weight, bias.len());
}

/// `out` (n, OC) = `residual` (n, OC) + `input` (n, C) · `weight` (OC, C)ᵀ.
pub fn forward_residual_without_bias(out: &mut [f32], residual: &[f32], input: &[f32], weight: &[f32], oc: usize) {
    assert_eq!(residual.len(), out.len(), "the residual has another shape than the output");
    project(out, Base::Residual { residual, bias: None }, input, weight, oc);
}

/// `out` (n, OC) = `input` (n, C) · `weight` (OC, C)ᵀ; the caller adds the bias, if there is one.
pub fn forward_without_bias(out: &mut [f32], input: &[f32], weight: &[f32], oc: usize) {
    project(out, Base::Zero, input, weight, oc);
}

/// Sets `out` (n, OC) to base + `input` (n, C) · `weight` (OC, C)ᵀ.
fn project(out: &mut [f32], base: Base, input: &[f32], weight: &[f32], oc: usize) {
    let (n, c) = (out.len() / oc, weight.len() / oc);
    let weight = Matrix::new(weight, oc, c, c).transposed();
    base_product(MatrixMut::new(out, n, oc, oc), base, Matrix::new(input, n, c, c), weight);
}

/// `input_gradient` (n, C) = `gradient` (n, OC) · `weight` (OC, C).
pub fn backward_input(input_gradient: &mut [f32], gradient: &[f32], weight: &[f32], oc: usize) {
    let (n, c) = (gradient.len() / oc, weight.len() / oc);
    set_product(
        MatrixMut::new(input_gradient, n, c, c),
        Matrix::new(gradient, n, oc, oc),
        Matrix::new(weight, oc, c, c),
    );
}

/// `weight_gradient` (OC, C) += `gradient` (n, OC)ᵀ · `input` (n, C); `bias_gradient` (OC) += column sums of `gradient`, unless it
/// is empty.
pub fn backward_weight(
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
    gradient: &[f32],
    input: &[f32],
    oc: usize,
) {
    let (n, c) = (gradient.len() / oc, weight_gradient.len() / oc);
    add_product(
        MatrixMut::new(weight_gradient, oc, c, c),
        Matrix::new(gradient, n, oc, oc).transposed(),
        Matrix::new(input, n, c, c),
    );
    if !bias_gradient.is_empty() {
        add_column_sums(bias_gradient, gradient);
    }
}

/// `sums` (OC) += the sum of the rows of `values` (n, OC). Four rows at a time, to pass fewer times over the sums.
fn add_column_sums(sums: &mut [f32], values: &[f32]) {
    let oc = sums.len();
    vector::widest(
        #[inline(always)]
        || {
            let groups = values.chunks_exact(4 * oc);
            let rest = groups.remainder();
            for rows in groups {
                let (first, rows) = rows.split_at(oc);
                let (second, rows) = rows.split_at(oc);
                let (third, fourth) = rows.split_at(oc);
                for ((((sum, a), b), c), d) in sums.iter_mut().zip(first).zip(second).zip(third).zip(fourth) {
                    *sum += (a + b) + (c + d);
                }
            }
            for row in rest.chunks_exact(oc) {
                for (sum, &value) in sums.iter_mut().zip(row) {
                    *sum += value;
                }
            }
        },
    );
}
