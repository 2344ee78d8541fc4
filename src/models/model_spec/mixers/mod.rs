//! Mixers of tokens other than softmax attention, one file each: their tensors, the FLOPs of their scans, what they keep and move, and
//! what tensor-parallel ranks share.

mod convolution;
mod delta;
mod mamba;

pub use convolution::ShortConvolution;
pub use delta::DeltaNet;
pub use mamba::{Mamba1, Mamba2};

use super::layer_piece::LayerPiece;
use super::sizes::InvalidSizes;

/// A mixer whose state has a fixed size, whatever the length of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Gated delta net, or Kimi's delta attention.
    Delta(DeltaNet),
    /// Mamba-2.
    Mamba(Mamba2),
    /// Mamba-1.
    Mamba1(Mamba1),
    /// A gated convolution over a few tokens.
    Convolution(ShortConvolution),
}

impl Scan {
    /// Returns the word for layers with it.
    pub fn name(&self) -> &'static str {
        match self {
            Scan::Delta(delta) if delta.is_by_channel => "kda",
            Scan::Delta(_) => "delta",
            Scan::Mamba(_) => "mamba",
            Scan::Mamba1(_) => "mamba-1",
            Scan::Convolution(_) => "convolution",
        }
    }

    /// Returns the words for several layers with it.
    pub fn plural(&self) -> &'static str {
        match self {
            Scan::Delta(_) => "delta nets",
            Scan::Mamba(_) | Scan::Mamba1(_) => "Mamba layers",
            Scan::Convolution(_) => "convolutions",
        }
    }

    /// Checks that it can exist.
    pub(super) fn check(&self) -> Result<(), InvalidSizes> {
        match self {
            Scan::Delta(delta) => delta.check(),
            Scan::Mamba(mamba) => mamba.check(),
            Scan::Mamba1(mamba) => mamba.check(),
            Scan::Convolution(convolution) => convolution.check(),
        }
    }

    /// Returns what tensor-parallel ranks share, which must be multiples of their number.
    pub(super) fn shared(&self) -> Vec<(&'static str, usize)> {
        match self {
            Scan::Delta(delta) => vec![("key heads of delta nets", delta.key_heads)],
            Scan::Mamba(mamba) => {
                vec![("groups of Mamba layers", mamba.groups), ("heads of Mamba layers", mamba.heads)]
            }
            Scan::Mamba1(mamba) => vec![("channels of Mamba layers", mamba.width)],
            Scan::Convolution(convolution) => vec![("channels of convolutions", convolution.width)],
        }
    }

    /// Adds its tensors and operations between norm and residual stream, of `channels` channels.
    pub(super) fn add(&self, piece: &mut LayerPiece, channels: usize) {
        match self {
            Scan::Delta(delta) => delta.add(piece, channels),
            Scan::Mamba(mamba) => mamba.add(piece, channels),
            Scan::Mamba1(mamba) => mamba.add(piece, channels),
            Scan::Convolution(convolution) => convolution.add(piece, channels),
        }
    }
}
