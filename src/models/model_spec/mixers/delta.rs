//! Gated delta nets (Yang et al., arXiv 2412.06464), and Kimi's delta attention, whose decay differs by channel (arXiv 2510.26692).

use super::super::layer_piece::LayerPiece;
use super::super::mixture::in_range;
use super::super::operation::{Operation, ScanWork};
use super::super::part::Initial::{Normal, One, Zero};
use super::super::part::Tensor;
use super::super::sizes::InvalidSizes;
use super::super::split::Block;

/// Tokens per chunk of the kernels (flash-linear-attention).
const CHUNK: usize = 64;

/// Sizes of a delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Channels per query and key.
    pub key_size: usize,
    /// Channels per value.
    pub value_size: usize,
    /// Tokens that the convolution of queries, keys and values sees.
    pub taps: usize,
    /// Whether each channel of a key has a decay of its own, made over a rank of `key_size`: Kimi.
    pub is_by_channel: bool,
    /// Rank over which the gate of the output is made; `None`: none.
    pub gate_rank: Option<usize>,
}

impl DeltaNet {
    fn widths(&self) -> [usize; 2] {
        [self.key_heads * self.key_size, self.value_heads * self.value_size]
    }

    pub(super) fn check(&self) -> Result<(), InvalidSizes> {
        let &DeltaNet { key_heads, value_heads, key_size, value_size, taps, .. } = self;
        let sizes = [
            ("key heads", key_heads),
            ("value heads", value_heads),
            ("channels of keys", key_size),
            ("channels of values", value_size),
            ("tokens of the convolution", taps),
        ];
        in_range("a delta net", sizes)?;
        if !value_heads.is_multiple_of(key_heads) {
            let (of, what) = ("value heads", "key heads");
            return Err(InvalidSizes::Multiple { of, of_size: value_heads, what, size: key_heads });
        }
        Ok(())
    }

    /// FLOPs per token and value head in chunks of C tokens: 6 Dk Dv + C (6 Dk + 4 Dv), without the inverse. The kernels keep queries
    /// and keys with the float32 norms of both, values, betas before and after the sigmoid, the matrices of the chunks, the output and its gate.
    fn work(&self) -> ScanWork {
        let ([k, v], heads) = (self.widths(), self.value_heads);
        let by_channel = usize::from(self.is_by_channel);
        let decays = if self.is_by_channel { k } else { 0 };
        let step = 6 * self.key_size * self.value_size;
        ScanWork {
            flops: heads * (step + CHUNK * (6 * self.key_size + 4 * self.value_size)),
            kept: 2 * k + 3 * v + decays + 2 * heads + (1 + by_channel) * CHUNK * heads,
            floats: 2 * self.key_heads + heads + (1 - by_channel) * heads,
            // norms of queries and keys, decays, three kernels of chunks, and the gated norm; each reads and writes its operands
            moved: 6 * k + 9 * v + 2 * decays + 4 * CHUNK * heads,
            kernels: 8,
        }
    }

    pub(super) fn add(&self, piece: &mut LayerPiece, channels: usize) {
        let ([k, v], heads) = (self.widths(), self.value_heads);
        let (keys, values) = (Block::new(self.key_heads, self.key_size), Block::new(heads, self.value_size));
        let single = Block::new(heads, 1);
        // queries, keys, values, gate, and beta; the decay, or the narrow rows from which it and the gate are made
        let gate = if self.gate_rank.is_none() { v } else { 0 };
        let decay = if self.is_by_channel { 0 } else { heads };
        let ranks = [if self.is_by_channel { self.key_size } else { 0 }, self.gate_rank.unwrap_or(0)];
        let narrow = ranks.iter().sum();
        let rows = 2 * k + v + gate + heads + decay + narrow;
        let narrow = (narrow > 0).then_some(Block::copied(1, narrow));
        let rest = [(gate > 0).then_some(values), Some(single), (decay > 0).then_some(single), narrow];
        let blocks: Vec<Block> = [keys, keys, values].into_iter().chain(rest.into_iter().flatten()).collect();
        piece.product(Tensor::new("delta_in", [rows, channels], Normal(0.02)).split(0, &blocks));
        for (name, rank, width, block) in [("decay_up", ranks[0], k, keys), ("gate_up", ranks[1], v, values)] {
            if rank > 0 {
                piece.product(Tensor::new(name, [width, rank], Normal(0.02)).split(0, &[block]));
            }
        }
        let convolved = 2 * k + v;
        let weight = Tensor::new("delta_conv", [convolved, 1, self.taps], Normal(0.02)).split(0, &[keys, keys, values]);
        piece.add([weight], Operation::Convolve { width: convolved, taps: self.taps });
        let biases = if self.is_by_channel { Block::new(self.key_heads, self.key_size) } else { single };
        let tensors = [
            Tensor::new("dt_bias", [biases.pieces * biases.size], Zero).split(0, &[biases]),
            Tensor::new("a_log", [heads], One).split(0, &[single]),
            Tensor::new("delta_norm", [self.value_size], One),
        ];
        piece.add(tensors, Operation::Scan(self.work()));
        piece.product(Tensor::new("delta_out", [channels, v], Normal(0.02)).split(1, &[values]));
    }
}
