//! Gated convolutions over a few tokens: LFM2.

use super::super::layer_piece::LayerPiece;
use super::super::mixture::in_range;
use super::super::operation::{Operation, ScanWork};
use super::super::part::Initial::{Normal, Zero};
use super::super::part::Tensor;
use super::super::sizes::InvalidSizes;
use super::super::split::Block;

/// Sizes of a gated convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConvolution {
    /// Channels.
    pub width: usize,
    /// Tokens that it sees.
    pub taps: usize,
    /// Whether products and convolution have biases.
    pub has_bias: bool,
}

impl ShortConvolution {
    pub(super) fn check(&self) -> Result<(), InvalidSizes> {
        in_range("a convolution", [("channels", self.width), ("tokens", self.taps)])
    }

    /// Two gates from the same product as its input: one before, one after.
    pub(super) fn add(&self, piece: &mut LayerPiece, channels: usize) {
        let &ShortConvolution { width, taps, has_bias } = self;
        let block = Block::new(width, 1);
        let input = Tensor::new("conv_in", [3 * width, channels], Normal(0.02)).split(0, &[block; 3]);
        piece.product_with(input, has_bias.then_some("conv_in_bias"));
        // both gates, and the convolution's output
        piece.operations.push(Operation::Scan(ScanWork {
            flops: 0,
            kept: 3 * width,
            floats: 0,
            moved: 6 * width,
            kernels: 2,
        }));
        let weight = Tensor::new("conv", [width, 1, taps], Normal(0.02)).split(0, &[block]);
        let bias = has_bias.then(|| Tensor::new("conv_bias", [width], Zero).split(0, &[block]));
        piece.add([weight].into_iter().chain(bias), Operation::Convolve { width, taps });
        let out = Tensor::new("conv_out", [channels, width], Normal(0.02)).split(1, &[block]);
        piece.product_with(out, has_bias.then_some("conv_out_bias"));
    }
}
