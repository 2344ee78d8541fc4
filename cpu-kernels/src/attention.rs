//! Causal self-attention on the fused projection `qkv` (B, T, (NH + 2G) HS): queries, keys and values of a head are strided
//! views of it, never copied. G groups of heads share keys and values (Ainslie et al., arXiv 2305.13245). Blocks of queries meet only the keys up to their last one. As in flash attention
//! (Dao et al., arXiv 2205.14135), the forward keeps one number per row, log Σ exp, and the backward recomputes the weights.

use crate::matrix::{Matrix, MatrixMut, add_product, set_product};
use crate::vector::{self, LANES};

/// Queries in a block.
const BLOCK: usize = 96;

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sequences, B.
    pub sequences: usize,
    /// Tokens per sequence, T.
    pub tokens: usize,
    /// Heads of queries, NH.
    pub heads: usize,
    /// Heads of keys and of values, G; divides `heads`.
    pub groups: usize,
    /// Channels per head, HS.
    pub size: usize,
}

impl Shape {
    /// Elements of a row of `qkv`.
    pub fn fused(&self) -> usize {
        (self.heads + 2 * self.groups) * self.size
    }

    /// Elements of a row of the output, NH HS.
    pub fn width(&self) -> usize {
        self.heads * self.size
    }
}

/// Elements of scratch that [`forward`] needs.
pub fn forward_scratch(shape: &Shape) -> usize {
    BLOCK * shape.tokens
}

/// Elements of scratch that [`backward`] needs.
pub fn backward_scratch(shape: &Shape) -> usize {
    2 * BLOCK * shape.tokens
}

/// Where one head of one sequence starts in `qkv`, in the output, and in the row statistics.
struct HeadAt {
    query: usize,
    key: usize,
    value: usize,
    output: usize,
    row: usize,
    /// Whether it is the first of those that share its keys and values.
    leads: bool,
}

fn heads(shape: Shape) -> impl Iterator<Item = HeadAt> {
    let Shape { sequences, tokens, heads, groups, size } = shape;
    (0..sequences * heads).map(move |index| {
        let (sequence, head) = (index / heads, index % heads);
        let group = head / (heads / groups);
        let start = sequence * tokens * shape.fused();
        HeadAt {
            query: start + head * size,
            key: start + (heads + group) * size,
            value: start + (heads + groups + group) * size,
            output: sequence * tokens * shape.width() + head * size,
            row: index * tokens,
            leads: head % (heads / groups) == 0,
        }
    })
}

/// `out` (B, T, NH HS) = softmax(q kᵀ / √HS, causal) v; `log_sums` (B, NH, T) = log Σ exp of each row's scaled scores.
pub fn forward(out: &mut [f32], log_sums: &mut [f32], qkv: &[f32], scratch: &mut [f32], shape: &Shape) {
    let (tokens, size, fused, width) = (shape.tokens, shape.size, shape.fused(), shape.width());
    let scale = 1.0 / (size as f32).sqrt();
    let mut inverse_sums = [0.0; BLOCK];
    for at in heads(*shape) {
        for start in (0..tokens).step_by(BLOCK) {
            let end = tokens.min(start + BLOCK);
            let rows = end - start;
            let scores = &mut scratch[..rows * end];
            set_product(
                MatrixMut::new(scores, rows, end, end),
                Matrix::new(&qkv[at.query + start * fused..], rows, size, fused),
                Matrix::new(&qkv[at.key..], end, size, fused).transposed(),
            );
            softmax(scores, &mut log_sums[at.row + start..][..rows], &mut inverse_sums[..rows], start, scale);
            let out = &mut out[at.output + start * width..];
            set_product(
                MatrixMut::new(out, rows, size, width),
                Matrix::new(scores, rows, end, end),
                Matrix::new(&qkv[at.value..], end, size, fused),
            );
            for (row, &inverse) in out.chunks_mut(width).zip(&inverse_sums[..rows]) {
                row[..size].iter_mut().for_each(|value| *value *= inverse);
            }
        }
    }
}

/// Elements of row `row` (the query's position in the sequence) that need work: those up to the diagonal, rounded up to
/// whole vectors. What is rounded up is set to minus infinity, what lies beyond to 0.
#[inline(always)]
fn mask(scores: &mut [f32], row: usize) -> usize {
    let width = (row + 1).next_multiple_of(LANES).min(scores.len());
    scores[row + 1..width].fill(f32::NEG_INFINITY);
    scores[width..].fill(0.0);
    width
}

