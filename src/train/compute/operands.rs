//! Descriptions of layers, and the operands of calls that read several buffers. Tensors are numbers within the layer's group.

use super::store::{OptimizerShare, Side};
use anyhow::{Result, ensure};
use pipesim_models::model_spec::MicroBatch;
use pipesim_models::model_spec::transformer::check_rows;
use std::ops::Range;

/// Which tensor-parallel rank a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorShare {
    pub rank: usize,
    /// Number of ranks that share every layer.
    pub size: usize,
    /// Whether they also share the rows between products: sequence parallelism (Korthikanti et al., arXiv 2205.05198).
    pub shares_rows: bool,
}

impl TensorShare {
    /// The only rank: it has whole layers.
    pub const WHOLE: TensorShare = TensorShare { rank: 0, size: 1, shares_rows: false };

    /// Number of ranks that share the rows between products.
    pub fn row_ranks(self) -> usize {
        if self.shares_rows { self.size } else { 1 }
    }
}

/// Rows of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// All n of a micro-batch.
    All,
    /// Those between products: all, or with sequence parallelism the rank's, one of equal runs.
    Between,
}

/// What tensor-parallel ranks add up in a linear layer that they share (Shoeybi et al., arXiv 1909.08053, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Nothing: each rank has the whole layer.
    None,
    /// The gradient of the input: each rank has some outputs.
    Gradient,
    /// The output: each rank has some inputs, and the whole bias.
    Output,
}

/// Outputs of a linear layer that several ranks hold: heads of keys and of values, if there are fewer than ranks. Their gradients
/// are added up over these ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The first of these outputs here.
    pub start: usize,
    /// Runs of outputs: keys, values. Each is one piece of `pieces`.
    pub blocks: usize,
    /// Outputs per piece.
    pub size: usize,
    pub pieces: usize,
    /// The piece that is here.
    pub piece: usize,
}

/// Kind of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// (x - mean) / √(variance + epsilon) · weight + bias; the bias follows the weight.
    Layer,
    /// x / √(mean of squares + epsilon) · weight.
    RootMeanSquare,
}

/// A norm over rows of `width`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    pub width: usize,
    pub epsilon: f32,
    pub weight: usize,
}

/// A product with a weight (outputs, inputs); the bias, if any, follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    pub weight: usize,
    pub has_bias: bool,
    pub inputs: usize,
    pub outputs: usize,
    pub reduction: Reduction,
    pub copies: Option<Copies>,
}

impl Linear {
    /// Rows of the input, and of its gradient.
    pub fn input_rows(&self) -> Rows {
        if self.reduction == Reduction::Gradient { Rows::Between } else { Rows::All }
    }

    /// Rows of the output, and of its gradient.
    pub fn output_rows(&self) -> Rows {
        if self.reduction == Reduction::Output { Rows::Between } else { Rows::All }
    }
}

/// The function of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// GELU with the tanh approximation.
    Gelu,
    /// silu(gate) · up, of rows that hold the gate, then up.
    SwiGlu,
}

/// A linear layer followed by an activation with rows of `width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activated {
    pub linear: Linear,
    pub function: Function,
    pub width: usize,
}

/// Rotation of the first `heads` heads (queries, then keys) of rows of `fused` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    pub heads: usize,
    pub fused: usize,
}

/// Causal attention: `heads` of queries, `groups` of keys and of values, `size` channels each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    pub heads: usize,
    pub groups: usize,
    pub size: usize,
}

impl Attention {
    /// Elements per row of fused queries, keys and values.
    pub fn fused(&self) -> usize {
        (self.heads + 2 * self.groups) * self.size
    }

    /// Elements per row of keys and values.
    pub fn cached(&self) -> usize {
        2 * self.groups * self.size
    }
}

/// Logits of `vocabulary` ids, and their cross entropy. The weight has `rows` (padded) rows. Tensor-parallel ranks have some of the
/// ids, perhaps none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classifier {
    pub weight: usize,
    /// The side of the weight's gradient that is this layer's.
    pub side: Side,
    pub width: usize,
    /// The first id that is here.
    pub first: usize,
    pub vocabulary: usize,
    pub rows: usize,
}

/// Tables of rows of `width`, in groups `G`: one by token, whose first row belongs to id `first`, and perhaps one by position.
#[derive(Clone, Copy, Debug)]
pub struct Embedding<G> {
    pub width: usize,
    pub first: usize,
    pub tokens: G,
    pub positions: Option<G>,
}

/// Operands of an embedding's backward for the weights.
#[derive(Clone, Copy, Debug)]
pub struct Embedded<'a, B> {
    /// What the forward returned.
    pub ids: &'a B,
    pub gradient: &'a B,
}

/// Operands of a norm's backward for the input.
#[derive(Clone, Copy, Debug)]
pub struct Normalized<'a, B> {
    /// Gradient of the output.
    pub gradient: &'a B,
    pub input: &'a B,
    pub statistics: &'a B,
    /// Added to the result: the gradient that bypasses the norm.
    pub residual: Option<&'a B>,
}

