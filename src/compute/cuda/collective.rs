//! Collective calls among GPUs that have shares of the same layers, or the same layers.

use super::operation::Operations;
use anyhow::{Result, bail};
use pipesim_cuda::Address;
pub use pipesim_cuda::nccl::{Join, Numbers};

/// Enqueues the join of numbers, in place, with as many others.
pub type Fold<'a> = dyn Fn(Numbers, Address) -> Result<()> + 'a;

/// A member of a group of GPUs, and its collective calls, which only enqueue on the GPU's compute stream. All members make the same
/// calls in the same order, with the same counts, and receive the same bits.
///
/// # Errors
/// The run was aborted, a member is gone, or the driver or NCCL failed.
pub trait DeviceCollective: Send {
    /// Number of members.
    fn size(&self) -> usize;

    /// This member's number, from 0.
    fn rank(&self) -> usize;

    /// Called before the calls of a step; the first call may wait for the hosts of the other members.
    fn begin(&mut self) -> Result<()>;

    /// Replaces each of `data` by the join of all members'. `fold` joins two.
    fn all_reduce(&mut self, data: &[Numbers], join: Join, fold: &Fold<'_>) -> Result<()>;

    /// Sums `data` over all members, and writes the rank-th of `size` equal pieces to `share`. `fold` adds two.
    fn reduce_scatter(&mut self, data: Numbers, share: Address, fold: &Fold<'_>) -> Result<()>;

    /// Writes all members' shares to `data`, one after the other.
    fn all_gather(&mut self, share: Numbers, data: Address) -> Result<()>;
}

/// The only GPU with its layers, which makes no collective call.
#[derive(Clone, Copy, Debug, Default)]
pub struct AloneOnDevice;

impl DeviceCollective for AloneOnDevice {
    fn size(&self) -> usize {
        1
    }

    fn rank(&self) -> usize {
        0
    }

    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn all_reduce(&mut self, _data: &[Numbers], _join: Join, _fold: &Fold<'_>) -> Result<()> {
        Ok(())
    }

    fn reduce_scatter(&mut self, _data: Numbers, _share: Address, _fold: &Fold<'_>) -> Result<()> {
        bail!("expected several tensor-parallel ranks, found one: it has all rows")
    }

    fn all_gather(&mut self, _share: Numbers, _data: Address) -> Result<()> {
        bail!("expected several tensor-parallel ranks, found one: it has all rows")
    }
}

impl Operations {
    /// `all_reduce` of `data` over `group`.
    pub(super) fn all_reduce(&self, group: &mut dyn DeviceCollective, data: &[Numbers], join: Join) -> Result<()> {
        group.all_reduce(data, join, &|out, other| self.fold(out, other, join))
    }

    /// `reduce_scatter` of `data` over `group`.
    pub(super) fn reduce_scatter(&self, group: &mut dyn DeviceCollective, data: Numbers, share: Address) -> Result<()> {
        group.reduce_scatter(data, share, &|out, other| self.fold(out, other, Join::Sum))
    }
}
