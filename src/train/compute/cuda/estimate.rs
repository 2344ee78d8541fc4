//! Checks that a GPU can hold its part of a model, before memory is allocated: sizes, alignment, memory.

use super::group::{padded, row_length};
use anyhow::{Result, ensure};
use pipesim_gpu::Gpu;
use pipesim_gpu::api::{Address, Unsupported, mib};
use pipesim_gpu::blas::WORKSPACE_BYTES;
use pipesim_gpu::kernel::{self, MAX_HEAD_SIZE, Precision};
use pipesim_models::model_spec::gpt2::VOCABULARY_MULTIPLE;
use pipesim_models::model_spec::transformer::Config;
use pipesim_models::model_spec::{MicroBatch, ModelSpec, Part, Stage, Storage, Tensor, TiedSides};
use pipesim_schedule::op::Kind;

/// Workload of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Sequences per micro-batch, B.
    pub sequences: usize,
    /// Tokens per sequence, T.
    pub tokens: usize,
    /// Micro-batches per step.
    pub microbatches: usize,
    /// Micro-batches that each stage keeps between forward and backward at once.
    pub in_flight: usize,
    /// Type of the activations.
    pub precision: Precision,
    pub sharing: Sharing,
    /// Most temporary bytes of attention by cuDNN.
    pub attention_workspace: usize,
}

/// Numbers of devices that share what a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Tensor-parallel ranks that share every layer.
    pub ranks: usize,
    /// Those of them that share the rows between products: all or 1.
    pub row_ranks: usize,
    /// Devices that share the optimizer's work on the same parameters.
    pub optimizers: usize,
}

impl Sharing {
    /// A device that shares nothing.
    pub const NONE: Sharing = Sharing { ranks: 1, row_ranks: 1, optimizers: 1 };
}

/// Memory of a device by purpose, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Parameters, gradients, AdamW's moments.
    pub parameters: usize,
    /// Activations kept for backward passes.
    pub activations: usize,
    /// Temporary memory of ops and products.
    pub scratch: usize,
}

impl Bytes {
    pub fn total(&self) -> usize {
        self.parameters + self.activations + self.scratch
    }
}

/// Returns the device memory that these stages need, without code and the driver's own memory.
pub fn bytes_needed(spec: &ModelSpec, stages: &[(u32, Stage)], demand: &Demand) -> Bytes {
    let micro = MicroBatch { sequences: demand.sequences, tokens: demand.tokens };
    let (n, act) = (micro.rows(), demand.precision.bytes());
    let held = || stages.iter().map(|(_, stage)| stage);
    let parameters = parameter_bytes(spec, held(), demand.precision, demand.sharing);
    let storage = storage(demand.precision, n, demand.sharing);
    let empty = MicroBatch { sequences: 0, ..micro };
    // I adds sums, independent of the number of tokens, to what F keeps.
    let kept = |stage| spec.left(stage, Kind::F, micro, &storage) + spec.left(stage, Kind::I, empty, &storage);
    let activations = demand.in_flight * held().map(kept).sum::<u64>() as usize;
    let bias_sums = size_of::<f32>() * kernel::bias_groups(n) * spec.widest();
    let running = n * (3 * spec.widest() * act + size_of::<f32>() * (spec.heads() + 1)) + bias_sums;
    let tokens = 4 * demand.microbatches * (5 * n + 2);
    Bytes { parameters, activations, scratch: running + tokens + WORKSPACE_BYTES + demand.attention_workspace }
}

/// Returns the bytes of the parameters, gradients and moments of `stages` on the rank that holds most, the first.
pub fn parameter_bytes<'a>(
    spec: &ModelSpec,
    stages: impl Iterator<Item = &'a Stage> + Clone,
    precision: Precision,
    sharing: Sharing,
) -> usize {
    let tied = spec.outline().tied_sides(stages.clone());
    let mut elements = stages.map(|stage| gradient_elements(spec, stage, sharing)).sum::<usize>();
    if tied == TiedSides::Both {
        elements -= tied_elements(spec, sharing); // stored once
    }
    let copy = if precision == Precision::Bf16 { precision.bytes() } else { 0 };
    let sides = if tied == TiedSides::None { 0 } else { tied_gradient_bytes(spec, sharing) };
    // Master values, gradients, two moments.
    elements * (2 * size_of::<f32>() + copy) + elements / sharing.optimizers * 2 * size_of::<f32>() + sides
}

