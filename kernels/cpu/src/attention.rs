//! Causal self-attention on the fused projection `qkv` (B, T, (NH + 2G) HS): queries, keys and values of a head are strided
//! views of it, never copied. G groups of heads share keys and values (Ainslie et al., arXiv 2305.13245). Blocks of queries
//! meet only the keys up to their last one. As in flash attention (Dao et al., arXiv 2205.14135), the forward keeps one number
//! per row, log Σ exp, and the backward recomputes the weights.
//!
//! Scores are computed transposed, one row per key: every product then reads its operands as they are in memory, and the
//! softmax works on whole vectors of queries.
//!
//! A slice of a sequence also attends to the tokens before it. Keys and values of all these tokens are then in one buffer of
//! their own, `cached` (B, before + T, 2G HS).

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
    /// Tokens per sequence, T; with slices, tokens of a slice.
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

    /// Elements of a row of keys and values, 2G HS.
    pub fn cached(&self) -> usize {
        2 * self.groups * self.size
    }

    /// Elements of a row of the output, NH HS.
    pub fn width(&self) -> usize {
        self.heads * self.size
    }
}

/// Elements of scratch that [`forward`] needs, for a slice with the tokens before it.
pub fn forward_scratch(shape: &Shape) -> usize {
    BLOCK * shape.tokens
}

/// Elements of scratch that [`backward`] needs, for a slice with the tokens before it.
pub fn backward_scratch(shape: &Shape) -> usize {
    2 * BLOCK * shape.tokens
}

/// Keys and values of a slice and of the `before` tokens before it.
#[derive(Clone, Copy)]
pub struct Cached<'a> {
    /// (B, before + T, 2G HS)
    pub keys_values: &'a [f32],
    pub before: usize,
}

/// Where the keys of a sequence are.
#[derive(Clone, Copy)]
struct Keys {
    /// Keys before the first query's.
    before: usize,
    /// Elements from one key to the next.
    stride: usize,
    /// Elements before the first key.
    first: usize,
}

impl Keys {
    fn new(shape: &Shape, cached: Option<Cached>) -> Keys {
        match cached {
            Some(Cached { before, .. }) => Keys { before, stride: shape.cached(), first: 0 },
            None => Keys { before: 0, stride: shape.fused(), first: shape.width() },
        }
    }
}

/// Where one head of one sequence starts in `qkv`, in the keys, in the output, and in the row statistics.
struct HeadAt {
    query: usize,
    key: usize,
    value: usize,
    output: usize,
    row: usize,
    /// Whether it is the first of those that share its keys and values.
    leads: bool,
}

fn heads(shape: Shape, keys: Keys) -> impl Iterator<Item = HeadAt> {
    let Shape { sequences, tokens, heads, groups, size } = shape;
    (0..sequences * heads).map(move |index| {
        let (sequence, head) = (index / heads, index % heads);
        let group = head / (heads / groups);
        let key = sequence * (keys.before + tokens) * keys.stride + keys.first + group * size;
        HeadAt {
            query: sequence * tokens * shape.fused() + head * size,
            key,
            value: key + groups * size,
            output: sequence * tokens * shape.width() + head * size,
            row: index * tokens,
            leads: head % (heads / groups) == 0,
        }
    })
}

/// `out` (B, T, NH HS) = softmax(q kᵀ / √HS, causal) v; `log_sums` (B, NH, T) = log Σ exp of each row's scaled scores.
pub fn forward(out: &mut [f32], log_sums: &mut [f32], qkv: &[f32], scratch: &mut [f32], shape: &Shape) {
    forward_slice(out, log_sums, qkv, None, scratch, shape);
}

