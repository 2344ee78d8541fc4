//! Sums and copies among the workers that hold shares of the same layers.

use anyhow::Result;

/// A member of a group of workers that hold shares of the same layers, or the same layers, and collective calls among them. All
/// members make the same calls in the same order, with the same lengths; each call waits for the others.
///
/// Deterministic: sums are added in the order of members, and every member gets the same bits.
///
/// # Errors
/// Every call fails if a member is gone, or if lengths do not fit.
pub trait Collective: Send {
    /// Number of members.
    fn size(&self) -> usize;

    /// This member's number, from 0.
    fn rank(&self) -> usize;

    /// Replaces `data` by its sum over all members.
    fn all_reduce(&mut self, data: &mut [f32]) -> Result<()>;

    /// Replaces each number by the largest of all members'.
    fn all_reduce_max(&mut self, data: &mut [f32]) -> Result<()>;

    /// Writes this member's piece of the sum to `share`: the rank-th of `size` equal pieces of `data`.
    fn reduce_scatter(&mut self, data: &[f32], share: &mut [f32]) -> Result<()>;

    /// Writes all members' shares to `data`, one after the other.
    fn all_gather(&mut self, share: &[f32], data: &mut [f32]) -> Result<()>;
}

/// A group of one: every call copies or does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Collective for Alone {
    fn size(&self) -> usize {
        1
    }

    fn rank(&self) -> usize {
        0
    }

    fn all_reduce(&mut self, _data: &mut [f32]) -> Result<()> {
        Ok(())
    }

    fn all_reduce_max(&mut self, _data: &mut [f32]) -> Result<()> {
        Ok(())
    }

    fn reduce_scatter(&mut self, data: &[f32], share: &mut [f32]) -> Result<()> {
        check_length(data.len(), share.len())?;
        share.copy_from_slice(data);
        Ok(())
    }

    fn all_gather(&mut self, share: &[f32], data: &mut [f32]) -> Result<()> {
        check_length(data.len(), share.len())?;
        data.copy_from_slice(share);
        Ok(())
    }
}

/// Checks that a buffer of all members' pieces has the expected length.
pub(crate) fn check_length(found: usize, expected: usize) -> Result<()> {
    anyhow::ensure!(
        found == expected,
        "expected {expected} numbers for a collective call, found {found}: pass all members' pieces"
    );
    Ok(())
}
