//! What a trainer asks of a machine for the layers of a model.

use super::operands::{
    Activated, Attended, Attention, Classified, Classifier, Earlier, Embedded, Embedding, Linear, Multiplied, Norm,
    Normalized, Rotation, Rows,
};
use super::store::Store;
use super::timing::PartTimer;
use anyhow::{Result, bail};

/// Why a machine refuses slices.
const WHOLE_SEQUENCES: &str = "expected whole sequences on this machine, found slices: train on CPUs";

/// A buffer of activations.
pub trait Memory {
    /// Size in bytes.
    fn bytes(&self) -> usize;
}

/// The calls of a model's layers, for micro-batches of one size. Outputs have the number of elements that a layer's description says
/// for the rows of a micro-batch, and every call writes all of its output.
///
/// A layer with weights has three calls: forward, backward for the input (`.._input`) and backward for the weights (`.._weight`).
pub trait Compute: Store + Send {
    /// Activations, or what a call keeps.
    type Buffer: Memory + Send;
    /// What measures the parts of an op.
    type Timer: PartTimer;

    /// Begins a step: all micro-batches' tokens, one after the other. They are needed where the model begins, and targets where it
    /// ends.
    fn begin(&mut self, inputs: &[u32], targets: &[u32]) -> Result<()>;

    /// Makes the following calls apply to one slice of the sequences, by its number: rows are the rows of the slice. Not called on
    /// machines that only train whole sequences.
    fn enter_slice(&mut self, _slice: usize) -> Result<()> {
        bail!(WHOLE_SEQUENCES)
    }

