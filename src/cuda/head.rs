//! The head on a device: final LayerNorm, logits = LNf · wteᵀ, and the loss. Its forward computes the gradient of the logits
//! too, in their place.

use super::group::Group;
use super::operation::{NormOperands, Operations};
use crate::model::Shape;
use crate::model::stash::{HeadForward, HeadWeight};
use anyhow::Result;
use pipesim_cuda::api::{Address, Buffer};
use pipesim_cuda::blas::Sizes;

/// What the head's passes need beside the hidden state.
pub(super) struct Context<'a> {
    pub(super) shape: Shape,
    /// V and Vp.
    pub(super) vocabulary: [usize; 2],
    /// Final LayerNorm.
    pub(super) lnf: &'a Group,
    /// Token embedding (Vp, C), the weight of the logits.
    pub(super) wte: &'a Group,
}

impl Context<'_> {
    fn sizes(&self) -> Sizes {
        Sizes { rows: self.shape.rows(), outputs: self.vocabulary[1], inputs: self.shape.channels }
    }
}

/// Forward pass: takes the hidden state (n, C). The gradient of the logits is `weight` times that of the sum of the tokens'
/// losses; the mean of the losses over the micro-batch's tokens goes to `loss`.
pub(super) fn forward(
    operations: &mut Operations,
    context: &Context,
    input: Buffer,
    [loss, targets]: [Address; 2],
    weight: f32,
) -> Result<HeadForward<Buffer>> {
    let (n, c, [v, vp]) = (context.shape.rows(), context.shape.channels, context.vocabulary);
    let (lnf, statistics) = (operations.activations(n * c)?, operations.floats(n * 2)?);
    let parameters = [context.lnf.tensor(0), context.lnf.tensor(1)];
    operations.layernorm_forward([lnf.address(), statistics.address(), input.address()], parameters, [n, c])?;
    let logits = operations.activations(n * vp)?;
    let places = [logits.address(), lnf.address()];
    operations.linear_forward(places, [context.wte.tensor(0), Address::NULL], None, context.sizes())?;
    let losses = operations.floats(n)?;
    operations.classifier_forward([logits.address(), losses.address(), targets], weight, [n, v, vp])?;
    operations.loss_mean(loss, losses.address(), n)?;
    operations.pool.give([losses]);
    Ok(HeadForward { input, lnf, statistics, logits_gradient: logits })
}

/// Backward for the input: writes the gradient of the hidden state (n, C) to `output`.
pub(super) fn backward_input(
    operations: &mut Operations,
    context: &Context,
    stash: HeadForward<Buffer>,
    output: Address,
) -> Result<HeadWeight<Buffer>> {
    let (n, c) = (context.shape.rows(), context.shape.channels);
    let gradient = operations.activations(n * c)?;
    let places = [gradient.address(), stash.logits_gradient.address(), context.wte.tensor(0)];
    operations.linear_backward_input(places, context.sizes())?;
    let operands = NormOperands {
        gradient: gradient.address(),
        input: stash.input.address(),
        statistics: stash.statistics.address(),
    };
    let sums = operations.layernorm_backward_sums(operands, [n, c])?;
    operations.layernorm_backward_input(output, operands, [context.lnf.tensor(0), Address::NULL], [n, c])?;
    operations.pool.give([gradient, stash.input, stash.statistics]);
    Ok(HeadWeight { lnf: stash.lnf, logits_gradient: stash.logits_gradient, sums })
}

/// Backward for the weights: adds to the gradients of the final LayerNorm and to the head's part of that of `wte`.
pub(super) fn backward_weight(
    operations: &mut Operations,
    context: &Context,
    wte_gradient: Address,
    stash: HeadWeight<Buffer>,
) -> Result<()> {
    let (n, c) = (context.shape.rows(), context.shape.channels);
    let operands = [stash.logits_gradient.address(), stash.lnf.address()];
    operations.linear_backward_weight([wte_gradient, Address::NULL], operands, context.sizes())?;
    let into = [context.lnf.gradient(0), context.lnf.gradient(1)];
    operations.layernorm_backward_weight(into, &stash.sums, [n, c])?;
    operations.pool.give(stash.buffers());
    Ok(())
}
