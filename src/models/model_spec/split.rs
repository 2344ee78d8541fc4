//! How tensor-parallel ranks share a tensor (Shoeybi et al., arXiv 1909.08053), where products with the same input are one.

use std::ops::Range;

/// An axis that tensor-parallel ranks share, block by block: of the rows of queries, keys and values that are one tensor, a rank
/// holds its heads of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// 0: rows, which are the outputs of a product; 1: columns, its inputs.
    pub axis: usize,
    /// Runs of the axis, in order. All ranks share each run.
    pub blocks: Vec<Block>,
}

/// A run of an axis, in pieces that stay whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of pieces, such as heads.
    pub pieces: usize,
    /// Elements of the axis per piece, such as channels per head.
    pub size: usize,
    /// Whether several ranks hold the same piece if there are fewer pieces than ranks: key and value heads.
    pub is_copied: bool,
}

impl Block {
    /// Returns a block whose pieces have one owner each.
    pub const fn new(pieces: usize, size: usize) -> Block {
        Block { pieces, size, is_copied: false }
    }

    /// Returns a block whose pieces are copied if there are fewer than ranks.
    pub const fn copied(pieces: usize, size: usize) -> Block {
        Block { pieces, size, is_copied: true }
    }

    /// Returns the pieces of `rank` of `ranks`. If they do not divide, the last ranks have fewer.
    pub fn held(&self, rank: usize, ranks: usize) -> Range<usize> {
        if self.has_copies(ranks) {
            let piece = rank * self.pieces / ranks;
            return piece..piece + 1;
        }
        let each = self.pieces.div_ceil(ranks);
        (rank * each).min(self.pieces)..((rank + 1) * each).min(self.pieces)
    }

    /// Returns whether several of `ranks` hold the same piece.
    pub fn has_copies(&self, ranks: usize) -> bool {
        self.is_copied && self.pieces < ranks
    }

    /// Returns whether `rank` is the first of `ranks` with its pieces.
    pub fn is_first(&self, rank: usize, ranks: usize) -> bool {
        !self.has_copies(ranks) || rank == 0 || self.held(rank - 1, ranks) != self.held(rank, ranks)
    }
}

impl Split {
    /// Returns the elements of the axis that `rank` of `ranks` holds.
    pub fn length(&self, rank: usize, ranks: usize) -> usize {
        self.blocks.iter().map(|block| block.held(rank, ranks).len() * block.size).sum()
    }

    /// Returns the runs of the axis that `rank` of `ranks` holds, by block.
    pub fn runs(&self, rank: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.blocks.iter().map(move |block| {
            let held = block.held(rank, ranks);
            let run = start + held.start * block.size..start + held.end * block.size;
            start += block.pieces * block.size;
            run
        })
    }
}
