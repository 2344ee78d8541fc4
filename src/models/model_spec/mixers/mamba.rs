//! State-space layers: Mamba-2 (Dao & Gu, arXiv 2405.21060) and Mamba-1 (Gu & Dao, arXiv 2312.00752).

use super::super::layer_piece::LayerPiece;
use super::super::mixture::in_range;
use super::super::operation::{Operation, ScanWork};
use super::super::part::Initial::{Normal, One, Zero};
use super::super::part::Tensor;
use super::super::sizes::InvalidSizes;
use super::super::split::Block;

/// Sizes of a Mamba-2 mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Channels per head.
    pub head_size: usize,
    /// Groups of heads that share B and C.
    pub groups: usize,
    /// Numbers of the state per channel.
    pub state: usize,
    /// Tokens that the convolution sees.
    pub taps: usize,
    /// Tokens per chunk of the scan.
    pub chunk: usize,
    /// Whether the output has a norm.
    pub has_norm: bool,
    /// Whether the convolution has a bias.
    pub has_conv_bias: bool,
    /// Whether the first and the last product have biases.
    pub biases: [bool; 2],
}

impl Mamba2 {
    pub(super) fn check(&self) -> Result<(), InvalidSizes> {
        let &Mamba2 { heads, head_size, groups, state, taps, chunk, .. } = self;
        let sizes = [
            ("heads", heads),
            ("channels per head", head_size),
            ("groups", groups),
            ("state", state),
            ("tokens of the convolution", taps),
            ("tokens of a chunk", chunk),
        ];
        in_range("a Mamba layer", sizes)?;
        if !heads.is_multiple_of(groups) {
            return Err(InvalidSizes::Multiple {
                of: "heads of Mamba layers",
                of_size: heads,
                what: "groups",
                size: groups,
            });
        }
        Ok(())
    }

    /// FLOPs per token in chunks of Q tokens: 2 Q N per group, and 2 Q P + 4 N P per head. The fused kernel keeps the output of the
    /// projection and that of the scan, before its gate.
    fn work(&self) -> ScanWork {
        let &Mamba2 { heads, head_size, groups, state, chunk, .. } = self;
        let width = heads * head_size;
        ScanWork {
            flops: 2 * chunk * state * groups + heads * (2 * chunk * head_size + 4 * state * head_size),
            kept: 2 * width + heads,
            floats: if self.has_norm { groups } else { 0 },
            // sums of decays, states of chunks, their passing on, C B, the scan, and the gated norm
            moved: 6 * width + 4 * groups * state + 2 * width * state / chunk.max(1) + chunk * groups + 4 * heads,
            kernels: 7,
        }
    }

    pub(super) fn add(&self, piece: &mut LayerPiece, channels: usize) {
        let &Mamba2 { heads, head_size, groups, state, taps, .. } = self;
        let width = heads * head_size;
        let (inner, single, shared) = (Block::new(heads, head_size), Block::new(heads, 1), Block::new(groups, state));
        let rows = 2 * width + 2 * groups * state + heads;
        let blocks = [inner, inner, shared, shared, single];
        piece.product_with(
            Tensor::new("mamba_in", [rows, channels], Normal(0.02)).split(0, &blocks),
            self.biases[0].then_some("mamba_in_bias"),
        );
        let convolved = width + 2 * groups * state;
        let blocks = [inner, shared, shared];
        let weight = Tensor::new("mamba_conv", [convolved, 1, taps], Normal(0.02)).split(0, &blocks);
        let bias = self.has_conv_bias.then(|| Tensor::new("mamba_conv_bias", [convolved], Zero).split(0, &blocks));
        piece.add([weight].into_iter().chain(bias), Operation::Convolve { width: convolved, taps });
        let of_heads = |name, initial| Tensor::new(name, [heads], initial).split(0, &[single]);
        let norm = self.has_norm.then(|| Tensor::new("mamba_norm", [width], One).split(0, &[inner]));
        let tensors = [of_heads("dt_bias", Zero), of_heads("a_log", One), of_heads("mamba_d", One)];
        piece.add(tensors.into_iter().chain(norm), Operation::Scan(self.work()));
        let out = Tensor::new("mamba_out", [channels, width], Normal(0.02)).split(1, &[inner]);
        piece.product_with(out, self.biases[1].then_some("mamba_out_bias"));
    }
}

/// Sizes of a Mamba-1 mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba1 {
    /// Channels.
    pub width: usize,
    /// Numbers of the state per channel.
    pub state: usize,
    /// Rank over which the steps of time are made.
    pub rank: usize,
    /// Tokens that the convolution sees.
    pub taps: usize,
    /// Whether steps, B and C have norms: Jamba.
    pub has_norms: bool,
    /// Whether the convolution has a bias.
    pub has_conv_bias: bool,
    /// Whether the first and the last product have biases.
    pub has_bias: bool,
}

impl Mamba1 {
    pub(super) fn check(&self) -> Result<(), InvalidSizes> {
        let &Mamba1 { width, state, rank, taps, .. } = self;
        let sizes = [("channels", width), ("state", state), ("rank", rank), ("tokens of the convolution", taps)];
        in_range("a Mamba layer", sizes)
    }

    pub(super) fn add(&self, piece: &mut LayerPiece, channels: usize) {
        let &Mamba1 { width, state, rank, taps, .. } = self;
        let block = Block::new(width, 1);
        let input = Tensor::new("mamba_in", [2 * width, channels], Normal(0.02)).split(0, &[block, block]);
        piece.product_with(input, self.has_bias.then_some("mamba_in_bias"));
        let weight = Tensor::new("mamba_conv", [width, 1, taps], Normal(0.02)).split(0, &[block]);
        let bias = self.has_conv_bias.then(|| Tensor::new("mamba_conv_bias", [width], Zero).split(0, &[block]));
        piece.add([weight].into_iter().chain(bias), Operation::Convolve { width, taps });
        piece.product(Tensor::new("mamba_x", [rank + 2 * state, width], Normal(0.02)).split(1, &[block]));
        let steps = Tensor::new("mamba_dt", [width, rank], Normal(0.02)).split(0, &[block]);
        piece.product_with(steps, Some("mamba_dt_bias"));
        let norms = self.has_norms.then(|| Tensor::new("mamba_norms", [rank + 2 * state], One));
        let tensors = [
            Tensor::new("a_log", [width, state, 1], One).split(0, &[block]),
            Tensor::new("mamba_d", [width], One).split(0, &[block]),
        ];
        // one multiply-add per channel and number of the state for each of decay, input and output
        let work = ScanWork {
            flops: 6 * width * state,
            kept: 4 * width + 2 * state,
            floats: 0,
            moved: 5 * width + 2 * state,
            kernels: 2,
        };
        piece.add(tensors.into_iter().chain(norms), Operation::Scan(work));
        let out = Tensor::new("mamba_out", [channels, width], Normal(0.02)).split(1, &[block]);
        piece.product_with(out, self.has_bias.then_some("mamba_out_bias"));
    }
}