/// Returns how a GPU stores activations of micro-batches of `rows` tokens. Token ids are stored with the step's batch.
pub fn storage(precision: Precision, rows: usize, sharing: Sharing) -> Storage {
    let Sharing { ranks: tp, row_ranks: sp, .. } = sharing;
    let partial_sums = kernel::norm_groups(rows / sp);
    Storage { tp, sp, ..Storage::whole(0, precision.bytes(), VOCABULARY_MULTIPLE, partial_sums) }
}

/// Elements of a group of tensors on the rank that holds most, the first.
fn group_elements<'a>(tensors: impl Iterator<Item = &'a Tensor>, sharing: Sharing) -> usize {
    row_length(tensors.map(|tensor| padded(tensor.share_elements(sharing.ranks))).sum(), sharing.optimizers)
}

/// Elements of a stage's gradients on that rank.
fn gradient_elements(spec: &ModelSpec, stage: &Stage, sharing: Sharing) -> usize {
    let of = |part: &Part| part.groups.iter().map(|group| group_elements(group.iter(), sharing)).sum::<usize>();
    spec.held(stage).map(|(part, count)| count * of(part)).sum()
}

/// Elements of the tied tensor on that rank.
fn tied_elements(spec: &ModelSpec, sharing: Sharing) -> usize {
    let tied = spec.parts.iter().flat_map(Part::tensors).filter(|tensor| tensor.tied.is_some());
    group_elements(tied, sharing)
}

/// Bytes of the gradients of one stage's parameters, as they are exchanged, on that rank.
pub fn stage_gradient_bytes(spec: &ModelSpec, stage: &Stage, sharing: Sharing) -> usize {
    gradient_elements(spec, stage, sharing) * size_of::<f32>()
}

/// Bytes of the gradient of the tied token embedding, on that rank.
pub fn tied_gradient_bytes(spec: &ModelSpec, sharing: Sharing) -> usize {
    tied_elements(spec, sharing) * size_of::<f32>()
}

/// Checks that the GPU has enough free memory.
pub fn check_memory(gpu: &Gpu, spec: &ModelSpec, stages: &[(u32, Stage)], demand: &Demand) -> Result<()> {
    let bytes = bytes_needed(spec, stages, demand);
    let (free, total) = gpu.memory()?;
    ensure!(
        bytes.total() <= free,
        Unsupported(format!(
            "expected {} MiB of free memory on GPU {} ({} for parameters, gradients and moments, {} for the activations of {} \
             micro-batch, {} for temporary data), found {} of {} MiB (every schedule, including the calibrating one, keeps its own \
             model): choose fewer schedules, more stages, smaller micro-batches, or bfloat16",
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

/// Alignment of the addresses of hidden states, in bytes.
pub const HIDDEN_ALIGNMENT: u64 = 256;

/// Checks that an address is aligned.
pub(super) fn check_address(address: Address, what: &str) -> Result<()> {
    ensure!(
        address.0.is_multiple_of(HIDDEN_ALIGNMENT),
        "expected {what} at a multiple of {HIDDEN_ALIGNMENT}, found it at {:#x}: align it",
        address.0
    );
    Ok(())
}

/// Checks that the kernels support these sizes.
pub fn check_kernel_sizes(config: &Config, [sequences, tokens]: [usize; 2]) -> Result<()> {
    ensure!(
        config.head_size <= MAX_HEAD_SIZE,
        Unsupported(format!(
            "expected heads of at most {MAX_HEAD_SIZE} channels on a GPU, found {}: choose more heads",
            config.head_size
        ))
    );
    let most = i32::MAX as usize;
    let fits =
        sequences.checked_mul(tokens).is_some_and(|rows| rows <= most) && 4 * config.channels.max(config.mlp) <= most;
    ensure!(
        fits,
        Unsupported(format!(
            "expected fewer than 2^31 tokens and 2^29 channels, found {sequences} sequences of {tokens} tokens and {} channels: \
             choose smaller micro-batches",
            config.channels
        ))
    );
    Ok(())
}
