//! How the sequences of micro-batches are cut into slices.

use crate::op::Op;

/// The slices of a micro-batch's sequences, by their lengths. Under causal attention a slice attends to itself and to those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    lengths: Vec<u32>,
    /// Length of the sequence.
    total: u32,
}

/// A slice of a sequence, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSpan {
    /// Tokens before it.
    pub before: u32,
    /// Its tokens.
    pub tokens: u32,
}

impl Default for Slices {
    fn default() -> Slices {
        Slices::equal(1)
    }
}

/// Why sequences cannot be cut like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum SlicesError {
    #[error("expected 1 to {} slices, found {found}", Op::MAX_SLICES)]
    Count { found: usize },
    #[error("expected slices of length 1 or more, found 0")]
    Empty,
    #[error("expected lengths of at most {} in all, found {found}", Slices::MAX_LENGTH)]
    Length { found: u64 },
    #[error("expected a token or more in each of {slices} slices, found sequences of {tokens}")]
    Tokens { slices: usize, tokens: usize },
}

impl Slices {
    /// Largest length of a sequence.
    pub const MAX_LENGTH: u32 = 1 << 24;

    /// Cuts into `count` slices of the same length; one is the whole micro-batch.
    pub fn equal(count: u32) -> Slices {
        Slices { lengths: vec![1; count.max(1) as usize], total: count.max(1) }
    }

    /// Cuts into slices of these lengths, in any unit.
    ///
    /// # Errors
    /// No slices or more than [`Op::MAX_SLICES`], an empty one, or more than [`Slices::MAX_LENGTH`] in all.
    pub fn of_lengths(lengths: &[u32]) -> Result<Slices, SlicesError> {
        let total = lengths.iter().map(|&length| u64::from(length)).sum::<u64>();
        if lengths.is_empty() || lengths.len() > Op::MAX_SLICES as usize {
            return Err(SlicesError::Count { found: lengths.len() });
        }
        if lengths.contains(&0) {
            return Err(SlicesError::Empty);
        }
        if total > u64::from(Slices::MAX_LENGTH) {
            return Err(SlicesError::Length { found: total });
        }
        let first = lengths[0];
        let same = lengths.iter().all(|&length| length == first);
        Ok(if same {
            Slices::equal(lengths.len() as u32)
        } else {
            Slices { lengths: lengths.to_vec(), total: total as u32 }
        })
    }

    /// Returns n, the number of slices.
    pub fn count(&self) -> u32 {
        self.lengths.len() as u32
    }

    /// Whether there are several.
    pub fn is_cut(&self) -> bool {
        self.lengths.len() > 1
    }

    /// Returns the lengths, in order.
    pub fn lengths(&self) -> &[u32] {
        &self.lengths
    }

    /// Returns the length of a slice; 0 for one that does not exist.
    pub fn length(&self, slice: usize) -> u32 {
        self.lengths.get(slice).copied().unwrap_or(0)
    }

    /// Returns the length of all slices.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the tokens of each slice of sequences of `tokens` tokens: lengths in proportion, in whole tokens.
    ///
    /// # Errors
    /// A slice without a token.
    pub fn tokens(&self, tokens: usize) -> Result<Vec<usize>, SlicesError> {
        let bound = |slice: usize| {
            let before = u128::from(self.before(slice)) * tokens as u128;
            (before / u128::from(self.total.max(1))) as usize
        };
        let of: Vec<usize> = (0..self.lengths.len()).map(|slice| bound(slice + 1) - bound(slice)).collect();
        if of.contains(&0) { Err(SlicesError::Tokens { slices: of.len(), tokens }) } else { Ok(of) }
    }

    /// Returns the length of the slices before a slice.
    pub fn before(&self, slice: usize) -> u32 {
        self.lengths[..slice.min(self.lengths.len())].iter().sum()
    }

    /// Whether all have the same length.
    pub fn are_equal(&self) -> bool {
        self.lengths.iter().all(|&length| length == self.lengths[0])
    }

    /// Returns the unit, counted from 0, whose backward is number `k` of its chunk: micro-batches ascending, slices descending.
    pub fn backward(&self, k: u32) -> u32 {
        let n = self.count();
        k - k % n + (n - 1 - k % n)
    }
}
