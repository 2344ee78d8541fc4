//! The work of a training step, by which two programs can check that they did the same.

use crate::model::Config;
use crate::model_spec::MicroBatch;
use crate::op::Kind;
use serde::Serialize;

/// Sizes of a model and of its training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Number of transformer blocks.
    pub blocks: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Width of the hidden state.
    pub channels: usize,
    /// Number of token ids, without padding.
    pub vocabulary: usize,
    /// Tokens per sequence.
    pub sequence_tokens: usize,
    /// Sequences per step, of all micro-batches and replicas.
    pub sequences: usize,
    /// Number of parameters, without padding.
    pub parameters: u64,
    /// FLOPs of the matrix products of forward and backward per token: two per multiply-add, and the full square of attention scores.
    pub flops_per_token: u64,
}

impl Work {
    /// Returns the work of a step on `step`, all sequences of the step together.
    pub fn new(config: &Config, step: MicroBatch) -> Work {
        let spec = config.spec();
        let flops: u128 = [Kind::F, Kind::B].iter().map(|&kind| spec.flops(kind, step)).sum();
        Work {
            blocks: config.layers,
            heads: config.heads,
            channels: config.channels,
            vocabulary: config.vocabulary,
            sequence_tokens: step.tokens,
            sequences: step.sequences,
            parameters: spec.parameters() as u64,
            flops_per_token: (flops / (step.rows() as u128).max(1)) as u64,
        }
    }
}
