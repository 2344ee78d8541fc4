//! Collective calls among GPUs that have shares of the same layers, or the same layers.

use super::operation::{Operations, at, int, launch};
use crate::compute::Copies;
use anyhow::{Result, bail};
use pipesim_cuda::kernel;
pub use pipesim_cuda::nccl::{Join, Numbers};
use pipesim_cuda::{Address, Argument, Precision};

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

    /// Joins `out`, in place, with as many numbers at `other`. Only float32 has a largest.
    pub(super) fn fold(&self, out: Numbers, other: Address, join: Join) -> Result<()> {
        let Numbers { address, count, precision } = out;
        match (join, precision) {
            (Join::Largest, _) => launch!(self, maximum(address, other; size count)),
            (Join::Sum, Precision::F32) => self.add(address, other, count),
            (Join::Sum, Precision::Bf16) => self.residual(address, other, count),
        }
    }

    /// Spreads the gradients of heads that other ranks have, too: rows of `stride` into rows of all pieces.
    pub(super) fn heads_spread(
        &self,
        [wide, fused]: [Address; 2],
        [n, stride]: [usize; 2],
        Copies { start, blocks, size, pieces, piece }: Copies,
    ) -> Result<()> {
        launch!(self, heads_spread(wide, fused; n, stride, start, blocks, size, pieces, piece))
    }

    /// Takes the sums of [`Operations::heads_spread`] back.
    pub(super) fn heads_collect(
        &self,
        [fused, wide]: [Address; 2],
        [n, stride]: [usize; 2],
        Copies { start, blocks, size, pieces, piece }: Copies,
    ) -> Result<()> {
        launch!(self, heads_collect(fused, wide; n, stride, start, blocks, size, pieces, piece))
    }

    /// The largest logit of each row here, twice, its sum of exponentials, and the target's logit if it is here.
    pub(super) fn classifier_share(
        &self,
        [largest, local, logits, targets]: [Address; 4],
        [first, n, v, vp]: [usize; 4],
    ) -> Result<()> {
        launch!(self, classifier_share(largest, local, logits, targets; first, n, v, vp))
    }

    /// Sums of exponentials for the largest logit of all ranks, and the target's logit less that.
    pub(super) fn classifier_rescale(
        &self,
        [sums, local, largest, targets]: [Address; 4],
        [first, n, v, _]: [usize; 4],
    ) -> Result<()> {
        launch!(self, classifier_rescale(sums, local, largest, targets; first, n, v))
    }

    /// As [`Operations::classifier_forward`], of some ids' logits, with the sums of all ranks.
    pub(super) fn classifier_gradient(
        &self,
        places: [Address; 5],
        weight: f32,
        [first, n, v, vp]: [usize; 4],
    ) -> Result<()> {
        let mut arguments = places.map(at).to_vec();
        arguments.push(Argument::Float(weight));
        arguments.extend([first, n, v, vp].map(int));
        self.run("classifier_gradient", kernel::classifier_gradient(self.precision, first, n, v, vp), &arguments)
    }
}
