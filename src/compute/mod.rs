//! What a trainer asks of a machine: the calls of a model's layers, and of its parameters. [`cpu::Cpu`] computes them on the
//! calling thread.
//!
//! Calls are those of a model, never of tensor algebra, so that a machine may fuse what it likes. All matrices are row-major; n is
//! the number of tokens (rows) of a micro-batch, B of its sequences, T of tokens per sequence. What a forward call keeps for the
//! backward is a buffer that the trainer only passes on: its content differs between machines.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod operands;
mod timing;

pub use cpu_kernels::optimizer::AdamW;
pub use operands::{
    Activated, Attended, Attention, Classified, Classifier, Embedded, Embedding, Function, Linear, Multiplied, Norm,
    NormKind, Normalized, Rotation, Workload,
};
pub use timing::{Part, PartTimer, PartTiming, Stopwatch};

use anyhow::Result;

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

/// A buffer of activations.
pub trait Memory {
    /// Size in bytes.
    fn bytes(&self) -> usize;
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

    /// Stores these tensors; `is_shared` if another part of the model shares them.
    fn group(&mut self, tensors: &[&[f32]], is_shared: bool) -> Result<Self::Group>;

    /// Clears the gradients.
    fn zero(&mut self, group: &mut Self::Group) -> Result<()>;

    /// Squares the gradients of each group, both sides added up. [`Store::squares`] returns the sums.
    fn square(&mut self, groups: &[&Self::Group]) -> Result<()>;

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

    /// Returns a buffer of n rows of `width` activations with any content, or the place `output` if it is one that calls can write
    /// to.
    fn take(&mut self, width: usize, output: Option<&Self::Output<'_>>) -> Result<Self::Buffer>;

    /// Takes buffers back.
    fn give(&mut self, buffer: Self::Buffer);

    /// Copies a message of n rows of `width` activations into a buffer.
    fn receive(&mut self, message: Self::Input<'_>, width: usize) -> Result<Self::Buffer>;

    /// Copies a buffer to `output`, unless [`Compute::take`] returned that place, and takes it back.
    fn send(&mut self, buffer: Self::Buffer, output: Self::Output<'_>) -> Result<()>;

    /// Sums the tables' rows at each token and its position. Returns what the backward for the weights needs of the ids.
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

    /// `out` = `input` weightᵀ (+ bias) (+ `residual`).
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

    /// The gradient of a linear layer's input, from that of its output.
    fn linear_input(
        &mut self,
        out: &mut Self::Buffer,
        group: &Self::Group,
        layer: &Linear,
        gradient: &Self::Buffer,
    ) -> Result<()>;

    /// The gradient of an activation's input, from that of the output of the linear layer `after` it and what the activation kept.
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

    /// The gradient of an attention's fused input.
    fn attention_input(
        &mut self,
        out: &mut Self::Buffer,
        layer: &Attention,
        operands: Attended<'_, Self::Buffer>,
    ) -> Result<()>;

    /// Computes the micro-batch's loss, the mean over its tokens, and returns the gradient of the logits: `weight` times that of the
    /// sum of the tokens' losses.
    fn classify(
        &mut self,
        group: &Self::Group,
        layer: &Classifier,
        input: &Self::Buffer,
        microbatch: usize,
        weight: f32,
    ) -> Result<Self::Buffer>;

    /// The gradient of a classifier's input, from that of its logits.
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

    /// Returns the loss of each micro-batch's last forward. Waits.
    fn losses(&mut self) -> Result<Vec<f32>>;
}
