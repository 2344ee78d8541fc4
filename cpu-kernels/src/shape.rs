//! The shape of a hidden state.

/// The sizes of one micro-batch's hidden state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sequences, B.
    pub sequences: usize,
    /// Tokens per sequence, T.
    pub tokens: usize,
    /// Attention heads, NH.
    pub heads: usize,
    /// Channels, C.
    pub channels: usize,
}

impl Shape {
    /// Tokens of all sequences, n.
    pub fn rows(&self) -> usize {
        self.sequences * self.tokens
    }

    /// Elements of the hidden state, n * C.
    pub fn hidden(&self) -> usize {
        self.rows() * self.channels
    }

    /// Channels of a head, HS.
    pub fn head_size(&self) -> usize {
        self.channels / self.heads
    }
}