/// Operands of a linear layer's backward for the weights.
#[derive(Clone, Copy, Debug)]
pub struct Multiplied<'a, B> {
    /// Gradient of the output.
    pub gradient: &'a B,
    pub input: &'a B,
}

/// Operands of an attention's backward for the input.
#[derive(Clone, Copy, Debug)]
pub struct Attended<'a, B> {
    /// Gradient of the output.
    pub gradient: &'a B,
    /// The forward's input.
    pub fused: &'a B,
    /// The forward's output.
    pub output: &'a B,
    /// What the forward returned.
    pub kept: &'a B,
}

/// An earlier slice of the same sequences.
#[derive(Debug)]
pub struct Earlier<'a, B> {
    /// Its fused rows, or its keys and values alone.
    pub keys: &'a B,
    /// What later slices added to the gradients of its keys and values so far.
    pub gradient: &'a mut Option<B>,
}

/// Operands of a classifier's backward for the weights.
#[derive(Clone, Copy, Debug)]
pub struct Classified<'a, B> {
    pub logits_gradient: &'a B,
    pub input: &'a B,
}

/// What a machine must know before the first call: sizes that hold for all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub micro_batch: MicroBatch,
    /// Micro-batches per step.
    pub microbatches: usize,
    /// Tokens per sequence of each slice, if sequences are cut into slices; empty otherwise.
    pub slices: Vec<usize>,
    pub vocabulary: usize,
    /// The vocabulary is padded to a multiple of this.
    pub vocabulary_multiple: usize,
    /// Which share of each layer the device has.
    pub tensor: TensorShare,
    /// Which share of the optimizer's work it has.
    pub optimizer: OptimizerShare,
    /// That of every block, on this rank.
    pub attention: Attention,
    /// Angle per position of each pair of channels of a head, in radians; empty without rotary positions.
    pub frequencies: Vec<f64>,
    /// Whether the device holds the embedding, and needs inputs.
    pub has_embedding: bool,
    /// Whether the device holds the head, and needs targets.
    pub has_head: bool,
}

impl Workload {
    /// Checks that it is the workload of tensor-parallel rank `rank` of `size`.
    pub fn require_rank(&self, rank: usize, size: usize) -> Result<()> {
        let TensorShare { rank: own, size: all, .. } = self.tensor;
        let what = "pass the group that the workload is for";
        ensure!((own, all) == (rank, size), "expected tensor rank {own} of {all}, found {rank} of {size}: {what}");
        Ok(())
    }

    /// Returns it with sequences cut into slices of these numbers of tokens; whole if there are none or one.
    ///
    /// # Errors
    /// The slices do not make up the sequences, or ranks cannot share the rows of a slice.
    pub fn sliced(self, slices: &[usize]) -> Result<Workload> {
        let (MicroBatch { sequences, tokens }, ranks) = (self.micro_batch, self.tensor.row_ranks());
        if slices.len() < 2 {
            return Ok(self);
        }
        let sum: usize = slices.iter().sum();
        ensure!(
            sum == tokens && !slices.contains(&0),
            "expected slices of 1 token or more that add up to {tokens}, found {slices:?}"
        );
        slices.iter().try_for_each(|length| check_rows("slice", sequences * length, ranks))?;
        Ok(Workload { slices: slices.to_vec(), ..self })
    }

    /// Number of slices of a micro-batch; 1 if sequences are whole.
    pub fn slice_count(&self) -> usize {
        self.slices.len().max(1)
    }

    /// The positions of a slice's tokens in their sequences.
    pub fn positions(&self, slice: usize) -> Range<usize> {
        match self.slices.get(slice) {
            Some(length) => {
                let first = self.slices[..slice].iter().sum();
                first..first + length
            }
            None => 0..self.micro_batch.tokens,
        }
    }

    /// Rows of a slice of a micro-batch.
    pub fn slice_rows(&self, slice: usize) -> usize {
        self.micro_batch.sequences * self.positions(slice).len()
    }

    /// The range of a slice's tokens in a step's tokens, in the order of [`Workload::in_order`].
    pub fn slice_tokens(&self, microbatch: usize, slice: usize) -> Range<usize> {
        let micro = self.micro_batch;
        let start = microbatch * micro.rows() + micro.sequences * self.positions(slice).start;
        start..start + self.slice_rows(slice)
    }

    /// Appends a step's tokens, micro-batch by micro-batch and sequence by sequence, to `into`: of each micro-batch slice by slice.
    pub fn in_order(&self, tokens: &[u32], into: &mut Vec<u32>) {
        if self.slice_count() == 1 {
            return into.extend_from_slice(tokens);
        }
        let micro = self.micro_batch;
        for microbatch in tokens.chunks(micro.rows()) {
            for slice in 0..self.slice_count() {
                let sequences = microbatch.chunks(micro.tokens);
                sequences.for_each(|sequence| into.extend_from_slice(&sequence[self.positions(slice)]));
            }
        }
    }
}
