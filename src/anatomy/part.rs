//! One part of a model.

use super::operation::{MicroBatch, Operation, Storage};
use super::tensor::Tensor;
use crate::op::Kind;

/// Name of the part that turns tokens into hidden states.
pub const EMBEDDING: &str = "embedding";
/// Name of a transformer block.
pub const BLOCK: &str = "block";
/// Name of the part that turns hidden states into logits and a loss.
pub const HEAD: &str = "head";

/// One part of a model, repeated `count` times in sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name in cost files.
    pub name: &'static str,
    /// Number of repetitions in the model.
    pub count: usize,
    /// Tensors in groups that are stored together; each group has one partial square of the gradient norm.
    pub groups: Vec<Vec<Tensor>>,
    /// Operations of the forward pass.
    pub operations: Vec<Operation>,
}

impl Part {
    /// Returns the tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.groups.iter().flatten()
    }

    /// Returns the number of elements of the tensors, including shared ones.
    pub fn elements(&self) -> usize {
        self.tensors().map(Tensor::elements).sum::<u128>() as usize
    }

    /// Returns the FLOPs of one repetition for a micro-batch, in F, I, W or B.
    pub fn flops(&self, kind: Kind, micro: MicroBatch) -> u128 {
        self.operations.iter().map(|operation| operation.flops(kind, micro)).sum()
    }

    /// Returns the bytes that one repetition saves for a micro-batch: F for I, or I for W.
    pub fn left(&self, kind: Kind, micro: MicroBatch, storage: &Storage) -> usize {
        let left = self.with_splits().map(|(operation, split)| operation.left(kind, micro, storage, split));
        left.fold(0, usize::saturating_add)
    }

    /// Returns the operations, each product with the axis along which ranks share its weight: the k-th product uses the k-th
    /// matrix.
    pub fn with_splits(&self) -> impl Iterator<Item = (&Operation, Option<usize>)> {
        let mut matrices = self.tensors().filter(|tensor| tensor.shape.len() == 2);
        self.operations.iter().map(move |operation| match operation {
            Operation::Product { .. } => (operation, matrices.next().and_then(|matrix| matrix.split)),
            _ => (operation, None),
        })
    }

    /// Returns the number of groups with a tensor that is not shared from another part.
    pub(super) fn own_groups(&self) -> usize {
        self.groups.iter().filter(|group| group.iter().any(|tensor| tensor.tied.is_none())).count()
    }
}
