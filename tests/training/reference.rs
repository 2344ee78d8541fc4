//! The CPU's kernels under the names and shapes of the CUDA kernels that are compared with them; n is the number of rows
//! (tokens), C of channels, NH of heads, V of words. All matrices are row-major.

use cpu_kernels::attention::Shape;
use cpu_kernels::optimizer::{AdamW, ParameterGroup};
use cpu_kernels::{attention, gelu, linear};

pub use cpu_kernels::attention::Operands as Attention;
pub use cpu_kernels::embedding::{backward_weight as embedding_backward, forward as embedding_forward};
pub use cpu_kernels::gelu::backward as gelu_backward_input;
pub use cpu_kernels::layernorm::{
    Operands as LayerNorm, backward_input as layernorm_backward, forward as layernorm_forward,
};
pub use cpu_kernels::loss::forward as classifier_forward;
pub use cpu_kernels::vector::add;

/// `out` (B, T, C) = attention on `qkv` (B, T, 3C); `log_sums` (B, NH, T) = log Σ exp of each row's scaled scores.
pub fn attention_forward(out: &mut [f32], log_sums: &mut [f32], qkv: &[f32], shape: Shape) {
    let mut scratch = vec![0.0; attention::forward_scratch(&shape)];
    attention::forward(out, log_sums, qkv, &mut scratch, &shape);
}

/// `qkv_gradient` (B, T, 3C) = gradient of `qkv`.
pub fn attention_backward(qkv_gradient: &mut [f32], operands: Attention, shape: Shape) {
    let mut scratch = vec![0.0; attention::backward_scratch(&shape)];
    attention::backward(qkv_gradient, operands, &mut scratch, &shape);
}

/// `out` = GELU of `values`, with the tanh approximation; `values` are replaced by its derivative there.
pub fn gelu_forward(out: &mut [f32], values: &mut [f32]) {
    let bias = vec![0.0; values.len()];
    gelu::forward(out, values, &bias);
}

/// `bias_gradient` (OC) += the sum of the rows of `gradient` (n, OC).
pub fn bias_backward_weight(bias_gradient: &mut [f32], gradient: &[f32]) {
    let channels = bias_gradient.len();
    let (mut weight_gradient, input) = (vec![0.0; channels], vec![0.0; gradient.len() / channels]);
    linear::backward_weight(&mut weight_gradient, bias_gradient, gradient, &input, channels);
}

/// Parameters, their gradient and AdamW's moments, all of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The parameters.
    pub values: Vec<f32>,
    /// Their gradient.
    pub gradients: Vec<f32>,
    /// m
    pub first_moments: Vec<f32>,
    /// v
    pub second_moments: Vec<f32>,
}

impl Parameters {
    fn group(&self) -> ParameterGroup {
        let mut group = ParameterGroup::new(&[&self.values]);
        group.gradients.clone_from(&self.gradients);
        group.first_moments.clone_from(&self.first_moments);
        group.second_moments.clone_from(&self.second_moments);
        group
    }

    /// One step of AdamW, the `step`-th, counted from 1. `tied` is added to the gradient, and both are scaled.
    pub fn adamw_update(&mut self, tied: Option<&[f32]>, step: u32, hyper: &AdamW, gradient_scale: f32) {
        let mut group = self.group();
        group.adamw(tied, step, hyper, gradient_scale);
        let ParameterGroup { values, gradients, first_moments, second_moments, .. } = group;
        *self = Parameters { values, gradients, first_moments, second_moments };
    }

    /// The sum of the squares of the gradient, with `tied` added to it.
    pub fn squared_norm(&self, tied: Option<&[f32]>) -> f64 {
        self.group().squared_norm(tied)
    }
}
