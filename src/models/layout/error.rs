//! Why a layout is invalid.

use crate::model_spec::LayoutError;
use crate::model_spec::transformer::TensorRanksError;

/// Why a layout is invalid, by itself or for a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each text names its fields
pub enum ParallelConfigError {
    #[error("expected {expected}, found {found}")]
    Name { expected: String, found: String },
    #[error("expected `{setting}` between 1 and {most}, found {found}; correct it")]
    Range { setting: &'static str, most: u32, found: u32 },
    #[error("expected at most {most} GPUs, found {found}; choose a smaller layout")]
    Gpus { most: u64, found: u64 },
    #[error(
        "expected at most {most} stages for {layers} layers, embedding and head, found {found}; choose fewer stages or chunks"
    )]
    Stages { most: usize, layers: usize, found: usize },
    #[error(
        "expected `batch` to be a multiple of {data} pipelines times {what} {by}, found {found}; choose {near}another {what}"
    )]
    Batch { data: u32, what: &'static str, by: u32, found: u64, near: String },
    #[error(
        "expected `batch` to be {data} pipelines times {micro} micro-batches of {size} = {needed}, found {found}; leave `micro` out"
    )]
    BatchOfThree { data: u32, micro: u32, size: u32, needed: u128, found: u32 },
    #[error("expected `sequence` to be a multiple of `cp` {cp}, found {found}; choose another `cp`")]
    ContextRanks { cp: u32, found: u32 },
    #[error(
        "expected `sequence` to be at most {most}, the positions that the model has learned, found {found}; choose a shorter one"
    )]
    Positions { most: usize, found: usize },
    #[error("expected lengths in `packed` between 1 and the {most} tokens of `seq`, found {found}; correct it")]
    Packed { most: u32, found: u32 },
    #[error(
        "`lora`: adapters of experts and of latent attention are not modelled; take a dense model, or leave it out"
    )]
    Lora,
    #[error(transparent)]
    TensorRanks(#[from] TensorRanksError),
    #[error("expected the {what} to be a multiple of `{setting}`, found {found}; choose another `{setting}`")]
    ExpertRanks { what: String, setting: &'static str, found: u32 },
    #[error(
        "expected `ep` {ep} times `etp` {etp} to divide the {gpus} GPUs of a pipeline stage (tp {tp} · cp {cp} · dp {dp}), since experts \
         are folded onto them (ep · etp · edp); choose another `ep`, `etp` or `dp`"
    )]
    Folding { ep: u32, etp: u32, gpus: u64, tp: u32, cp: u32, dp: u32 },
    #[error("expected a mixture of experts for `{setting}`, found a dense model; leave it out")]
    Dense { setting: &'static str },
    #[error("expected parts of the model in `recompute`, found {part}, which it does not have; leave that out")]
    NoSuchPart { part: &'static str },
    #[error("expected `sequence-parallel` with `tp` {tp} and experts, which route each token once; add it")]
    SequenceParallel { tp: u32 },
    #[error("expected `moe-overlap` with `delay-wgrad`, which moves weight gradients for it; add it or leave both out")]
    DelayWgrad,
    #[error("expected {expected} with `moe-overlap`, {why}; leave it out")]
    Overlap { expected: &'static str, why: &'static str },
    #[error("`max-active-stages` gathers the weights that `zero` 3 shards, found `zero` {found}; give `zero` 3, too")]
    Fsdp { found: &'static str },
    #[error(
        "`shard` is the number of replicas that share what `zero` shards, found `zero` 0; give `zero` 1, 2 or 3, too"
    )]
    ShardWithoutZero,
    #[error("expected `shard` to divide the {all} replicas (dp · cp), found {found}; choose another `shard`")]
    Shard { all: u64, found: u32 },
    #[error(
        "expected the {edp} replicas of an expert in as many groups as there are of `shard` {found}, {groups}; choose another `shard` or `ep`"
    )]
    ShardOfExperts { edp: u64, groups: u64, found: u32 },
    #[error(
        "expected `optimizer-offload` between 0 and 1, a share of the optimizer's states, found {found}; correct it"
    )]
    Offload { found: String },
    #[error(
        "`overlap-optimizer-offload` is about states that `optimizer-offload` moves to the host, found 0; give that, too"
    )]
    OffloadOverlap,
    #[error("`layout`: {0}")]
    StageLayout(#[from] LayoutError),
    #[error("`layout` and `layers` both say which stage has which layers; leave `layers` out")]
    LayoutAndLayers,
    #[error("`layout` has {chunks} stages per device, found `chunks` {found}; leave that out")]
    LayoutChunks { chunks: u32, found: u32 },
}
