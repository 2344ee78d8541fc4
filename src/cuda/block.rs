//! One transformer block on a device: x += attproj(attention(LN1(x))); x += fcproj(gelu(fc(LN2(x)))).

use super::group::Group;
use super::operation::{NormOperands, Operations};
use crate::model::Shape;
use crate::model::stash::{BlockForward, BlockWeight};
use crate::model_spec::gpt2::layer::{ATTENTION_PROJECTION, FC, FC_PROJECTION, LN1, LN2, QKV};
use anyhow::Result;
use pipesim_cuda::api::{Address, Buffer};
use pipesim_cuda::blas::Sizes;

/// The sizes of a product with a weight (OC, IC).
fn sizes(rows: usize, outputs: usize, inputs: usize) -> Sizes {
    Sizes { rows, outputs, inputs }
}

/// Weight of a layer.
fn weight(group: &Group, layer: usize) -> Address {
    group.tensor(2 * layer)
}

/// Weight and bias of a layer.
fn layer(group: &Group, layer: usize) -> [Address; 2] {
    [0, 1].map(|tensor| group.tensor(2 * layer + tensor))
}

/// Gradients of weight and bias of a layer.
fn gradients(group: &Group, layer: usize) -> [Address; 2] {
    [0, 1].map(|tensor| group.gradient(2 * layer + tensor))
}

/// Forward pass: takes the hidden state before the block, and writes that after it to `output`.
pub(super) fn forward(
    operations: &mut Operations,
    group: &Group,
    shape: &Shape,
    input: Buffer,
    output: Address,
) -> Result<BlockForward<Buffer>> {
    let (n, c) = (shape.rows(), shape.channels);

    let (ln1, ln1_statistics) = (operations.activations(n * c)?, operations.floats(n * 2)?);
    let places = [ln1.address(), ln1_statistics.address(), input.address()];
    operations.layernorm_forward(places, layer(group, LN1), [n, c])?;
    let qkv = operations.activations(n * 3 * c)?;
    let places = [qkv.address(), ln1.address()];
    operations.linear_forward(places, layer(group, QKV), None, sizes(n, 3 * c, c))?;
    let (attention, log_sums) = (operations.activations(n * c)?, operations.floats(n * shape.heads)?);
    operations.attention_forward([attention.address(), log_sums.address(), qkv.address()], shape)?;
    let middle = operations.activations(n * c)?;
    let (places, residual) = ([middle.address(), attention.address()], Some(input.address()));
    operations.linear_forward(places, layer(group, ATTENTION_PROJECTION), residual, sizes(n, c, c))?;

    let (ln2, ln2_statistics) = (operations.activations(n * c)?, operations.floats(n * 2)?);
    let places = [ln2.address(), ln2_statistics.address(), middle.address()];
    operations.layernorm_forward(places, layer(group, LN2), [n, c])?;
    let (gelu, fc) = (operations.activations(n * 4 * c)?, operations.activations(n * 4 * c)?);
    let places = [gelu.address(), fc.address(), ln2.address()];
    operations.linear_gelu_forward(places, layer(group, FC), sizes(n, 4 * c, c))?;
    let (places, residual) = ([output, gelu.address()], Some(middle.address()));
    operations.linear_forward(places, layer(group, FC_PROJECTION), residual, sizes(n, c, 4 * c))?;

    Ok(BlockForward { input, ln1, ln1_statistics, qkv, attention, log_sums, middle, ln2, ln2_statistics, fc, gelu })
}

/// Backward for the input: takes the gradient of the block's output, and writes that of its input to `output`.
pub(super) fn backward_input(
    operations: &mut Operations,
    group: &Group,
    shape: &Shape,
    stash: BlockForward<Buffer>,
    output_gradient: Buffer,
    output: Address,
) -> Result<BlockWeight<Buffer>> {
    let (n, c) = (shape.rows(), shape.channels);

    let fc_gradient = operations.activations(n * 4 * c)?;
    let places = [fc_gradient.address(), output_gradient.address(), weight(group, FC_PROJECTION), stash.fc.address()];
    operations.linear_gelu_backward_input(places, sizes(n, c, 4 * c))?;
    operations.pool.give([stash.fc]);
    let gradient = operations.activations(n * c)?;
    let places = [gradient.address(), fc_gradient.address(), weight(group, FC)];
    operations.linear_backward_input(places, sizes(n, 4 * c, c))?;
    let operands = NormOperands {
        gradient: gradient.address(),
        input: stash.middle.address(),
        statistics: stash.ln2_statistics.address(),
    };
    let ln2_sums = operations.layernorm_backward_sums(operands, [n, c])?;
    let middle_gradient = operations.activations(n * c)?;
    let others = [weight(group, LN2), output_gradient.address()];
    operations.layernorm_backward_input(middle_gradient.address(), operands, others, [n, c])?;
    operations.pool.give([stash.middle, stash.ln2_statistics]);

    let places = [gradient.address(), middle_gradient.address(), weight(group, ATTENTION_PROJECTION)];
    operations.linear_backward_input(places, sizes(n, c, c))?;
    let qkv_gradient = operations.activations(n * 3 * c)?;
    let operands = [&gradient, &stash.qkv, &stash.attention, &stash.log_sums].map(Buffer::address);
    operations.attention_backward(qkv_gradient.address(), operands, shape)?;
    operations.pool.give([stash.qkv, stash.log_sums]);
    let places = [gradient.address(), qkv_gradient.address(), weight(group, QKV)];
    operations.linear_backward_input(places, sizes(n, 3 * c, c))?;
    let operands = NormOperands {
        gradient: gradient.address(),
        input: stash.input.address(),
        statistics: stash.ln1_statistics.address(),
    };
    let ln1_sums = operations.layernorm_backward_sums(operands, [n, c])?;
    let others = [weight(group, LN1), middle_gradient.address()];
    operations.layernorm_backward_input(output, operands, others, [n, c])?;
    operations.pool.give([gradient, stash.input, stash.ln1_statistics]);

    Ok(BlockWeight {
        ln1: stash.ln1,
        attention: stash.attention,
        ln2: stash.ln2,
        gelu: stash.gelu,
        qkv_gradient,
        middle_gradient,
        fc_gradient,
        output_gradient,
        ln1_sums,
        ln2_sums,
    })
}

/// Backward for the weights: adds this micro-batch's share to the gradients of the block's parameters.
pub(super) fn backward_weight(
    operations: &mut Operations,
    group: &Group,
    shape: &Shape,
    stash: BlockWeight<Buffer>,
) -> Result<()> {
    let (n, c) = (shape.rows(), shape.channels);
    let products = [
        (FC_PROJECTION, &stash.output_gradient, &stash.gelu, sizes(n, c, 4 * c)),
        (FC, &stash.fc_gradient, &stash.ln2, sizes(n, 4 * c, c)),
        (ATTENTION_PROJECTION, &stash.middle_gradient, &stash.attention, sizes(n, c, c)),
        (QKV, &stash.qkv_gradient, &stash.ln1, sizes(n, 3 * c, c)),
    ];
    for (layer, gradient, input, sizes) in products {
        operations.linear_backward_weight(gradients(group, layer), [gradient.address(), input.address()], sizes)?;
    }
    for (layer, sums) in [(LN2, &stash.ln2_sums), (LN1, &stash.ln1_sums)] {
        operations.layernorm_backward_weight(gradients(group, layer), sums, [n, c])?;
    }
    operations.pool.give(stash.buffers());
    Ok(())
}
