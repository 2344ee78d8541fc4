//! Token and position embedding, as llm.c's `encoder_forward` and `encoder_backward`. Its input is tokens, so that its
//! backward for the input is empty and all of its backward is the one for the weights.

use crate::vector;
use std::ops::Range;

/// The row of `token` in a table (rows, C) whose first row belongs to token `first`; none if the table does not have it.
#[inline(always)]
fn row(token: u32, first: u32, channels: usize) -> Range<usize> {
    let start = token.wrapping_sub(first) as usize * channels;
    start..start + channels
}

/// `out` (n, C) = `wte` (rows, C) at each token, zero for tokens that the table does not have. Its first row belongs to token
/// `first`.
pub fn forward_share(out: &mut [f32], tokens: &[u32], first: u32, wte: &[f32], channels: usize) {
    for (out, &token) in out.chunks_exact_mut(channels).zip(tokens) {
        match wte.get(row(token, first, channels)) {
            Some(row) => out.copy_from_slice(row),
            None => out.fill(0.0),
        }
    }
}

/// Adds `wpe` (maxT, C) at each row's position to `out` (rows, C), whose first row is row `first` of the micro-batch.
pub fn add_positions(out: &mut [f32], wpe: &[f32], first: usize, tokens_per_sequence: usize, channels: usize) {
    let positions = (0..tokens_per_sequence).cycle().skip(first % tokens_per_sequence);
    for (out, position) in out.chunks_exact_mut(channels).zip(positions) {
        vector::add(out, &wpe[position * channels..][..channels]);
    }
}

/// `out` (n, C) = `wte` (Vp, C) at each token + `wpe` (maxT, C), if there is one, at its position, for sequences of
/// `tokens_per_sequence`.
pub fn forward(
    out: &mut [f32],
    tokens: &[u32],
    wte: &[f32],
    wpe: Option<&[f32]>,
    tokens_per_sequence: usize,
    channels: usize,
) {
    let positions = (0..tokens_per_sequence).cycle();
    for ((out, &token), position) in out.chunks_exact_mut(channels).zip(tokens).zip(positions) {
        out.copy_from_slice(&wte[token as usize * channels..][..channels]);
        if let Some(wpe) = wpe {
            vector::add(out, &wpe[position * channels..][..channels]);
        }
    }
}

/// Adds `gradient` (n, C), row by row in the order of the tokens, to the rows of `wte_gradient` (rows, C), whose first row
/// belongs to token `first`. Rows of other tokens are left out.
pub fn backward_share(wte_gradient: &mut [f32], tokens: &[u32], first: u32, gradient: &[f32], channels: usize) {
    for (gradient, &token) in gradient.chunks_exact(channels).zip(tokens) {
        if let Some(into) = wte_gradient.get_mut(row(token, first, channels)) {
            vector::add(into, gradient);
        }
    }
}

/// Adds `gradient` (n, C) to the rows of `wpe_gradient` at each row's position.
pub fn backward_positions(wpe_gradient: &mut [f32], gradient: &[f32], tokens_per_sequence: usize, channels: usize) {
    let positions = (0..tokens_per_sequence).cycle();
    for (gradient, position) in gradient.chunks_exact(channels).zip(positions) {
        vector::add(&mut wpe_gradient[position * channels..][..channels], gradient);
    }
}

/// Adds `gradient` (n, C), row by row in the order of the tokens, to the rows of `wte_gradient` and `wpe_gradient`.
pub fn backward_weight(
    wte_gradient: &mut [f32],
    mut wpe_gradient: Option<&mut [f32]>,
    tokens: &[u32],
    gradient: &[f32],
    tokens_per_sequence: usize,
    channels: usize,
) {
    let positions = (0..tokens_per_sequence).cycle();
    for ((gradient, &token), position) in gradient.chunks_exact(channels).zip(tokens).zip(positions) {
        vector::add(&mut wte_gradient[token as usize * channels..][..channels], gradient);
        if let Some(wpe_gradient) = &mut wpe_gradient {
            vector::add(&mut wpe_gradient[position * channels..][..channels], gradient);
        }
    }
}
