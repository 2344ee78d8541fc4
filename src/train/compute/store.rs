//! What a trainer asks of a machine for parameters: gradients, updates, copies.

use anyhow::{Result, bail};
use cpu_kernels::optimizer::AdamW;
use std::ops::Range;

/// What a training keeps for every parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quantity {
    /// The parameters themselves.
    Values,
    /// Their gradients, summed over the micro-batches of a step so far.
    Gradients,
    /// AdamW's first moments.
    FirstMoments,
    /// AdamW's second moments.
    SecondMoments,
}

/// Which part of a gradient. A tensor that two parts of the model share has two, which are kept apart and added last: the result
/// has the same bits whether they were computed on one device or on two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Of the part of the model that the tensor belongs to.
    Own,
    /// Of the part that shares it.
    Shared,
}

/// What becomes of a gradient that another device sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// It replaces the one that is here.
    Replace,
    /// It is added to the one that is here.
    Add,
}

/// A group whose gradients are squared.
#[derive(Clone, Copy, Debug)]
pub struct Squared<'a, G> {
    pub group: &'a G,
    /// The elements that count, of the group's tensors one after the other; `None`: all. Tensor-parallel ranks leave out what
    /// another rank has, too.
    pub only: Option<&'a [Range<usize>]>,
}

/// A worker's share of the optimizer's work on parameters that several workers hold (ZeRO-1: Rajbhandari et al., arXiv 1910.02054).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OptimizerShare {
    /// Number of the worker, from 0.
    pub member: usize,
    /// Number of workers.
    pub members: usize,
}

impl OptimizerShare {
    /// The share of a single worker, which updates everything.
    pub const WHOLE: OptimizerShare = OptimizerShare { member: 0, members: 1 };

    /// Returns the worker's slice of `length` elements. Slices are contiguous, and their lengths differ by at most one.
    pub fn slice(self, length: usize) -> Range<usize> {
        let bound = |number: usize| (length as u128 * number as u128 / self.members as u128) as usize;
        bound(self.member)..bound(self.member + 1)
    }
}

/// Groups of tensors: values, gradients and AdamW's moments. A call may only enqueue; those that return numbers wait.
pub trait Store {
    /// Some tensors that are stored together.
    type Group: Send;
    /// Where a message is read.
    type Input<'a>: Copy;
    /// Where a message is written.
    type Output<'a>;

    /// Prepares the calling thread for calls: the first of every op.
    fn enter(&mut self) -> Result<()> {
        Ok(())
    }

    /// Stores these tensors; `is_shared` if another part of the model shares them. Only the elements of the workload's share of the
    /// optimizer's work have moments, and are summed, squared and updated.
    fn group(&mut self, tensors: &[&[f32]], is_shared: bool) -> Result<Self::Group>;

    /// Clears the gradients.
    fn zero(&mut self, group: &mut Self::Group) -> Result<()>;

    /// Squares the gradients of each group, both sides added up. [`Store::squares`] returns the sums.
    fn square(&mut self, groups: &[Squared<'_, Self::Group>]) -> Result<()>;

    /// Returns what [`Store::square`] summed last, in double precision and in a fixed order. Waits.
    fn squares(&mut self) -> Result<Vec<f64>>;

    /// One step of AdamW on each group, with gradients times `scale`; both sides of a gradient are added up. Steps count from 1.
    fn update(&mut self, groups: &mut [Self::Group], step: u32, hyper: &AdamW, scale: f32) -> Result<()>;

    /// Remembers values and moments.
    fn save(&mut self, group: &mut Self::Group) -> Result<()>;

    /// Goes back to what [`Store::save`] remembered; false if nothing was.
    fn restore(&mut self, group: &mut Self::Group) -> Result<bool>;

    /// Copies a tensor of a group into `into`; of a gradient both sides, added up. Waits.
    fn export(&mut self, group: &Self::Group, tensor: usize, what: Quantity, into: &mut [f32]) -> Result<()>;

    /// Sets a tensor of a group. Waits.
    fn import(&mut self, group: &mut Self::Group, tensor: usize, what: Quantity, from: &[f32]) -> Result<()>;

    /// Copies one side of a group's gradients to the beginning of `to`, and advances it.
    fn copy_gradients(&mut self, group: &Self::Group, side: Side, to: &mut Self::Output<'_>) -> Result<()>;

    /// Takes one side of a group's gradients in from the beginning of `from`, and advances it.
    fn merge_gradients(
        &mut self,
        group: &mut Self::Group,
        side: Side,
        from: &mut Self::Input<'_>,
        merge: Merge,
    ) -> Result<()>;

    /// Copies the values of a group's slice to their place in `to`, and advances `to` by the whole group. Machines whose replicas
    /// exchange values by collective calls are not asked.
    fn copy_values(&mut self, _group: &Self::Group, _to: &mut Self::Output<'_>) -> Result<()> {
        bail!("expected a machine that exchanges parameters by messages, found one with collective calls")
    }

    /// Copies the values of another worker's slice from their place in `from`, and advances `from` by the whole group.
    fn replace_values(
        &mut self,
        _group: &mut Self::Group,
        _of: OptimizerShare,
        _from: &mut Self::Input<'_>,
    ) -> Result<()> {
        bail!("expected a machine that exchanges parameters by messages, found one with collective calls")
    }
}