/// Replaces the scores of queries `start..` by exp(scaled score - row's largest), 0 above the diagonal.
fn softmax(scores: &mut [f32], log_sums: &mut [f32], inverse_sums: &mut [f32], start: usize, scale: f32) {
    let end = start + log_sums.len();
    vector::widest(
        #[inline(always)]
        || {
            let rows = scores.chunks_exact_mut(end).zip(log_sums).zip(inverse_sums);
            for (row, ((scores, log_sum), inverse_sum)) in rows.enumerate() {
                let width = mask(scores, start + row);
                let largest = vector::max(&scores[..width]) * scale;
                let sum = vector::exponentials(&mut scores[..width], scale, largest);
                *log_sum = largest + sum.ln();
                *inverse_sum = 1.0 / sum;
            }
        },
    );
}

/// What [`backward`] reads: the operands and results of the forward pass and the gradient of its output.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// (B, T, NH HS)
    pub gradient: &'a [f32],
    /// (B, T, (NH + 2G) HS)
    pub qkv: &'a [f32],
    /// (B, T, NH HS)
    pub output: &'a [f32],
    /// (B, NH, T)
    pub log_sums: &'a [f32],
}

/// `qkv_gradient` (B, T, (NH + 2G) HS) = gradient of `qkv`.
pub fn backward(qkv_gradient: &mut [f32], operands: Operands, scratch: &mut [f32], shape: &Shape) {
    let Operands { gradient, qkv, output, log_sums } = operands;
    let (tokens, size, fused, width) = (shape.tokens, shape.size, shape.fused(), shape.width());
    let scale = 1.0 / (size as f32).sqrt();
    let (weights, slopes) = scratch.split_at_mut(BLOCK * tokens);
    for at in heads(*shape) {
        // from the last block to the first: the last one meets all keys, so that of the first head sets what the others add to
        for start in (0..tokens).step_by(BLOCK).rev() {
            let end = tokens.min(start + BLOCK);
            let rows = end - start;
            let accumulate = if end == tokens && at.leads { set_product } else { add_product };
            let (weights, slopes) = (&mut weights[..rows * end], &mut slopes[..rows * end]);
            let query = Matrix::new(&qkv[at.query + start * fused..], rows, size, fused);
            let key = Matrix::new(&qkv[at.key..], end, size, fused);
            let value = Matrix::new(&qkv[at.value..], end, size, fused);
            let output = &output[at.output + start * width..];
            let gradient = &gradient[at.output + start * width..];
            set_product(MatrixMut::new(weights, rows, end, end), query, key.transposed());
            let gradient_rows = Matrix::new(gradient, rows, size, width);
            set_product(MatrixMut::new(slopes, rows, end, end), gradient_rows, value.transposed());
            let rows_of_block = output.chunks(width).zip(gradient.chunks(width)).map(|(o, g)| (&o[..size], &g[..size]));
            softmax_backward(weights, slopes, &log_sums[at.row + start..][..rows], rows_of_block, start, scale);
            let (weights, slopes) = (Matrix::new(weights, rows, end, end), Matrix::new(slopes, rows, end, end));
            let value_gradient = MatrixMut::new(&mut qkv_gradient[at.value..], end, size, fused);
            accumulate(value_gradient, weights.transposed(), gradient_rows);
            let key_gradient = MatrixMut::new(&mut qkv_gradient[at.key..], end, size, fused);
            accumulate(key_gradient, slopes.transposed(), query);
            let query_gradient = &mut qkv_gradient[at.query + start * fused..];
            set_product(MatrixMut::new(query_gradient, rows, size, fused), slopes, key);
        }
    }
}

/// Replaces `weights`, the scores of queries `start..`, by the attention weights, and `slopes`, the gradient of the
/// weights, by that of the unscaled scores. `rows` yields each query's output and its gradient.
fn softmax_backward<'a>(
    weights: &mut [f32],
    slopes: &mut [f32],
    log_sums: &[f32],
    rows: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    start: usize,
    scale: f32,
) {
    let end = start + log_sums.len();
    vector::widest(
        #[inline(always)]
        || {
            let scratch = weights.chunks_exact_mut(end).zip(slopes.chunks_exact_mut(end));
            for (row, (((weights, slopes), &log_sum), (output, gradient))) in
                scratch.zip(log_sums).zip(rows).enumerate()
            {
                let width = mask(weights, start + row);
                let mean = vector::dot(output, gradient);
                for (weight, slope) in weights[..width].iter_mut().zip(&mut slopes[..width]) {
                    *weight = vector::exp(weight.mul_add(scale, -log_sum));
                    *slope = *weight * (*slope - mean) * scale;
                }
                slopes[width..].fill(0.0);
            }
        },
    );
}
