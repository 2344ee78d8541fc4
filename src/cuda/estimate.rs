//! How much device memory a shard needs, before any is allocated.

use super::blas::WORKSPACE_BYTES;
use super::gpu::Gpu;
use super::group::padded_count;
use super::kernel::{self, Precision};
use super::memory::mib;
use crate::model::{Config, StageLayers};
use anyhow::{Result, ensure};

/// What a shard is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Sequences of a micro-batch, B.
    pub sequences: usize,
    /// Tokens of a sequence, T.
    pub tokens: usize,
    /// Micro-batches of a step.
    pub microbatches: usize,
    /// Micro-batches that each stage keeps at once between forward and backward.
    pub in_flight: usize,
    /// Type of the activations.
    pub precision: Precision,
}

/// Where the bytes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Parameters, their gradients, AdamW's moments.
    pub parameters: usize,
    /// What forwards keep for backwards.
    pub activations: usize,
    /// What an op uses while it runs, and what products need.
    pub scratch: usize,
}

impl Bytes {
    /// All of them.
    pub fn total(&self) -> usize {
        self.parameters + self.activations + self.scratch
    }
}

/// Bytes of device memory that a shard of these stages needs. Code and the driver's own needs are not counted.
pub fn bytes_needed(config: &Config, stages: &[(u32, StageLayers)], demand: &Demand) -> Bytes {
    let (n, c, vp) = (demand.sequences * demand.tokens, config.channels, config.padded_vocabulary());
    let act = demand.precision.bytes();
    // master values, gradients, two moments; a copy in the activations' precision
    let per_element = 16 + if demand.precision == Precision::Bf16 { 2 } else { 0 };
    let blocks: usize = stages.iter().map(|(_, layers)| layers.blocks.len()).sum();
    let embedding = stages.iter().any(|(_, layers)| layers.embedding);
    let head = stages.iter().any(|(_, layers)| layers.head);
    let block = padded_count([c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c]);
    let mut elements = blocks * block;
    let mut parameters = 0;
    if embedding || head {
        elements += padded_count([vp * c]);
        parameters += 4 * padded_count([vp * c]); // the other part of the gradient
    }
    if embedding {
        elements += padded_count([config.max_sequence * c]);
    }
    if head {
        elements += padded_count([c, c]);
    }
    parameters += elements * per_element;
    let sums = 4 * kernel::layernorm_groups(n) * 2 * c;
    let kept_by_block = n * (16 * c * act + 4 * (4 + config.heads)) + 2 * sums;
    let kept_by_head = if head { n * ((2 * c + vp) * act + 8) + sums } else { 0 };
    let activations = demand.in_flight * (blocks * kept_by_block + kept_by_head);
    let running = n * (12 * c * act + 4 * (config.heads + 1));
    let tokens = 4 * demand.microbatches * (5 * n + 2);
    Bytes { parameters, activations, scratch: running + tokens + WORKSPACE_BYTES }
}

/// Bytes of the gradients of one stage's parameters, as [`super::Shard::stage_gradient`] lays them out. Those of the tied token
/// embedding alone are [`tied_gradient_bytes`].
pub fn stage_gradient_bytes(config: &Config, layers: &StageLayers) -> usize {
    let c = config.channels;
    let embedding = padded_count([config.max_sequence * c]) * size_of::<f32>() + tied_gradient_bytes(config);
    let head = padded_count([c, c]) * size_of::<f32>() + tied_gradient_bytes(config);
    let block = padded_count([c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c]);
    layers.blocks.len() * block * size_of::<f32>()
        + if layers.embedding { embedding } else { 0 }
        + if layers.head { head } else { 0 }
}

/// Bytes of the gradient of the tied token embedding.
pub fn tied_gradient_bytes(config: &Config) -> usize {
    padded_count([config.padded_vocabulary() * config.channels]) * size_of::<f32>()
}

/// Whether the GPU has so much free memory; an error has the numbers.
pub(super) fn check(gpu: &Gpu, config: &Config, stages: &[(u32, StageLayers)], demand: &Demand) -> Result<()> {
    let bytes = bytes_needed(config, stages, demand);
    let (free, total) = gpu.memory()?;
    ensure!(
        bytes.total() <= free,
        "expected {} MiB of free memory on GPU {} ({} for parameters, gradients and moments, {} for the activations of {} \
         micro-batch, {} besides), found {} of {} MiB (every schedule, the calibrating one too, keeps a model): choose fewer \
         schedules, more stages, smaller micro-batches, or bfloat16",
        mib(bytes.total()),
        gpu.ordinal(),
        mib(bytes.parameters),
        mib(bytes.activations),
        demand.in_flight,
        mib(bytes.scratch),
        free >> 20,
        total >> 20
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2s_parameters_take_18_bytes_each_in_bfloat16() {
        let config = Config::preset("gpt2").unwrap();
        let whole = StageLayers { embedding: true, blocks: 0..12, head: true };
        let demand = Demand { sequences: 4, tokens: 1024, microbatches: 1, in_flight: 1, precision: Precision::Bf16 };
        let bytes = bytes_needed(&config, &[(0, whole)], &demand);
        // 124,475,904 parameters, all tensors multiples of 128 elements; the tied gradient's second part, 50304 * 768
        assert_eq!(bytes.parameters, 18 * 124_475_904 + 4 * 50304 * 768);
        // 32 bytes a channel and token a block
        assert!(
            bytes.activations > 12 * 32 * 768 * 4096 && bytes.activations < 13 * 36 * 768 * 4096 + 2 * 4096 * 50304
        );
    }
}
