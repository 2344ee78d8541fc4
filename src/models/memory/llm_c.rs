//! Memory of llm.c's fp32 program (<https://github.com/karpathy/llm.c>, `train_gpt2_fp32.cu`, and its two-GPU pipeline): every
//! operation's output has its own memory for the whole run, including attention scores.

use super::peak::SavedActivations;
use crate::model_spec::{BLOCK, EMBEDDING, HEAD, MicroBatch, ModelSpec, Operation, Stage};

const FLOAT: u64 = 4;

fn floats(micro: MicroBatch, a_token: u64) -> u64 {
    (micro.rows() as u64).saturating_mul(a_token).saturating_mul(FLOAT)
}

/// Returns the attention scores per token.
fn scores(heads: usize, keys: usize) -> u64 {
    heads as u64 * keys as u64
}

/// Returns the elements per token of an operation's outputs.
fn outputs(operation: &Operation, keys: usize) -> u64 {
    match *operation {
        Operation::Norm { width, statistics, .. } => (width + statistics) as u64,
        Operation::Attention { heads, size, .. } => (heads * size) as u64 + scores(heads, keys),
        Operation::Product { outputs, .. } | Operation::Activate { outputs, .. } => outputs as u64,
        Operation::Lookup { width } | Operation::Add { width } => width as u64,
        // llm.c has no other operations
        _ => 0,
    }
}

/// Returns the memory of a micro-batch in `stage`: 18 C + 4 + NH T per token and layer. The outputs of embedding and final norm
/// are allocated on every GPU, the norm's statistics and the losses only with the head.
pub(super) fn left(spec: &ModelSpec, stage: &Stage, micro: MicroBatch, keys: usize) -> SavedActivations {
    let part = |name: &str| {
        let part = spec.parts.iter().find(|part| part.name == name);
        part.map_or(0, |part| part.operations.iter().map(|operation| outputs(operation, keys)).sum::<u64>())
    };
    let ends = part(EMBEDDING) + if stage.has(HEAD) { part(HEAD) + 1 } else { spec.width as u64 };
    SavedActivations {
        forward: floats(micro, stage.count(BLOCK) as u64 * part(BLOCK) + ends),
        ..SavedActivations::default()
    }
}

/// Returns the buffers of a GPU: logits, reused as scratch; gradients of a block's widest output, of its scores and of the
/// residual; between two GPUs the hidden state and its gradient, and the token embedding's gradient to send and to receive.
pub(super) fn buffers(spec: &ModelSpec, micro: MicroBatch, keys: usize, is_piped: bool) -> u64 {
    let operations = || spec.parts.iter().flat_map(|part| &part.operations);
    let most = |of: &dyn Fn(&Operation) -> u64| operations().map(of).max().unwrap_or(0);
    let scores = most(&|operation| match *operation {
        Operation::Attention { heads, .. } => scores(heads, keys),
        _ => 0,
    });
    let attention = most(&|operation| match *operation {
        Operation::Attention { heads, groups, size, .. } => ((heads + 2 * groups) * size) as u64,
        _ => 0,
    });
    let tied = spec.parts.iter().flat_map(|part| part.tensors());
    let tied: u64 = tied.filter(|tensor| tensor.tied.is_some()).map(|tensor| tensor.elements() as u64 * FLOAT).sum();
    let rows = spec.parts.first().and_then(|part| part.tensors().next()).map_or(0, |tensor| tensor.shape[0] as u64);
    let widest = most(&|operation| match *operation {
        Operation::Product { outputs, .. } => outputs as u64,
        _ => 0,
    });
    let scratch = floats(micro, attention.max(scores).max(rows) + widest + spec.width as u64 + scores);
    let exchanged = floats(micro, 2 * spec.width as u64).saturating_add(tied.saturating_mul(2));
    scratch.saturating_add(if is_piped { exchanged } else { 0 })
}