    /// Returns a buffer of `rows` of `width` activations with any content, or the place `output` if it is one that calls can write
    /// to.
    fn take(&mut self, rows: Rows, width: usize, output: Option<&Self::Output<'_>>) -> Result<Self::Buffer>;

    /// Takes buffers back.
    fn give(&mut self, buffer: Self::Buffer);

    /// Copies a message of the rows between products, of `width` activations into a buffer.
    fn receive(&mut self, message: Self::Input<'_>, width: usize) -> Result<Self::Buffer>;

    /// Copies a buffer to `output`, unless [`Compute::take`] returned that place, and takes it back.
    fn send(&mut self, buffer: Self::Buffer, output: Self::Output<'_>) -> Result<()>;

    /// Sums the tables' rows at each token and its position, over all tensor-parallel ranks. Returns what the backward for the weights needs of the ids.
    fn embed(
        &mut self,
        out: &mut Self::Buffer,
        layer: Embedding<&Self::Group>,
        microbatch: usize,
    ) -> Result<Self::Buffer>;

    /// Adds to the gradients of the tables.
    fn embed_weight(
        &mut self,
        layer: Embedding<&mut Self::Group>,
        microbatch: usize,
        operands: Embedded<'_, Self::Buffer>,
    ) -> Result<()>;

    /// Normalizes rows. Returns their statistics.
    fn norm(
        &mut self,
        out: &mut Self::Buffer,
        group: &Self::Group,
        layer: &Norm,
        input: &Self::Buffer,
    ) -> Result<Self::Buffer>;

    /// The gradient of a norm's input. Returns what the backward for the weights needs: sums for the weights' gradients.
    fn norm_input(
        &mut self,
        out: &mut Self::Buffer,
        group: &Self::Group,
        layer: &Norm,
        operands: Normalized<'_, Self::Buffer>,
    ) -> Result<Self::Buffer>;

    /// Adds to the gradients of a norm's weights.
    fn norm_weight(&mut self, group: &mut Self::Group, layer: &Norm, sums: &Self::Buffer) -> Result<()>;

    /// `out` = `input` weightᵀ (+ bias) (+ `residual`). Where ranks share the inputs, the products are added up over all of them.
    fn linear(
        &mut self,
        out: &mut Self::Buffer,
        group: &Self::Group,
        layer: &Linear,
        input: &Self::Buffer,
        residual: Option<&Self::Buffer>,
    ) -> Result<()>;

    /// A linear layer followed by an activation. Returns what the backward needs of the activation's input.
    fn activated(
        &mut self,
        out: &mut Self::Buffer,
        group: &Self::Group,
        layer: &Activated,
        input: &Self::Buffer,
    ) -> Result<Self::Buffer>;

    /// The gradient of a linear layer's input, from the gradient of its output. Where ranks share the outputs, it is added up over all of
    /// them.
    fn linear_input(
        &mut self,
        out: &mut Self::Buffer,
        group: &Self::Group,
        layer: &Linear,
        gradient: &Self::Buffer,
    ) -> Result<()>;

    /// Adds up the gradient of the outputs of a linear layer that several tensor-parallel ranks hold, in place, behind
    /// [`Compute::linear_input`]. Machines that only train whole layers are not asked.
    fn sum_copies(&mut self, _gradient: &mut Self::Buffer, _layer: &Linear) -> Result<()> {
        anyhow::bail!("expected one tensor rank on this machine, found several: use `tp` 1")
    }

    /// The gradient of an activation's input, from the gradient of the output of the linear layer `after` it and what the activation
    /// kept.
    fn activation_input(
        &mut self,
        group: &Self::Group,
        layer: &Activated,
        after: &Linear,
        gradient: &Self::Buffer,
        kept: Self::Buffer,
    ) -> Result<Self::Buffer>;

    /// Adds to the gradients of a linear layer's weight and bias.
    fn linear_weight(
        &mut self,
        group: &mut Self::Group,
        layer: &Linear,
        operands: Multiplied<'_, Self::Buffer>,
    ) -> Result<()>;

    /// Rotates queries and keys in place; backwards, their gradients.
    fn rotate(&mut self, fused: &mut Self::Buffer, layer: &Rotation, backwards: bool) -> Result<()>;

    /// Attention over the fused rows of queries, keys and values. Returns what the backward needs besides input and output.
    fn attention(&mut self, out: &mut Self::Buffer, layer: &Attention, fused: &Self::Buffer) -> Result<Self::Buffer>;

    /// Returns the keys and values of fused rows.
    fn keys_values(&mut self, _fused: &Self::Buffer, _layer: &Attention) -> Result<Self::Buffer> {
        bail!(WHOLE_SEQUENCES)
    }

    /// Attention of a slice to itself and to `earlier` ones of the same sequences. Their buffers hold fused rows, or
    /// come from [`Compute::keys_values`].
    fn slice_attention(
        &mut self,
        _out: &mut Self::Buffer,
        _layer: &Attention,
        _fused: &Self::Buffer,
        _earlier: &[&Self::Buffer],
    ) -> Result<Self::Buffer> {
        bail!(WHOLE_SEQUENCES)
    }

    /// The gradient of a slice's fused input. `later` is what later slices added to the gradients of its keys and values.
    /// Adds to the gradients of the keys and values of earlier slices, which begin if they are `None`.
    fn slice_attention_input(
        &mut self,
        _out: &mut Self::Buffer,
        _layer: &Attention,
        _operands: Attended<'_, Self::Buffer>,
        _later: Option<&Self::Buffer>,
        _earlier: &mut [Earlier<'_, Self::Buffer>],
    ) -> Result<()> {
        bail!(WHOLE_SEQUENCES)
    }

    /// The gradient of an attention's fused input.
    fn attention_input(
        &mut self,
        out: &mut Self::Buffer,
        layer: &Attention,
        operands: Attended<'_, Self::Buffer>,
    ) -> Result<()>;

    /// Computes the loss of the micro-batch or of its slice, and returns the gradient of the logits: `weight` times the
    /// gradient of the sum of the tokens' losses.
    fn classify(
        &mut self,
        group: &Self::Group,
        layer: &Classifier,
        input: &Self::Buffer,
        microbatch: usize,
        weight: f32,
    ) -> Result<Self::Buffer>;

    /// The gradient of a classifier's input, from the gradient of its logits.
    fn classify_input(
        &mut self,
        out: &mut Self::Buffer,
        group: &Self::Group,
        layer: &Classifier,
        logits_gradient: &Self::Buffer,
    ) -> Result<()>;

    /// Adds to one side of the gradient of a classifier's weight.
    fn classify_weight(
        &mut self,
        group: &mut Self::Group,
        layer: &Classifier,
        operands: Classified<'_, Self::Buffer>,
    ) -> Result<()>;

    /// Returns the loss of each micro-batch's last forward, the mean over its tokens. Waits.
    fn losses(&mut self) -> Result<Vec<f32>>;
}
