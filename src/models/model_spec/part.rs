//! Parts of a model and their tensors.

use super::operation::{MicroBatch, Operation, Storage};
use super::split::{Block, Split};
use pipesim_schedule::op::Kind;

/// Initial values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Normal distribution with mean 0 and this standard deviation.
    Normal(f64),
    /// Ones.
    One,
    /// Zeros.
    Zero,
}

/// One tensor of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name in checkpoints.
    pub name: &'static str,
    /// Shape, row-major; the weight of a product is (outputs, inputs).
    pub shape: Vec<usize>,
    /// Number of padding rows at the end, which stay zero.
    pub padding: usize,
    /// Initial values.
    pub initial: Initial,
    /// Name of the tensor of an earlier part that this one shares, if any.
    pub tied: Option<&'static str>,
    /// How tensor-parallel ranks share it; `None`: each rank holds the whole tensor.
    pub split: Option<Split>,
    /// Whether its first axis counts experts. Expert-parallel ranks share that one, and expert-tensor ranks the axis of `split`.
    pub is_of_experts: bool,
    /// Whether it belongs to an adapter; tensors of the model itself are frozen next to these.
    pub is_adapter: bool,
}

/// Degrees by which ranks share the tensors of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Tensor-parallel degree.
    pub tp: usize,
    /// Expert-parallel degree.
    pub ep: usize,
    /// Expert-tensor-parallel degree.
    pub etp: usize,
}

impl Tensor {
    /// Returns an unshared tensor without padding or split axis.
    pub fn new(name: &'static str, shape: impl Into<Vec<usize>>, initial: Initial) -> Tensor {
        Tensor {
            name,
            shape: shape.into(),
            padding: 0,
            initial,
            tied: None,
            split: None,
            is_of_experts: false,
            is_adapter: false,
        }
    }

    /// Returns the tensor split along `axis`; `blocks` are the runs of that axis.
    pub fn split(self, axis: usize, blocks: &[Block]) -> Tensor {
        Tensor { split: Some(Split { axis, blocks: blocks.to_vec() }), ..self }
    }

    /// Returns the shape of what `rank` of `ranks` holds.
    pub fn share(&self, rank: usize, ranks: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(split) = &self.split {
            shape[split.axis] = split.length(rank, ranks);
        }
        shape
    }

    /// Returns the tensor marked as the experts': its first axis counts them.
    pub fn of_experts(self) -> Tensor {
        Tensor { is_of_experts: true, ..self }
    }

    /// Returns the elements of what the first rank holds under these degrees; no rank holds more.
    pub fn elements_under(&self, degrees: Degrees) -> u64 {
        let ranks = if self.is_of_experts { degrees.etp } else { degrees.tp };
        let mut shape = self.share(0, ranks);
        if self.is_of_experts {
            shape[0] = shape[0].div_ceil(degrees.ep.max(1));
        }
        shape.into_iter().map(|size| size as u64).product()
    }

    /// Returns the elements of what the first of `ranks` holds; no rank holds more.
    pub fn share_elements(&self, ranks: usize) -> usize {
        self.share(0, ranks).into_iter().product()
    }

    /// Returns the tensor with its last `rows` rows as padding.
    pub fn padded(self, rows: usize) -> Tensor {
        Tensor { padding: rows, ..self }
    }

    /// Returns a tensor that shares `other` under another name.
    pub fn tied_to(name: &'static str, other: &Tensor) -> Tensor {
        Tensor { name, tied: Some(other.name), ..other.clone() }
    }

    /// Returns the number of elements as stored, including padding.
    pub fn elements(&self) -> u128 {
        self.shape.iter().map(|&size| size as u128).product()
    }

    /// Returns the number of padding elements.
    pub fn padding_elements(&self) -> u128 {
        self.shape[1..].iter().map(|&size| size as u128).product::<u128>() * self.padding as u128
    }
}

/// Name of the part that turns tokens into hidden states.
pub const EMBEDDING: &str = "embedding";
/// Name of a transformer block: of all layers if they are alike and not mixtures, otherwise of dense ones with full attention.
pub const BLOCK: &str = "block";
/// Name of a dense layer with windowed attention, in models that have other layers, too.
pub const WINDOW_BLOCK: &str = "window block";
/// Name of a layer with experts.
pub const MIXTURE: &str = "mixture";
/// Name of a layer with experts and windowed attention, in models that have layers with full attention, too.
pub const WINDOW_MIXTURE: &str = "window mixture";
/// Name of a layer that predicts further tokens (DeepSeek-V3, arXiv 2412.19437, section 2.2).
pub const PREDICTION: &str = "prediction";
/// Name of the part that turns hidden states into logits and a loss.
pub const HEAD: &str = "head";

