//! The settings of a question.

use super::memory_cap::MemoryCap;
use super::objective::{Objective, Risk};
use super::text;
use pipesim_cost::{Decimal, Per};
use pipesim_language::Budget;
use pipesim_models::hardware::STACKS;
use pipesim_models::layout::{Attention, CudaGraph, Dispatcher, Precision, Recompute, Routing, Zero};
use pipesim_models::model_spec::StageSplit;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::fsdp::Lookahead;
use pipesim_schedule::schedule::Overlap;
use pipesim_sim::event::{Scope, Sharing};
use serde::{Deserialize, Serialize};

/// Version of a question's file.
pub const VERSION: u32 = 1;

/// What is asked. Each field is a setting, called as the option of the command line, and a key of its file; lists ask for every combination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Question {
    /// Version of the file, [`VERSION`].
    pub version: u32,
    /// Names or paths of schedules, with or without options (`interleaved-1f1b:v=4`); empty: the default ones.
    #[serde(deserialize_with = "text::list")]
    pub schedule: Vec<String>,
    /// Numbers of devices, p.
    #[serde(deserialize_with = "text::list")]
    pub stages: Vec<u32>,
    /// Numbers of micro-batches, m; may be empty with `batch`.
    #[serde(deserialize_with = "text::list")]
    pub micro: Vec<u32>,
    /// Takes only this one of the schedules, counted from 1.
    pub only: Option<u32>,
    /// Stages per device, v.
    pub chunks: Option<u32>,
    /// Options of every schedule that has them: `group=4`.
    #[serde(deserialize_with = "text::list")]
    pub set: Vec<String>,
    /// Lengths of the slices of a sequence, in any unit; empty: equal ones.
    #[serde(deserialize_with = "text::list")]
    pub slice_lengths: Vec<u32>,
    /// How an overlapped pair of a forward and a backward runs.
    pub overlap: Overlap,
    /// Maximum calls and loop iterations when a schedule file is evaluated.
    pub max_ticks: Option<u64>,
    /// Maximum number of ops of a schedule.
    pub max_ops: u64,
    /// Memory limit per device.
    #[serde(with = "text::optional")]
    pub memory_cap: Option<MemoryCap>,
    /// Search effort multiplier.
    pub effort: Option<u32>,
    /// Costs per device, as in `F=1,I=1,W=1`, or a file of stage times.
    pub costs: Option<String>,
    /// What `costs` are given for.
    pub costs_per: Option<Per>,
    /// Path of a cost file.
    pub profile: Option<String>,
    /// Factors by which devices are slower: `2=1.3`.
    #[serde(deserialize_with = "text::list")]
    pub straggler: Vec<String>,
    /// Factors by which links of a model on hardware have less bandwidth: `1-2=4`, or `1=4` for all of a device.
    #[serde(deserialize_with = "text::list")]
    pub slow_link: Vec<String>,
    /// Layers of each stage, or of the whole model; empty: not given.
    #[serde(deserialize_with = "text::list")]
    pub layers: Vec<usize>,
    /// What each stage holds.
    #[serde(with = "text::optional")]
    pub layout: Option<StageSplit>,
    /// Whether to split the layers for the shortest iteration, or makespan without hardware.
    pub balance: bool,
    /// Name or file of a model.
    pub model: Option<String>,
    /// Name or file of hardware; the model's costs then follow from both.
    pub hardware: Option<String>,
    /// Name or file of training software.
    pub stack: String,
    /// Version of the stack's framework; `None`: the newest.
    pub framework_version: Option<String>,
    /// Tensor-parallel degrees.
    #[serde(deserialize_with = "text::list")]
    pub tp: Vec<u32>,
    /// Data-parallel degrees.
    #[serde(deserialize_with = "text::list")]
    pub dp: Vec<u32>,
    /// Context-parallel degree.
    pub cp: u32,
    /// Sequences per step, over all pipelines.
    pub batch: Option<u32>,
    /// Sequences per micro-batch; empty: derived.
    #[serde(deserialize_with = "text::list")]
    pub micro_batch_size: Vec<u32>,
    /// Tokens per sequence.
    pub seq: u32,
    /// Lengths of the texts that are packed to a sequence; empty: one text per sequence.
    #[serde(deserialize_with = "text::list")]
    pub packed: Vec<u32>,
    /// Adapters that are trained instead of the weights.
    #[serde(with = "text::optional")]
    pub lora: Option<String>,
    /// Precision of matrix products.
    #[serde(with = "text")]
    pub precision: Precision,
    /// Activations that the backward recomputes.
    #[serde(with = "text")]
    pub recompute: Recompute,
    /// ZeRO stage.
    #[serde(with = "text")]
    pub zero: Zero,
    /// Replicas that share what `zero` shards; `None`: all.
    pub shard: Option<u32>,
    /// Share of the optimizer's states in the host's memory.
    pub optimizer_offload: f64,
    /// Whether the host updates while it copies.
    pub overlap_optimizer_offload: bool,
    /// Whether tensor-parallel ranks also shard activations between matrix products.
    pub sequence_parallel: bool,
    /// Attention kernel; `None`: the stack's.
    #[serde(with = "text::optional")]
    pub attention: Option<Attention>,
    /// Expert-parallel degree.
    pub ep: u32,
    /// Expert-tensor-parallel degree; `None`: the stack's default.
    pub etp: Option<u32>,
    /// How tokens get to their experts.
    #[serde(with = "text")]
    pub dispatcher: Dispatcher,
    /// How tokens are spread over experts.
    #[serde(with = "text")]
    pub routing: Routing,
    /// What is launched as CUDA graphs.
    #[serde(with = "text")]
    pub cuda_graph: CudaGraph,
    /// Whether to hide the communication of experts behind another micro-batch.
    pub moe_overlap: bool,
    /// Whether weight gradients are computed apart for `moe_overlap`.
    pub delay_wgrad: bool,
    /// Separate passes through the pipeline per step.
    pub rounds: u32,
    /// Maximum stages of a device that FSDP gathers at the same time; `None`: no collectives between ops.
    pub max_active_stages: Option<u32>,
    /// Number of next stages to gather before an op.
    #[serde(with = "text::optional")]
    pub unshard_lookahead: Option<Lookahead>,
    /// Whether to wait for a reduction of gradients only before the next one.
    pub defer_reduce_grad_wait: bool,
    /// When a send completes and what it blocks; `None`: one-sided.
    #[serde(with = "text::optional")]
    pub delivery: Option<Delivery>,
    /// Time for which a message occupies its link, in the costs' unit.
    #[serde(with = "text::optional")]
    pub transfer: Option<Decimal>,
    /// How messages share a link.
    pub sharing: Option<Sharing>,
    /// Which messages share a link.
    pub link_scope: Scope,
    /// Factors on `transfer` while 1, 2, .. messages share a link.
    #[serde(deserialize_with = "text::list")]
    pub link_contention: Vec<f64>,
    /// Buffer slots per channel at the receiver.
    pub slots: Option<u32>,
    /// Cores that all devices share.
    pub cores: Option<u32>,
    /// Factors on op durations while 1, 2, .. cores compute.
    #[serde(deserialize_with = "text::list")]
    pub contention: Vec<f64>,
    /// Factor on op durations while a message leaves or reaches their device.
    pub overlap_slowdown: Option<f64>,
    /// Neighbouring devices that share a link to the host.
    pub host_link_devices: Option<u32>,
    /// Relative standard deviation of op durations.
    pub jitter: Option<f64>,
    /// Random steps for `jitter`.
    pub samples: u32,
    /// Random seed for `jitter`.
    pub jitter_seed: u64,
    /// Numbers of GPUs, for all their layouts.
    #[serde(deserialize_with = "text::list")]
    pub gpus: Vec<u32>,
    /// Values to which layouts are restricted: `tp=8,pp=4`.
    #[serde(deserialize_with = "text::list")]
    pub fix: Vec<String>,
    /// What makes a layout the best.
    pub objective: Objective,
    /// How far the search trusts predictions.
    pub risk: Risk,
    /// Maximum number of layouts in the answer.
    pub top: u32,
    /// Tokens to train on, whose time is asked.
    pub tokens: Option<u64>,
    /// Days in which `tokens` have to be trained on.
    pub days: Option<f64>,
}

