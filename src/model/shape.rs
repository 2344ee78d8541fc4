//! The shape of a hidden state.

/// The sizes of one micro-batch's hidden state.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Sequences, B.
    pub(super) sequences: usize,
    /// Tokens a sequence, T.
    pub(super) tokens: usize,
    /// Attention heads, NH.
    pub(super) heads: usize,
    /// Channels, C.
    pub(super) channels: usize,
}

impl Shape {
    /// Tokens of all sequences, n.
    pub(super) fn rows(&self) -> usize {
        self.sequences * self.tokens
    }

    /// Elements of the hidden state, n * C.
    pub(super) fn hidden(&self) -> usize {
        self.rows() * self.channels
    }
}