/// Returns whether the part with this name is a layer, not embedding or head.
pub fn is_layer(part: &str) -> bool {
    part != EMBEDDING && part != HEAD
}

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
    /// Returns whether it is a layer, not embedding or head.
    pub fn is_layer(&self) -> bool {
        is_layer(self.name)
    }

    /// Returns the tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.groups.iter().flatten()
    }

    /// Returns the number of modules with weights, in software where queries, keys and values have one each, and so have the halves of a
    /// gated MLP.
    pub fn modules(&self) -> usize {
        let own = self.operations.iter().filter(|operation| operation.has_weights());
        let gates = self.operations.iter().filter(|operation| match **operation {
            Operation::Activate { inputs, outputs } | Operation::ActivateCopies { inputs, outputs, .. } => {
                inputs != outputs
            }
            _ => false,
        });
        let before = self.operations.iter().take_while(|operation| !operation.has_heads());
        let is_product = |operation: &&Operation| matches!(operation, Operation::Product { .. });
        let is_joint = before.filter(is_product).count() == 1 && self.operations.iter().any(Operation::has_heads);
        own.count() + gates.count() + if is_joint { 2 } else { 0 }
    }

    /// Returns the weights of products and routers, in the order of their operations, without adapters.
    pub fn matrices(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors().filter(|tensor| tensor.shape.len() == 2 && !tensor.is_of_experts && !tensor.is_adapter)
    }

    /// Returns the number of elements of the tensors, including shared ones.
    pub fn elements(&self) -> u128 {
        self.tensors().map(Tensor::elements).sum()
    }

    /// Returns the elements that the first rank holds of the tensors without and of experts, including shared ones.
    pub fn elements_under(&self, degrees: Degrees) -> [u64; 2] {
        self.elements_of(degrees, |_| true)
    }

    /// Returns [`Part::elements_under`] of the tensors that `counts`.
    pub fn elements_of(&self, degrees: Degrees, counts: impl Fn(&Tensor) -> bool) -> [u64; 2] {
        let mut elements = [0; 2];
        for tensor in self.tensors().filter(|tensor| counts(tensor)) {
            elements[usize::from(tensor.is_of_experts)] += tensor.elements_under(degrees);
        }
        elements
    }

    /// Returns the parameters of one repetition in tensors that `counts` and that are not shared from another part, without
    /// padding.
    pub fn parameters(&self, counts: impl Fn(&Tensor) -> bool) -> u128 {
        let own = self.tensors().filter(|tensor| tensor.tied.is_none() && counts(tensor));
        own.map(|tensor| tensor.elements() - tensor.padding_elements()).sum()
    }

    /// Returns the experts per token and all of them; `None` without experts.
    pub fn chosen_experts(&self) -> Option<(u128, u128)> {
        self.operations.iter().find_map(|operation| match *operation {
            Operation::Grouped { experts, top_k, .. } => Some((top_k as u128, experts as u128)),
            _ => None,
        })
    }

    /// Returns the FLOPs of one repetition for a micro-batch, in F, I, W or B.
    pub fn flops(&self, kind: Kind, micro: MicroBatch) -> u128 {
        self.operations.iter().map(|operation| operation.flops(kind, micro)).sum()
    }

    /// Returns the bytes that one repetition saves for a micro-batch: F for I, or I for W.
    pub fn left(&self, kind: Kind, micro: MicroBatch, storage: &Storage) -> u64 {
        let left = self.with_splits().map(|(operation, split)| operation.left(kind, micro, storage, split));
        left.fold(0, u64::saturating_add)
    }

    /// Returns the operations, each product with how ranks share its weight: the k-th product uses the k-th matrix.
    pub fn with_splits(&self) -> impl Iterator<Item = (&Operation, Option<&Split>)> {
        let mut matrices = self.matrices();
        self.operations.iter().map(move |operation| match operation {
            Operation::Product { .. } | Operation::Route { .. } => {
                (operation, matrices.next().and_then(|matrix| matrix.split.as_ref()))
            }
            _ => (operation, None),
        })
    }

    /// Returns the number of groups with a tensor that is not shared from another part.
    pub(super) fn own_groups(&self) -> usize {
        self.groups.iter().filter(|group| group.iter().any(|tensor| tensor.tied.is_none())).count()
    }
}