/// One device, the default schedules, unit costs.
impl Default for Question {
    fn default() -> Question {
        Question {
            version: VERSION,
            schedule: Vec::new(),
            stages: vec![1],
            micro: Vec::new(),
            only: None,
            chunks: None,
            set: Vec::new(),
            slice_lengths: Vec::new(),
            overlap: Overlap::default(),
            max_ticks: None,
            max_ops: Budget::default().ops,
            memory_cap: None,
            effort: None,
            costs: None,
            costs_per: None,
            profile: None,
            straggler: Vec::new(),
            slow_link: Vec::new(),
            layers: Vec::new(),
            layout: None,
            balance: false,
            model: None,
            hardware: None,
            stack: STACKS[0].to_string(),
            framework_version: None,
            tp: vec![1],
            dp: vec![1],
            cp: 1,
            batch: None,
            micro_batch_size: Vec::new(),
            seq: 1024,
            packed: Vec::new(),
            lora: None,
            precision: Precision::Bf16,
            recompute: Recompute::None,
            zero: Zero::None,
            shard: None,
            optimizer_offload: 0.0,
            overlap_optimizer_offload: false,
            sequence_parallel: false,
            attention: None,
            ep: 1,
            etp: None,
            dispatcher: Dispatcher::AllToAll,
            routing: Routing::Balanced,
            cuda_graph: CudaGraph::None,
            moe_overlap: false,
            delay_wgrad: false,
            rounds: 1,
            max_active_stages: None,
            unshard_lookahead: None,
            defer_reduce_grad_wait: false,
            delivery: None,
            transfer: None,
            sharing: None,
            link_scope: Scope::default(),
            link_contention: Vec::new(),
            slots: None,
            cores: None,
            contention: Vec::new(),
            overlap_slowdown: None,
            host_link_devices: None,
            jitter: None,
            samples: 1000,
            jitter_seed: 0,
            gpus: Vec::new(),
            fix: Vec::new(),
            objective: Objective::Time,
            risk: Risk::Usual,
            top: 10,
            tokens: None,
            days: None,
        }
    }
}
