//! How much device memory a shard needs, before any is allocated.

use super::api::memory::mib;
use super::blas::WORKSPACE_BYTES;
use super::check::Unfit;
use super::gpu::Gpu;
use super::group::padded;
use super::kernel::{self, Precision};
use crate::anatomy::gpt2::VOCABULARY_MULTIPLE;
use crate::anatomy::{Anatomy, MicroBatch, Stage, Storage, TiedSides};
use crate::op::Kind;
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
pub fn bytes_needed(anatomy: &Anatomy, stages: &[(u32, Stage)], demand: &Demand) -> Bytes {
    let micro = MicroBatch { sequences: demand.sequences, tokens: demand.tokens };
    let (n, act) = (micro.rows(), demand.precision.bytes());
    let held = || stages.iter().map(|(_, stage)| stage);
    // master values, gradients, two moments; a copy in the activations' precision
    let per_element = 16 + if demand.precision == Precision::Bf16 { 2 } else { 0 };
    let mut parameters = anatomy.device_elements(held(), padded) * per_element;
    if anatomy.outline().tied_sides(held()) != TiedSides::None {
        parameters += tied_gradient_bytes(anatomy); // the other part of the gradient
    }
    let storage = storage(demand.precision, n);
    let empty = MicroBatch { sequences: 0, ..micro };
    // what I adds while F's is still there: sums, which do not go with the tokens
    let kept = |stage| anatomy.left(stage, Kind::F, micro, &storage) + anatomy.left(stage, Kind::I, empty, &storage);
    let activations = demand.in_flight * held().map(kept).sum::<usize>();
    let running = n * (3 * anatomy.widest() * act + size_of::<f32>() * (anatomy.heads() + 1));
    let tokens = 4 * demand.microbatches * (5 * n + 2);
    Bytes { parameters, activations, scratch: running + tokens + WORKSPACE_BYTES }
}

/// How a GPU stores what passes leave behind for micro-batches of `rows` tokens; token ids lie with the step's batch.
pub fn storage(precision: Precision, rows: usize) -> Storage {
    let partial_sums = kernel::layernorm_groups(rows);
    Storage::whole(0, precision.bytes(), VOCABULARY_MULTIPLE, partial_sums)
}

/// Bytes of the gradients of one stage's parameters, as [`super::Shard::stage_gradient`] lays them out. Those of the tied token
/// embedding alone are [`tied_gradient_bytes`].
pub fn stage_gradient_bytes(anatomy: &Anatomy, stage: &Stage) -> usize {
    anatomy.gradient_elements(stage, padded) * size_of::<f32>()
}

/// Bytes of the gradient of the tied token embedding.
pub fn tied_gradient_bytes(anatomy: &Anatomy) -> usize {
    anatomy.tied_elements(padded) * size_of::<f32>()
}

/// Whether the GPU has so much free memory; an error has the numbers.
pub(super) fn check(gpu: &Gpu, anatomy: &Anatomy, stages: &[(u32, Stage)], demand: &Demand) -> Result<()> {
    let bytes = bytes_needed(anatomy, stages, demand);
    let (free, total) = gpu.memory()?;
    ensure!(
        bytes.total() <= free,
        Unfit(format!(
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
        ))
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2s_parameters_take_18_bytes_each_in_bfloat16() {
        let anatomy = crate::anatomy::gpt2::Config::preset("gpt2").unwrap().anatomy();
        let whole = Stage::transformer(true, 0..12, true);
        let demand = Demand { sequences: 4, tokens: 1024, microbatches: 1, in_flight: 1, precision: Precision::Bf16 };
        let bytes = bytes_needed(&anatomy, &[(0, whole)], &demand);
        // 124,475,904 parameters, all tensors multiples of 128 elements; the tied gradient's second part, 50304 * 768
        assert_eq!(bytes.parameters, 18 * 124_475_904 + 4 * 50304 * 768);
        // 32 bytes a channel and token a block
        assert!(
            bytes.activations > 12 * 32 * 768 * 4096 && bytes.activations < 13 * 36 * 768 * 4096 + 2 * 4096 * 50304
        );
    }
}
