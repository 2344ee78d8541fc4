//! Options that describe a training: model, data and optimizer.

use super::values::{one_of, real, whole};
use clap::Args;
use pipesim_exec::Fault;
use pipesim_measure::experiment::TrainingConfig;
use pipesim_models::layout::Zero;
use pipesim_schedule::mesh::Mesh;
use pipesim_train::model::{AdamW, Tokenizer};
use std::path::PathBuf;
use std::time::Duration;

pub type TokenizerChoice = Option<Tokenizer>;
pub const TOKENIZERS: [(&str, &str, TokenizerChoice); 3] = [
    ("auto", "gpt2 if the model has GPT-2's vocabulary, else bytes", None),
    ("bytes", "One token per byte", Some(Tokenizer::Bytes)),
    ("gpt2", "GPT-2's byte pair encoding", Some(Tokenizer::Gpt2)),
];

#[derive(Args, Clone, Debug)]
pub struct TrainingOptions {
    /// Model by name (tiny, small, base, gpt2 to gpt2-xl, llama-3.2-1b, ..) or config.json, initialised at random; or a Hugging Face folder with weights
    #[arg(long, default_value = "tiny", value_name = "NAME|PATH")]
    pub model: String,
    /// llm.c checkpoint (float32 or bfloat16) to start from, instead of --model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "blocks", "heads", "channels", "vocabulary", "max_sequence", "seed"])]
    pub checkpoint: Option<PathBuf>,
    /// Number of transformer blocks of a model by name [default: the model's]
    #[arg(long, value_name = "L", value_parser = whole::<usize>(..))]
    pub blocks: Option<usize>,
    /// Number of attention heads [default: the model's, or heads of 64 channels if those do not divide --channels]
    #[arg(long, value_name = "NH", value_parser = whole::<usize>(..))]
    pub heads: Option<usize>,
    /// Width of the hidden state [default: the model's]
    #[arg(long, value_name = "C", value_parser = whole::<usize>(..))]
    pub channels: Option<usize>,
    /// Number of token ids [default: the model's]
    #[arg(long, value_name = "V", value_parser = whole::<usize>(..))]
    pub vocabulary: Option<usize>,
    /// Maximum sequence length in tokens: number of position embeddings [default: the model's]
    #[arg(long, value_name = "T", value_parser = whole::<usize>(..))]
    pub max_sequence: Option<usize>,
    /// llm.c token file, or any text file [default: a built-in text]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Tokenizer for a text file
    #[arg(long, value_parser = one_of(TOKENIZERS), default_value = "auto")]
    pub tokenizer: TokenizerChoice,
    /// Tensor-parallel ranks per stage
    #[arg(long, value_name = "T", default_value_t = 1, aliases = ["tensor-model-parallel-size", "tensor-parallel-size", "tensor-parallel-degree"], value_parser = whole::<u32>(1..=256))]
    pub tp: u32,
    /// Data-parallel replicas of the pipeline; --micro counts the micro-batches of each
    #[arg(long, value_name = "D", default_value_t = 1, visible_alias = "data-parallel-size", alias = "data-parallel-degree", value_parser = whole::<u32>(1..=256))]
    pub dp: u32,
    /// Sequence parallelism: tensor-parallel ranks also share the activations between matrix products
    #[arg(long, alias = "sp")]
    pub sequence_parallel: bool,
    /// ZeRO stage: 1 shares the optimizer's state and work among workers with the same parameters
    #[arg(long, value_name = "STAGE", default_value = "0", value_parser = one_of([Zero::None, Zero::Optimizer].map(|zero| (zero.name(), "", zero))))]
    pub zero: Zero,
    /// Sequences per step, split into the --micro micro-batches of all replicas [default: one per micro-batch]
    #[arg(long, value_name = "B", aliases = ["global-batch-size", "gbs"], value_parser = whole::<u32>(1..1 << 24))]
    pub batch: Option<u32>,
    /// Tokens per sequence [default: 32, or the model's longest if shorter]
    #[arg(long, value_name = "T", aliases = ["seq-length", "seq-len", "sequence-length"], value_parser = whole::<u32>(1..1 << 24))]
    pub seq: Option<u32>,
    /// Learning rate
    #[arg(long, default_value_t = 3e-4, value_parser = not_negative)]
    pub lr: f32,
    /// AdamW's decay of the first moment
    #[arg(long, default_value_t = 0.9, value_parser = below_one)]
    pub beta1: f32,
    /// AdamW's decay of the second moment
    #[arg(long, default_value_t = 0.999, value_parser = below_one)]
    pub beta2: f32,
    /// AdamW's epsilon
    #[arg(long, default_value_t = 1e-8, value_parser = not_negative)]
    pub eps: f32,
    /// AdamW's decoupled weight decay
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub weight_decay: f32,
    /// Largest gradient norm; larger gradients are scaled down [default: none]
    #[arg(long, value_name = "NORM", value_parser = positive)]
    pub clip: Option<f32>,
    /// Seed of the random initialisation
    #[arg(long, default_value_t = 42, value_parser = whole::<u64>(..))]
    pub seed: u64,
    /// Train on the same batch in every step
    #[arg(long)]
    pub repeat_batch: bool,
    /// Longest time that a device may wait for data, or a rank for the answer of another, in seconds [default: for data 30, or 20 expected steps if that is longer; for an answer 4]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub timeout: Option<f32>,
    /// Inject a fault, for tests: die@DEVICE:NUMBER or hang@DEVICE:NUMBER
    #[arg(long, hide = true, value_parser = clap::value_parser!(Fault))]
    pub inject: Option<Fault>,
}

pub fn not_negative(text: &str) -> Result<f32, String> {
    real::<f32>(text).and_then(|v| if v >= 0.0 { Ok(v) } else { Err(format!("expected 0 or more, found {v}")) })
}

pub fn positive(text: &str) -> Result<f32, String> {
    real::<f32>(text).and_then(|v| if v > 0.0 { Ok(v) } else { Err(format!("expected more than 0, found {v}")) })
}

fn below_one(text: &str) -> Result<f32, String> {
    not_negative(text).and_then(|v| if v < 1.0 { Ok(v) } else { Err(format!("expected less than 1, found {v}")) })
}

impl TrainingOptions {
    pub fn mesh(&self) -> Mesh {
        let zero = self.zero != Zero::None;
        Mesh { sequence_parallel: self.sequence_parallel, zero, ..Mesh::new(self.tp, self.dp) }
    }

    pub fn training_config(&self) -> TrainingConfig {
        TrainingConfig {
            model: self.model.clone(),
            checkpoint: self.checkpoint.clone(),
            blocks: self.blocks,
            heads: self.heads,
            channels: self.channels,
            vocabulary: self.vocabulary,
            max_sequence: self.max_sequence,
            data: self.data.clone(),
            tokenizer: self.tokenizer,
            layers: None,
            mesh: self.mesh(),
            batch: self.batch,
            sequence_tokens: self.seq.map(|tokens| tokens as usize),
            adamw: AdamW {
                learning_rate: self.lr,
                beta1: self.beta1,
                beta2: self.beta2,
                epsilon: self.eps,
                weight_decay: self.weight_decay,
            },
            clip: self.clip,
            seed: self.seed,
            repeat_batch: self.repeat_batch,
            timeout: self.timeout.map(|seconds| Duration::from_secs_f64(f64::from(seconds).min(1e6))),
            fault: self.inject,
        }
    }
}
