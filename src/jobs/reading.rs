//! What a job says about model, layout and batch, in one set of names for all frameworks.

use serde::{Deserialize, Serialize};

/// What a job says, as the framework's own parser reads it, defaults included; `None` where neither the job nor a default says it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// Layers of the model, without those of multi-token prediction.
    pub layers: Option<u32>,
    /// Width of the hidden state.
    pub hidden: Option<u32>,
    /// Attention heads.
    pub heads: Option<u32>,
    /// Key and value heads.
    pub kv_heads: Option<u32>,
    /// Width of the MLP of dense layers.
    pub ffn: Option<u32>,
    /// Experts per layer.
    pub experts: Option<u32>,
    /// Experts per token.
    pub top_k: Option<u32>,
    /// Width of an expert.
    pub moe_ffn: Option<u32>,
    /// Entries of the vocabulary, if the job says them rather than its tokenizer.
    pub vocab: Option<u32>,
    /// Whether MLPs have a gate.
    pub gated: Option<bool>,
    /// Whether the head shares the embedding's weights.
    pub tied: Option<bool>,
    /// Layers of multi-token prediction.
    pub mtp_layers: Option<u32>,
    /// GPUs.
    pub world: Option<u32>,
    /// Tensor-parallel size.
    pub tp: Option<u32>,
    /// Pipeline-parallel size.
    pub pp: Option<u32>,
    /// Context-parallel size.
    pub cp: Option<u32>,
    /// Data-parallel size.
    pub dp: Option<u32>,
    /// Expert-parallel size.
    pub ep: Option<u32>,
    /// Expert-tensor-parallel size; of mixtures alone.
    pub etp: Option<u32>,
    /// Virtual stages per device.
    pub vp: Option<u32>,
    /// Sequences per micro-batch.
    pub micro_batch: Option<u32>,
    /// Sequences per step.
    pub global_batch: Option<u32>,
    /// Micro-batches per pipeline and step.
    pub num_microbatches: Option<u32>,
    /// Tokens per sequence.
    pub seq: Option<u32>,
    /// What is recomputed: `full`, or parts in alphabetical order; `None`: nothing.
    pub recompute: Option<String>,
    /// How layers are chosen: `uniform` or `block`, or `every` k-th.
    pub recompute_method: Option<String>,
    /// Layers per unit (`uniform`), layers that are recomputed (`block`), or k (`every`).
    pub recompute_layers: Option<u32>,
    /// Precision of matrix products: `bf16`, `fp16`, `fp32`, or `fp8-FORMAT-RECIPE`.
    pub precision: Option<String>,
    /// ZeRO stage: 1 is a distributed optimizer, 3 is FSDP.
    pub zero: Option<u32>,
    /// Whether optimizer states are shared as by Megatron's distributed optimizer.
    pub distributed_optimizer: Option<bool>,
    /// Whether sequence parallelism is in effect.
    pub sequence_parallel: Option<bool>,
    /// Megatron's layout string.
    pub layout: Option<String>,
    /// Layers of the first and the last pipeline rank.
    pub first_last_layers: Option<[Option<u32>; 2]>,
    /// Whether embedding and loss count as layers in the split.
    pub account_for: Option<[bool; 2]>,
    /// How tokens get to their experts, in the framework's word.
    pub dispatcher: Option<String>,
    /// torchtitan: GPUs that share weights; -1: all that are left.
    pub dp_shard: Option<i32>,
    /// torchtitan: replicas of the sharded weights.
    pub dp_replicate: Option<u32>,
    /// Name of the schedule, in the framework's word.
    pub schedule: Option<String>,
    /// torchtitan: layers per stage.
    pub layers_per_stage: Option<u32>,
    /// torchtitan: sequences per data-parallel rank and pass.
    pub local_batch: Option<u32>,
    /// torchtitan: converters of the model, such as `float8`.
    pub converters: Option<Vec<String>>,
    /// torchtitan: when FSDP frees weights after the forward.
    pub reshard: Option<String>,
    /// torchtitan: whether layers are compiled.
    pub compile: Option<bool>,
}
