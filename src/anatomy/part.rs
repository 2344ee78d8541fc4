//! One part of a model.

use super::operation::{MicroBatch, Operation, Storage};
use super::tensor::Tensor;
use crate::op::Kind;

/// The part that turns tokens into hidden states.
pub const EMBEDDING: &str = "embedding";
/// A transformer block.
pub const BLOCK: &str = "block";
/// The part that turns hidden states into logits and a loss.
pub const HEAD: &str = "head";

/// One part of a model; it may stand there several times, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What cost files call it.
    pub name: &'static str,
    /// How often it stands in the model.
    pub count: usize,
    /// Its tensors, in groups that live together: each has one partial square of the gradient norm.
    pub groups: Vec<Vec<Tensor>>,
    /// Its forward pass.
    pub operations: Vec<Operation>,
}

impl Part {
    /// Its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.groups.iter().flatten()
    }

    /// Elements of its tensors, those that are another part's too.
    pub fn elements(&self) -> usize {
        self.tensors().map(Tensor::elements).sum::<u128>() as usize
    }

    /// FLOPs of one of it for a micro-batch, in F, I, W or B.
    pub fn flops(&self, kind: Kind, micro: MicroBatch) -> u128 {
        self.operations.iter().map(|operation| operation.flops(kind, micro)).sum()
    }

    /// Bytes that one of it leaves behind for a micro-batch, by F for I, or by I for W.
    pub fn left(&self, kind: Kind, micro: MicroBatch, storage: &Storage) -> usize {
        let left = self.with_splits().map(|(operation, split)| operation.left(kind, micro, storage, split));
        left.fold(0, usize::saturating_add)
    }

    /// Its operations, each product with the axis along which ranks share its weight out: the k-th product's is the k-th matrix.
    pub fn with_splits(&self) -> impl Iterator<Item = (&Operation, Option<usize>)> {
        let mut matrices = self.tensors().filter(|tensor| tensor.shape.len() == 2);
        self.operations.iter().map(move |operation| match operation {
            Operation::Product { .. } => (operation, matrices.next().and_then(|matrix| matrix.split)),
            _ => (operation, None),
        })
    }

    /// How many of its groups are its own, not another part's.
    pub(super) fn own_groups(&self) -> usize {
        self.groups.iter().filter(|group| group.iter().any(|tensor| tensor.tied.is_none())).count()
    }
}
