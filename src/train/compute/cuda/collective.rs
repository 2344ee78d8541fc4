//! Collective calls among GPUs that share layers (tensor ranks) or have copies of them (replicas).

use super::operation::{Operations, at, int, launch};
use crate::compute::Copies;
use anyhow::{Result, bail};
use pipesim_gpu::kernel;
pub use pipesim_gpu::nccl::{Join, Numbers};
use pipesim_gpu::{Address, Argument, Precision};

/// Enqueues a reduction of two arrays of equal length into the first one.
pub type Fold<'a> = dyn Fn(Numbers, Address) -> Result<()> + 'a;

/// A member of a group of GPUs. Its collective calls only enqueue on the GPU's compute stream. All members make the same calls in
/// the same order, with the same counts, and receive the same bits.
///
/// # Errors
/// The run was aborted, a member is gone, or the driver or NCCL failed.
pub trait DeviceCollective: Send {
    /// Returns the number of members.
    fn size(&self) -> usize;

    /// Returns the member's number, from 0.
    fn rank(&self) -> usize;

    /// Prepares the calls of a step. The first time, it may wait for the hosts of the other members.
    fn begin(&mut self) -> Result<()>;

    /// Reduces each array of `data` over all members, in place. `fold` reduces two arrays.
    fn all_reduce(&mut self, data: &[Numbers], join: Join, fold: &Fold<'_>) -> Result<()>;

    /// Sums `data` over all members, and writes the member's piece of `size` equal pieces to `share`. `fold` adds two arrays.
    fn reduce_scatter(&mut self, data: Numbers, share: Address, fold: &Fold<'_>) -> Result<()>;

    /// Writes the shares of all members to `data`, in order.
    fn all_gather(&mut self, share: Numbers, data: Address) -> Result<()>;

    /// Like [`DeviceCollective::reduce_scatter`] for each array of `data`; the member's piece of the sum replaces its own.
    fn reduce_scatter_in_place(&mut self, data: &[Numbers], fold: &Fold<'_>) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        data.iter().try_for_each(|&data| self.reduce_scatter(data, share(data, rank, size).address, fold))
    }

    /// Like [`DeviceCollective::all_gather`] for each array of `data`, in which the member's share has its place.
    fn all_gather_in_place(&mut self, data: &[Numbers]) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        data.iter().try_for_each(|&data| self.all_gather(share(data, rank, size), data.address))
    }
}

/// The piece of `data` of member `rank`, of `size` equal pieces.
pub fn share(data: Numbers, rank: usize, size: usize) -> Numbers {
    let count = data.count / size;
    Numbers { address: data.address.offset(rank * count * data.precision.bytes()), count, ..data }
}

/// A group of one GPU, which needs no communication.
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
    /// Reduces `data` over `group`: see [`DeviceCollective::all_reduce`].
    pub(super) fn all_reduce(&self, group: &mut dyn DeviceCollective, data: &[Numbers], join: Join) -> Result<()> {
        group.all_reduce(data, join, &|out, other| self.fold(out, other, join))
    }

    /// Sums `data` over `group`: see [`DeviceCollective::reduce_scatter`].
    pub(super) fn reduce_scatter(&self, group: &mut dyn DeviceCollective, data: Numbers, share: Address) -> Result<()> {
        group.reduce_scatter(data, share, &|out, other| self.fold(out, other, Join::Sum))
    }

    /// Sums each array of `data` over `group`: see [`DeviceCollective::reduce_scatter_in_place`].
    pub(super) fn reduce_scatter_in_place(&self, group: &mut dyn DeviceCollective, data: &[Numbers]) -> Result<()> {
        group.reduce_scatter_in_place(data, &|out, other| self.fold(out, other, Join::Sum))
    }

    /// Reduces `out` with the array of equal length at `other`, in place. The maximum exists only in float32.
    pub(super) fn fold(&self, out: Numbers, other: Address, join: Join) -> Result<()> {
        let Numbers { address, count, precision } = out;
        match (join, precision) {
            (Join::Largest, _) => launch!(self, maximum(address, other; size count)),
            (Join::Sum, Precision::F32) => self.add(address, other, count),
            (Join::Sum, Precision::Bf16) => self.residual(address, other, count),
        }
    }

    /// Copies the gradients of heads that several ranks hold from rows of `stride` into rows with a place for each rank's piece.
    pub(super) fn heads_spread(
        &self,
        [wide, fused]: [Address; 2],
        [n, stride]: [usize; 2],
        Copies { start, blocks, size, pieces, piece }: Copies,
    ) -> Result<()> {
        launch!(self, heads_spread(wide, fused; n, stride, start, blocks, size, pieces, piece))
    }

    /// Copies the sums of this rank's piece back, after [`Operations::heads_spread`] and an all-reduce.
    pub(super) fn heads_collect(
        &self,
        [fused, wide]: [Address; 2],
        [n, stride]: [usize; 2],
        Copies { start, blocks, size, pieces, piece }: Copies,
    ) -> Result<()> {
        launch!(self, heads_collect(fused, wide; n, stride, start, blocks, size, pieces, piece))
    }

    /// Computes for each row of this rank's logits: the largest (written twice), the sum of exponentials, and the target's logit if
    /// it is on this rank.
    pub(super) fn classifier_share(
        &self,
        [largest, local, logits, targets]: [Address; 4],
        [first, n, v, vp]: [usize; 4],
    ) -> Result<()> {
        launch!(self, classifier_share(largest, local, logits, targets; first, n, v, vp))
    }

    /// Rescales the sums of exponentials to the largest logit of all ranks, and subtracts it from the target's logit.
    pub(super) fn classifier_rescale(
        &self,
        [sums, local, largest, targets]: [Address; 4],
        [first, n, v, _]: [usize; 4],
    ) -> Result<()> {
        launch!(self, classifier_rescale(sums, local, largest, targets; first, n, v))
    }

    /// Like [`Operations::classifier_forward`], for this rank's logits and with the sums of all ranks.
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
