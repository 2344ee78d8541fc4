//! One transformer block: x += attproj(attention(LN1(x))); x += fcproj(gelu(fc(LN2(x)))).

use super::pool::Pool;
use super::stash::{BlockForward, BlockWeight};
use crate::model_spec::Storage;
use crate::model_spec::gpt2::layer::{ATTENTION_PROJECTION, FC, FC_PROJECTION, LN1, LN2, QKV};
use cpu_kernels::Shape;
use cpu_kernels::optimizer::ParameterGroup;
use cpu_kernels::{attention, gelu, layernorm, linear};

/// How the CPU stores what passes leave behind: all in float32, rows of logits in whole cache lines.
pub const STORAGE: Storage = Storage::whole(4, 4, 16, 1);

/// Forward pass: consumes the hidden state before the block, returns that after it.
pub(super) fn forward(
    group: &ParameterGroup,
    shape: &Shape,
    input: Vec<f32>,
    pool: &mut Pool,
) -> (BlockForward<Vec<f32>>, Vec<f32>) {
    let (n, c) = (shape.rows(), shape.channels);

    let (mut ln1, mut ln1_statistics) = (pool.take(n * c), pool.take(n * 2));
    let (weight, bias) = group.parameters(LN1);
    layernorm::forward(&mut ln1, &mut ln1_statistics, &input, weight, bias);
    let mut qkv = pool.take(n * 3 * c);
    let (weight, bias) = group.parameters(QKV);
    linear::forward(&mut qkv, &ln1, weight, bias);
    let (mut attention, mut log_sums) = (pool.take(n * c), pool.take(n * shape.heads));
    let mut scratch = pool.take(attention::forward_scratch(shape));
    attention::forward(&mut attention, &mut log_sums, &qkv, &mut scratch, shape);
    pool.give([scratch]);
    let mut middle = pool.take(n * c);
    let (weight, bias) = group.parameters(ATTENTION_PROJECTION);
    linear::forward_residual(&mut middle, &input, &attention, weight, bias);

    let (mut ln2, mut ln2_statistics) = (pool.take(n * c), pool.take(n * 2));
    let (weight, bias) = group.parameters(LN2);
    layernorm::forward(&mut ln2, &mut ln2_statistics, &middle, weight, bias);
    let (mut gelu, mut gelu_derivative) = (pool.take(n * 4 * c), pool.take(n * 4 * c));
    let (weight, bias) = group.parameters(FC);
    linear::forward_without_bias(&mut gelu_derivative, &ln2, weight, 4 * c);
    gelu::forward(&mut gelu, &mut gelu_derivative, bias);
    let mut output = pool.take(n * c);
    let (weight, bias) = group.parameters(FC_PROJECTION);
    linear::forward_residual(&mut output, &middle, &gelu, weight, bias);

    let stash = BlockForward {
        input,
        ln1,
        ln1_statistics,
        qkv,
        attention,
        log_sums,
        middle,
        ln2,
        ln2_statistics,
        fc: gelu_derivative,
        gelu,
    };
    (stash, output)
}

/// Backward for the input: consumes the gradient of the block's output, returns that of its input.
pub(super) fn backward_input(
    group: &ParameterGroup,
    shape: &Shape,
    stash: BlockForward<Vec<f32>>,
    output_gradient: Vec<f32>,
    pool: &mut Pool,
) -> (BlockWeight<Vec<f32>>, Vec<f32>) {
    let (n, c) = (shape.rows(), shape.channels);

    let mut gradient = pool.take(n * 4 * c);
    linear::backward_input(&mut gradient, &output_gradient, group.parameters(FC_PROJECTION).0, c);
    let mut fc_gradient = stash.fc; // GELU's derivative
    gelu::backward(&mut fc_gradient, &gradient);
    pool.give([gradient]);
    let mut gradient = pool.take(n * c);
    linear::backward_input(&mut gradient, &fc_gradient, group.parameters(FC).0, 4 * c);
    let (mut middle_gradient, mut ln2_sums) = (pool.take(n * c), pool.take(2 * c));
    let operands = layernorm::Operands {
        gradient: &gradient,
        input: &stash.middle,
        statistics: &stash.ln2_statistics,
        weight: group.parameters(LN2).0,
    };
    layernorm::backward_input(&mut middle_gradient, &mut ln2_sums, Some(&output_gradient), operands);
    pool.give([stash.middle, stash.ln2_statistics]);

    linear::backward_input(&mut gradient, &middle_gradient, group.parameters(ATTENTION_PROJECTION).0, c);
    let mut qkv_gradient = pool.take(n * 3 * c);
    let mut scratch = pool.take(attention::backward_scratch(shape));
    let operands = attention::Operands {
        gradient: &gradient,
        qkv: &stash.qkv,
        output: &stash.attention,
        log_sums: &stash.log_sums,
    };
    attention::backward(&mut qkv_gradient, operands, &mut scratch, shape);
    pool.give([scratch, stash.qkv, stash.log_sums]);
    linear::backward_input(&mut gradient, &qkv_gradient, group.parameters(QKV).0, 3 * c);
    let (mut input_gradient, mut ln1_sums) = (pool.take(n * c), pool.take(2 * c));
    let operands = layernorm::Operands {
        gradient: &gradient,
        input: &stash.input,
        statistics: &stash.ln1_statistics,
        weight: group.parameters(LN1).0,
    };
    layernorm::backward_input(&mut input_gradient, &mut ln1_sums, Some(&middle_gradient), operands);
    pool.give([gradient, stash.input, stash.ln1_statistics]);

    let left = BlockWeight {
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
    };
    (left, input_gradient)
}

/// Backward for the weights: adds this micro-batch's share to the gradients of the block's parameters.
pub(super) fn backward_weight(group: &mut ParameterGroup, stash: BlockWeight<Vec<f32>>, pool: &mut Pool) {
    let products = [
        (FC_PROJECTION, &stash.output_gradient, &stash.gelu),
        (FC, &stash.fc_gradient, &stash.ln2),
        (ATTENTION_PROJECTION, &stash.middle_gradient, &stash.attention),
        (QKV, &stash.qkv_gradient, &stash.ln1),
    ];
    for (layer, gradient, input) in products {
        let (weight_gradient, bias_gradient) = group.gradients(layer);
        linear::backward_weight(weight_gradient, bias_gradient, gradient, input);
    }
    group.add_gradients(LN2, &stash.ln2_sums);
    group.add_gradients(LN1, &stash.ln1_sums);
    pool.give(stash.buffers());
}
