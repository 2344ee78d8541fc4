//! The arithmetic of this module on plain slices: what the kernels of the CUDA device are held against. Names and
//! shapes are the kernels'; n is the number of rows (tokens), C of channels, NH of heads, V of words. All matrices are
//! row-major.
//!
//! Slices of other lengths than stated are a mistake of the caller's and may panic.

use super::optimizer::{AdamW, Group};
use super::shape::Shape;
use super::{attention, embedding, gelu, layernorm, linear, loss, vector};

/// `out` (n, C) = `wte` (Vp, C) at each of the `tokens` (n) + `wpe` (maxT, C) at its position in its sequence.
pub fn embedding_forward(
    out: &mut [f32],
    tokens: &[u32],
    wte: &[f32],
    wpe: &[f32],
    tokens_a_sequence: usize,
    channels: usize,
) {
    embedding::forward(out, tokens, wte, wpe, tokens_a_sequence, channels);
}

/// `wte_gradient` (Vp, C) and `wpe_gradient` (maxT, C) += `gradient` (n, C) at the `tokens` (n) and their positions.
pub fn embedding_backward(
    wte_gradient: &mut [f32],
    wpe_gradient: &mut [f32],
    tokens: &[u32],
    gradient: &[f32],
    tokens_a_sequence: usize,
    channels: usize,
) {
    embedding::backward_weight(wte_gradient, wpe_gradient, tokens, gradient, tokens_a_sequence, channels);
}

/// `out` (n, C) = LayerNorm of `input` (n, C) with `weight` and `bias` (C); `statistics` (n, 2) = mean and reciprocal
/// standard deviation of each row.
pub fn layernorm_forward(out: &mut [f32], statistics: &mut [f32], input: &[f32], weight: &[f32], bias: &[f32]) {
    layernorm::forward(out, statistics, input, weight, bias);
}

/// What the backward of LayerNorm reads.
#[derive(Clone, Copy)]
pub struct LayerNorm<'a> {
    /// Gradient of the output (n, C).
    pub gradient: &'a [f32],
    /// Input of the forward (n, C).
    pub input: &'a [f32],
    /// The forward's statistics (n, 2).
    pub statistics: &'a [f32],
    /// Weight (C).
    pub weight: &'a [f32],
}

/// `out` (n, C) = `residual` (n, C) + gradient of LayerNorm's input; `sums` (2, C) = gradients of its weight and bias.
pub fn layernorm_backward(out: &mut [f32], sums: &mut [f32], residual: Option<&[f32]>, operands: LayerNorm) {
    let LayerNorm { gradient, input, statistics, weight } = operands;
    layernorm::backward_input(out, sums, residual, layernorm::Operands { gradient, input, statistics, weight });
}

/// The shape of causal self-attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// B
    pub sequences: usize,
    /// T
    pub tokens: usize,
    /// NH
    pub heads: usize,
    /// HS = C / NH
    pub size: usize,
}

impl AttentionShape {
    fn shape(self) -> Shape {
        let AttentionShape { sequences, tokens, heads, size } = self;
        Shape { sequences, tokens, heads, channels: heads * size }
    }
}

/// `out` (B, T, C) = attention on `qkv` (B, T, 3C); `log_sums` (B, NH, T) = log Σ exp of each row's scaled scores.
pub fn attention_forward(out: &mut [f32], log_sums: &mut [f32], qkv: &[f32], shape: AttentionShape) {
    let shape = shape.shape();
    let mut scratch = vec![0.0; attention::forward_scratch(&shape)];
    attention::forward(out, log_sums, qkv, &mut scratch, &shape);
}

/// What the backward of attention reads.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// Gradient of the output (B, T, C).
    pub gradient: &'a [f32],
    /// (B, T, 3C)
    pub qkv: &'a [f32],
    /// Output of the forward (B, T, C).
    pub output: &'a [f32],
    /// The forward's log-sums (B, NH, T).
    pub log_sums: &'a [f32],
}

/// `qkv_gradient` (B, T, 3C) = gradient of `qkv`.
pub fn attention_backward(qkv_gradient: &mut [f32], operands: Attention, shape: AttentionShape) {
    let Attention { gradient, qkv, output, log_sums } = operands;
    let shape = shape.shape();
    let mut scratch = vec![0.0; attention::backward_scratch(&shape)];
    let operands = attention::Operands { gradient, qkv, output, log_sums };
    attention::backward(qkv_gradient, operands, &mut scratch, &shape);
}

/// `out` = GELU of `values`, with the tanh approximation; `values` are replaced by its derivative there.
pub fn gelu_forward(out: &mut [f32], values: &mut [f32]) {
    let bias = vec![0.0; values.len()];
    gelu::forward(out, values, &bias);
}

/// `derivative` *= `gradient`, which makes it the gradient of GELU's input.
pub fn gelu_backward_input(derivative: &mut [f32], gradient: &[f32]) {
    gelu::backward(derivative, gradient);
}

/// `out` += `values`.
pub fn add(out: &mut [f32], values: &[f32]) {
    vector::add(out, values);
}

/// `bias_gradient` (OC) += the sum of the rows of `gradient` (n, OC).
pub fn bias_backward_weight(bias_gradient: &mut [f32], gradient: &[f32]) {
    let channels = bias_gradient.len();
    let (mut weight_gradient, input) = (vec![0.0; channels], vec![0.0; gradient.len() / channels]);
    linear::backward_weight(&mut weight_gradient, bias_gradient, gradient, &input);
}

/// Replaces the `logits` (n, V; rows `stride` apart) by the gradient of `weight` times the sum of the tokens' losses,
/// which is returned without the weight.
pub fn classifier_forward(logits: &mut [f32], vocabulary: usize, stride: usize, targets: &[u32], weight: f32) -> f64 {
    loss::forward(logits, vocabulary, stride, targets, weight)
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
    fn group(&self) -> Group {
        let mut group = Group::new(vec![[self.values.len(), 0]]);
        group.values.clone_from(&self.values);
        group.gradients.clone_from(&self.gradients);
        group.first_moments.clone_from(&self.first_moments);
        group.second_moments.clone_from(&self.second_moments);
        group
    }

    /// One step of AdamW, the `step`-th, counted from 1. `tied` is added to the gradient, and both are scaled.
    pub fn adamw_update(&mut self, tied: Option<&[f32]>, step: u32, hyper: &AdamW, gradient_scale: f32) {
        let mut group = self.group();
        group.adamw(tied, step, hyper, gradient_scale);
        let Group { values, gradients, first_moments, second_moments, .. } = group;
        *self = Parameters { values, gradients, first_moments, second_moments };
    }

    /// The sum of the squares of the gradient, with `tied` added to it.
    pub fn squared_norm(&self, tied: Option<&[f32]>) -> f64 {
        self.group().squared_norm(tied)
    }
}
