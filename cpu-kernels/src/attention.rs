//! Causal self-attention on the fused projection `qkv` (B, T, (NH + 2G) HS): queries, keys and values of a head are strided
//! views of it, never copied. G groups of heads share keys and values (Ainslie et al., arXiv 2305.13245). Blocks of queries
//! meet only the keys up to their last one. As in flash attention (Dao et al., arXiv 2205.14135), the forward keeps one number
//! per row, log Σ exp, and the backward recomputes the weights.
//!
//! Scores are computed transposed, one row per key: every product then reads its operands as they are in memory, and the
//! softmax works on whole vectors of queries.

use crate::matrix::{Matrix, MatrixMut};
use crate::product::{add_product, set_product};
use crate::vector;

/// Queries in a block.
const BLOCK: usize = 32;

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
            let scores = &mut scratch[..end * rows];
            set_product(
                MatrixMut::new(scores, end, rows, rows),
                Matrix::new(&qkv[at.key..], end, size, fused),
                Matrix::new(&qkv[at.query + start * fused..], rows, size, fused).transposed(),
            );
            softmax(scores, &mut log_sums[at.row + start..][..rows], &mut inverse_sums[..rows], start, scale);
            let out = &mut out[at.output + start * width..];
            set_product(
                MatrixMut::new(out, rows, size, width),
                Matrix::new(scores, end, rows, rows).transposed(),
                Matrix::new(&qkv[at.value..], end, size, fused),
            );
            for (row, &inverse) in out.chunks_mut(width).zip(&inverse_sums[..rows]) {
                row[..size].iter_mut().for_each(|value| *value *= inverse);
            }
        }
    }
}

/// Replaces the scores (keys, queries `start..`) by exp(scaled score - the query's largest), 0 for later keys than the query.
fn softmax(scores: &mut [f32], log_sums: &mut [f32], inverse_sums: &mut [f32], start: usize, scale: f32) {
    let rows = log_sums.len();
    vector::widest(
        #[inline(always)]
        || {
            let (mut largest, mut sums) = ([f32::NEG_INFINITY; BLOCK], [0.0; BLOCK]);
            for (key, scores) in scores.chunks_exact_mut(rows).enumerate() {
                scores[..key.saturating_sub(start)].fill(f32::NEG_INFINITY);
                for (largest, &score) in largest.iter_mut().zip(&*scores) {
                    *largest = if score > *largest { score } else { *largest };
                }
            }
            largest.iter_mut().for_each(|largest| *largest *= scale);
            for scores in scores.chunks_exact_mut(rows) {
                for ((score, sum), &largest) in scores.iter_mut().zip(&mut sums).zip(&largest) {
                    *score = vector::exp(score.mul_add(scale, -largest));
                    *sum += *score;
                }
            }
            let rows = log_sums.iter_mut().zip(inverse_sums).zip(largest.iter().zip(&sums));
            for ((log_sum, inverse_sum), (largest, sum)) in rows {
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
            let (weights, slopes) = (&mut weights[..end * rows], &mut slopes[..end * rows]);
            let query = Matrix::new(&qkv[at.query + start * fused..], rows, size, fused);
            let key = Matrix::new(&qkv[at.key..], end, size, fused);
            let value = Matrix::new(&qkv[at.value..], end, size, fused);
            let output = &output[at.output + start * width..];
            let gradient = &gradient[at.output + start * width..];
            set_product(MatrixMut::new(weights, end, rows, rows), key, query.transposed());
            let gradient_rows = Matrix::new(gradient, rows, size, width);
            set_product(MatrixMut::new(slopes, end, rows, rows), value, gradient_rows.transposed());
            let rows_of_block = output.chunks(width).zip(gradient.chunks(width)).map(|(o, g)| (&o[..size], &g[..size]));
            softmax_backward(weights, slopes, &log_sums[at.row + start..][..rows], rows_of_block, start, scale);
            let (weights, slopes) = (Matrix::new(weights, end, rows, rows), Matrix::new(slopes, end, rows, rows));
            let value_gradient = MatrixMut::new(&mut qkv_gradient[at.value..], end, size, fused);
            accumulate(value_gradient, weights, gradient_rows);
            let key_gradient = MatrixMut::new(&mut qkv_gradient[at.key..], end, size, fused);
            accumulate(key_gradient, slopes, query);
            let query_gradient = &mut qkv_gradient[at.query + start * fused..];
            set_product(MatrixMut::new(query_gradient, rows, size, fused), slopes.transposed(), key);
        }
    }
}

/// Replaces `weights`, the scores (keys, queries `start..`), by the attention weights, and `slopes`, the gradient of the
/// weights, by that of the unscaled scores. `outputs` yields each query's output and its gradient.
fn softmax_backward<'a>(
    weights: &mut [f32],
    slopes: &mut [f32],
    log_sums: &[f32],
    outputs: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    start: usize,
    scale: f32,
) {
    let rows = log_sums.len();
    vector::widest(
        #[inline(always)]
        || {
            let mut means = [0.0; BLOCK];
            for (mean, (output, gradient)) in means[..rows].iter_mut().zip(outputs) {
                *mean = vector::dot(output, gradient);
            }
            let keys = weights.chunks_exact_mut(rows).zip(slopes.chunks_exact_mut(rows));
            for (key, (weights, slopes)) in keys.enumerate() {
                weights[..key.saturating_sub(start)].fill(f32::NEG_INFINITY);
                let queries = weights.iter_mut().zip(slopes).zip(log_sums).zip(&means);
                for (((weight, slope), &log_sum), &mean) in queries {
                    *weight = vector::exp(weight.mul_add(scale, -log_sum));
                    *slope = *weight * (*slope - mean) * scale;
                }
            }
        },
    );
}
