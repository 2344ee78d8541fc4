//! Token and position embedding, as llm.c's `encoder_forward` and `encoder_backward`. Its input is tokens, so that its
//! backward for the input is empty and all of its backward is the one for the weights.

use crate::vector;

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
