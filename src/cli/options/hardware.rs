//! Options for a model on hardware under a parallel layout.

use super::mixture::MixtureOptions;
use super::values::{Numbers, RecomputeParser, name_or_toml, numbers, one_of, whole};
use clap::{ArgAction, Args};
use pipesim_answer::question::Question;
use pipesim_models::hardware::STACKS;
use pipesim_models::layout::{Attention, Precision, Recompute, Zero};

/// Largest parallel degree and number of sequences or tokens.
const MOST: u64 = 1 << 27;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "A model on hardware")]
pub struct HardwareOptions {
    /// Model: a name (llama-3-70b, deepseek-v3, gpt2-xl, ...), a Hugging Face config.json or a shape file
    #[arg(long, value_name = "NAME|FILE")]
    pub model: Option<String>,
    /// Hardware: a name (h100-sxm, gb200, ...) or a .toml file; of several kinds, each with its number of successive pipeline devices: h100-sxm:4,a100-sxm-80gb:4
    #[arg(long, value_name = "NAME|FILE", requires = "model", conflicts_with_all = ["costs", "costs_per", "profile"])]
    pub hardware: Option<String>,
    /// Tensor-parallel size: GPUs that share each layer
    #[arg(long, value_name = "T", default_value = "1", aliases = ["tensor-model-parallel-size", "tensor-parallel-size", "tensor-parallel-degree"], value_parser = numbers(1..=MOST as u32))]
    pub tp: Numbers,
    /// Data-parallel size: pipelines that share the batch
    #[arg(long, value_name = "D", default_value = "1", visible_alias = "data-parallel-size", alias = "data-parallel-degree", value_parser = numbers(1..=MOST as u32))]
    pub dp: Numbers,
    /// Context-parallel size: GPUs that share each sequence
    #[arg(long, value_name = "C", default_value_t = 1, aliases = ["context-parallel-size", "context-parallel-degree"], value_parser = whole::<u32>(1..=MOST))]
    pub cp: u32,
    /// Global batch size: sequences per step over all pipelines; replaces --micro
    #[arg(long, value_name = "N", aliases = ["global-batch-size", "gbs"], value_parser = whole::<u32>(1..=MOST))]
    pub batch: Option<u32>,
    /// Sequences per micro-batch [default: 1, or the quotient of --batch and --micro; with --profile, the first measured size]
    #[arg(long, value_name = "B", alias = "mbs", value_parser = numbers(1..=MOST as u32))]
    pub micro_batch_size: Option<Numbers>,
    /// Tokens per sequence
    #[arg(long, value_name = "S", default_value_t = 1024, aliases = ["seq-length", "seq-len", "sequence-length"], value_parser = whole::<u32>(1..=MOST))]
    pub seq: u32,
    /// Lengths of the texts that are packed to a sequence of --seq tokens, as often as listed: 1024, or 256,256,4096; attention stays within a text
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = whole::<u32>(1..=MOST))]
    pub packed: Vec<u32>,
    /// Train adapters of this rank instead of the weights: 16, on Megatron's linear_qkv, linear_proj, linear_fc1 and linear_fc2, or with targets, as in 16:q_proj,v_proj or 16:all-linear
    #[arg(long, value_name = "RANK[:TARGETS]")]
    pub lora: Option<String>,
    /// Precision of matrix products
    #[arg(long = "precision", value_name = "PRECISION", default_value = "bf16", value_parser = one_of(Precision::ALL.iter().map(|&p| (spellings(p), "", p))))]
    pub compute_precision: Precision,
    /// Activations that the backward recomputes: none, selective, full, layers of each stage as in block:5, uniform:2 or every:2, or parts, as in moe_act,layernorm
    #[arg(long, value_name = "WHAT", default_value = "none", value_parser = RecomputeParser)]
    pub recompute: Recompute,
    /// ZeRO stage, what data-parallel ranks shard: 1 optimizer state, 2 also gradients, 3 also weights
    #[arg(long, value_name = "STAGE", default_value = "0", value_parser = one_of(Zero::ALL.iter().map(|&z| (z.name(), "", z))))]
    pub zero: Zero,
    /// Replicas, of dp x cp, that share what --zero shards; groups of them hold the same (hybrid sharding) [default: all]
    #[arg(long, value_name = "S", alias = "mics-shard-size", value_parser = whole::<u32>(1..=MOST))]
    pub shard: Option<u32>,
    /// Share of the optimizer's states that the host keeps and updates, 0 to 1 [without a value: 1]
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "1", action = ArgAction::Append, aliases = ["optimizer-cpu-offload", "optimizer-offload-fraction"], value_parser = offloaded)]
    pub optimizer_offload: Vec<f64>,
    /// Copy gradients and weights while the host updates others
    #[arg(long, alias = "overlap-cpu-optimizer-d2h-h2d")]
    pub overlap_optimizer_offload: bool,
    /// Sequence parallelism: tensor-parallel ranks also shard the activations between matrix products
    #[arg(long, alias = "sp")]
    pub sequence_parallel: bool,
    /// Attention kernel [default: the stack's]
    #[arg(long, value_name = "HOW", value_parser = one_of(Attention::ALL.iter().map(|&a| (a.name(), "", a))))]
    pub attention: Option<Attention>,
    /// Training software, or a .toml file
    #[arg(long, value_name = "NAME|FILE", default_value = STACKS[0], value_parser = name_or_toml(&STACKS))]
    pub stack: String,
    /// Version of the framework that the stack runs [default: the newest that is known]
    #[arg(long, value_name = "VERSION", requires = "hardware")]
    pub framework_version: Option<String>,
    /// Divide the bandwidth of a link by a factor: 1-2=4 between pipeline devices 1 and 2, 1=4 all links of device 1; repeatable
    #[arg(long, value_name = "LINK=FACTOR")]
    pub slow_link: Vec<String>,
    #[command(flatten)]
    pub mixture: MixtureOptions,
}

/// Parses a share that may be nothing or all.
fn offloaded(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("expected a share from 0 to 1, as 0.5, found '{text}'"))
}

/// Returns a precision's name and its long forms, separated by `|`.
pub fn spellings(precision: Precision) -> &'static str {
    match precision {
        Precision::Bf16 => "bf16|bfloat16",
        Precision::Fp16 => "fp16|float16|half",
        Precision::Fp32 => "fp32|float32|f32",
        other => other.name(),
    }
}

impl HardwareOptions {
    /// Adds these options to a question.
    pub fn ask(&self, question: &mut Question) {
        question.model.clone_from(&self.model);
        question.hardware.clone_from(&self.hardware);
        question.slow_link.clone_from(&self.slow_link);
        question.stack.clone_from(&self.stack);
        question.framework_version.clone_from(&self.framework_version);
        question.tp = self.tp.all().to_vec();
        question.dp = self.dp.all().to_vec();
        question.cp = self.cp;
        question.batch = self.batch;
        question.micro_batch_size = self.micro_batch_size.as_ref().map_or_else(Vec::new, |sizes| sizes.all().to_vec());
        question.seq = self.seq;
        question.packed.clone_from(&self.packed);
        question.lora.clone_from(&self.lora);
        question.precision = self.compute_precision;
        question.recompute = self.recompute;
        question.zero = self.zero;
        question.shard = self.shard;
        // Megatron's switch and its fraction are both written
        question.optimizer_offload = self.optimizer_offload.iter().copied().reduce(f64::min).unwrap_or(0.0);
        question.overlap_optimizer_offload = self.overlap_optimizer_offload;
        question.sequence_parallel = self.sequence_parallel;
        question.attention = self.attention;
        self.mixture.ask(question);
    }
}