/// The same for a slice, whose queries are in `qkv`, and keys and values in `cached`.
pub fn forward_slice(
    out: &mut [f32],
    log_sums: &mut [f32],
    qkv: &[f32],
    cached: Option<Cached>,
    scratch: &mut [f32],
    shape: &Shape,
) {
    let (tokens, size, fused, width) = (shape.tokens, shape.size, shape.fused(), shape.width());
    let places @ Keys { before, stride, .. } = Keys::new(shape, cached);
    let keys = cached.map_or(qkv, |cached| cached.keys_values);
    let scale = 1.0 / (size as f32).sqrt();
    let mut inverse_sums = [0.0; BLOCK];
    for at in heads(*shape, places) {
        for start in (0..tokens).step_by(BLOCK) {
            let end = tokens.min(start + BLOCK);
            let (rows, seen) = (end - start, before + end);
            let scores = &mut scratch[..seen * rows];
            set_product(
                MatrixMut::new(scores, seen, rows, rows),
                Matrix::new(&keys[at.key..], seen, size, stride),
                Matrix::new(&qkv[at.query + start * fused..], rows, size, fused).transposed(),
            );
            softmax(scores, &mut log_sums[at.row + start..][..rows], &mut inverse_sums[..rows], before + start, scale);
            let out = &mut out[at.output + start * width..];
            set_product(
                MatrixMut::new(out, rows, size, width),
                Matrix::new(scores, seen, rows, rows).transposed(),
                Matrix::new(&keys[at.value..], seen, size, stride),
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
    backward_slice(qkv_gradient, None, operands, scratch, shape);
}

/// The same for a slice; `cached` has its keys and values, and takes their gradients instead of `qkv_gradient`.
pub fn backward_slice(
    qkv_gradient: &mut [f32],
    cached: Option<(Cached, &mut [f32])>,
    operands: Operands,
    scratch: &mut [f32],
    shape: &Shape,
) {
    let Operands { gradient, qkv, output, log_sums } = operands;
    let (tokens, size, fused, width) = (shape.tokens, shape.size, shape.fused(), shape.width());
    let (cached, mut cached_gradient) = cached.unzip();
    let places @ Keys { before, stride, .. } = Keys::new(shape, cached);
    let keys = cached.map_or(qkv, |cached| cached.keys_values);
    let scale = 1.0 / (size as f32).sqrt();
    let (weights, slopes) = scratch.split_at_mut(BLOCK * (before + tokens));
    for at in heads(*shape, places) {
        // from the last block to the first: the last block meets all keys, so the last block of the first head sets what the others
        // add to
        for start in (0..tokens).step_by(BLOCK).rev() {
            let end = tokens.min(start + BLOCK);
            let (rows, seen) = (end - start, before + end);
            let accumulate = if end == tokens && at.leads { set_product } else { add_product };
            let (weights, slopes) = (&mut weights[..seen * rows], &mut slopes[..seen * rows]);
            let query = Matrix::new(&qkv[at.query + start * fused..], rows, size, fused);
            let key = Matrix::new(&keys[at.key..], seen, size, stride);
            let value = Matrix::new(&keys[at.value..], seen, size, stride);
            let output = &output[at.output + start * width..];
            let gradient = &gradient[at.output + start * width..];
            set_product(MatrixMut::new(weights, seen, rows, rows), key, query.transposed());
            let gradient_rows = Matrix::new(gradient, rows, size, width);
            set_product(MatrixMut::new(slopes, seen, rows, rows), value, gradient_rows.transposed());
            let rows_of_block = output.chunks(width).zip(gradient.chunks(width)).map(|(o, g)| (&o[..size], &g[..size]));
            softmax_backward(
                weights,
                slopes,
                &log_sums[at.row + start..][..rows],
                rows_of_block,
                before + start,
                scale,
            );
            let (weights, slopes) = (Matrix::new(weights, seen, rows, rows), Matrix::new(slopes, seen, rows, rows));
            let keys_gradient = cached_gradient.as_deref_mut().unwrap_or(&mut *qkv_gradient);
            let value_gradient = MatrixMut::new(&mut keys_gradient[at.value..], seen, size, stride);
            accumulate(value_gradient, weights, gradient_rows);
            let key_gradient = MatrixMut::new(&mut keys_gradient[at.key..], seen, size, stride);
            accumulate(key_gradient, slopes, query);
            let query_gradient = &mut qkv_gradient[at.query + start * fused..];
            set_product(MatrixMut::new(query_gradient, rows, size, fused), slopes.transposed(), key);
        }
    }
}

/// Replaces `weights`, the scores (keys, queries `start..`), by the attention weights, and `slopes`, the gradient of the
/// weights, by the gradient of the unscaled scores. `outputs` yields each query's output and its gradient.
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
