//! The head: final LayerNorm, logits = LNf · wteᵀ, and the loss. Its forward computes the gradient of the logits too.

use super::block::STORAGE;
use super::pool::Pool;
use super::stash::{HeadForward, HeadWeight};
use cpu_kernels::Shape;
use cpu_kernels::matrix::{Matrix, MatrixMut, add_product, set_product};
use cpu_kernels::optimizer::ParameterGroup;
use cpu_kernels::{layernorm, loss};

/// Elements from one row of the logits to the next: whole cache lines.
fn stride(vocabulary: usize) -> usize {
    vocabulary.next_multiple_of(STORAGE.logits_multiple)
}

/// What the head's forward needs beside the hidden state.
pub(super) struct Context<'a> {
    pub(super) shape: &'a Shape,
    pub(super) vocabulary: usize,
    /// Final LayerNorm.
    pub(super) lnf: &'a ParameterGroup,
    /// Token embedding (Vp, C), the weight of the logits.
    pub(super) wte: &'a [f32],
}

/// Forward pass: consumes the hidden state (n, C). The gradient of the logits is `weight` times that of the sum of the
/// tokens' losses; the mean of the losses over the micro-batch's tokens is returned. `keep` is given the logits (n, V).
pub(super) fn forward(
    context: &Context,
    input: Vec<f32>,
    targets: &[u32],
    weight: f32,
    keep: Option<&mut Vec<f32>>,
    pool: &mut Pool,
) -> (HeadForward<Vec<f32>>, f32) {
    let &Context { shape, vocabulary, lnf: group, wte } = context;
    let (n, c, stride) = (shape.rows(), shape.channels, stride(vocabulary));
    let (mut lnf, mut statistics) = (pool.take(n * c), pool.take(n * 2));
    let (lnf_weight, lnf_bias) = group.parameters(0);
    layernorm::forward(&mut lnf, &mut statistics, &input, lnf_weight, lnf_bias);
    let mut logits = pool.take(n * stride);
    set_product(
        MatrixMut::new(&mut logits, n, vocabulary, stride),
        Matrix::new(&lnf, n, c, c),
        Matrix::new(wte, vocabulary, c, c).transposed(),
    );
    if let Some(kept) = keep {
        kept.clear();
        logits.chunks_exact(stride).for_each(|row| kept.extend_from_slice(&row[..vocabulary]));
    }
    let loss = loss::forward(&mut logits, vocabulary, stride, targets, weight) / n as f64;
    (HeadForward { input, lnf, statistics, logits_gradient: logits }, loss as f32)
}

/// Backward for the input: returns the gradient of the hidden state (n, C).
pub(super) fn backward_input(
    context: &Context,
    stash: HeadForward<Vec<f32>>,
    pool: &mut Pool,
) -> (HeadWeight<Vec<f32>>, Vec<f32>) {
    let &Context { shape, vocabulary, lnf: group, wte } = context;
    let (n, c) = (shape.rows(), shape.channels);
    let (mut gradient, mut input_gradient, mut sums) = (pool.take(n * c), pool.take(n * c), pool.take(2 * c));
    set_product(
        MatrixMut::new(&mut gradient, n, c, c),
        Matrix::new(&stash.logits_gradient, n, vocabulary, stride(vocabulary)),
        Matrix::new(wte, vocabulary, c, c),
    );
    let operands = layernorm::Operands {
        gradient: &gradient,
        input: &stash.input,
        statistics: &stash.statistics,
        weight: group.parameters(0).0,
    };
    layernorm::backward_input(&mut input_gradient, &mut sums, None, operands);
    pool.give([gradient, stash.input, stash.statistics]);
    (HeadWeight { lnf: stash.lnf, logits_gradient: stash.logits_gradient, sums }, input_gradient)
}

/// Backward for the weights: adds to the gradients of the final LayerNorm and to the head's part of that of `wte`.
pub(super) fn backward_weight(
    lnf: &mut ParameterGroup,
    wte_gradient: &mut [f32],
    shape: &Shape,
    vocabulary: usize,
    stash: HeadWeight<Vec<f32>>,
    pool: &mut Pool,
) {
    let (n, c) = (shape.rows(), shape.channels);
    add_product(
        MatrixMut::new(wte_gradient, vocabulary, c, c),
        Matrix::new(&stash.logits_gradient, n, vocabulary, stride(vocabulary)).transposed(),
        Matrix::new(&stash.lnf, n, c, c),
    );
    lnf.add_gradients(0, &stash.sums);
    pool.give(stash.buffers());
}
