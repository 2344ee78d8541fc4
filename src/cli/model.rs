//! Options that say what is trained, on which data, and how.

use super::choice::one_of;
use super::numbers::{real, whole};
use crate::exec::Fault;
use crate::experiment::Recipe;
use crate::model::{AdamW, Tokenizer};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

type TokenizerChoice = Option<Tokenizer>;
const TOKENIZERS: [(&str, &str, TokenizerChoice); 3] = [
    ("auto", "GPT-2's where the model's vocabulary is GPT-2's, else bytes", None),
    ("bytes", "A byte is a token", Some(Tokenizer::Bytes)),
    ("gpt2", "GPT-2's byte pair encoding", Some(Tokenizer::Gpt2)),
];

/// Model, data and optimizer.
#[derive(Args, Clone, Debug)]
pub struct ModelOptions {
    /// Sizes by name: tiny, small, base, gpt2, gpt2-medium, gpt2-large, gpt2-xl; initialised at random
    #[arg(long, default_value = "tiny", value_name = "NAME")]
    pub model: String,
    /// Start from llm.c's checkpoint, float32 or bfloat16, instead
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Number of transformer blocks, instead of the model's
    #[arg(long, value_name = "L", value_parser = whole::<usize>(..))]
    pub blocks: Option<usize>,
    /// Number of attention heads, instead of the model's
    #[arg(long, value_name = "NH", value_parser = whole::<usize>(..))]
    pub heads: Option<usize>,
    /// Width of the hidden state, instead of the model's
    #[arg(long, value_name = "C", value_parser = whole::<usize>(..))]
    pub channels: Option<usize>,
    /// Number of token ids, instead of the model's
    #[arg(long, value_name = "V", value_parser = whole::<usize>(..))]
    pub vocabulary: Option<usize>,
    /// Longest sequence with position embeddings, instead of the model's
    #[arg(long, value_name = "T", value_parser = whole::<usize>(..))]
    pub max_sequence: Option<usize>,
    /// llm.c's token file, or any text file [default: a text that comes with the program]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// How a text file becomes tokens
    #[arg(long, value_parser = one_of(TOKENIZERS), default_value = "auto")]
    pub tokenizer: TokenizerChoice,
    /// Sequences a step, split into the micro-batches [default: one a micro-batch]
    #[arg(long, value_name = "B", alias = "global-batch-size", value_parser = whole::<u32>(1..1 << 24))]
    pub batch: Option<u32>,
    /// Tokens a sequence [default: 32, or the model's longest]
    #[arg(long, value_name = "T", aliases = ["seq-length", "seq-len", "sequence-length"], value_parser = whole::<u32>(1..1 << 24))]
    pub seq: Option<u32>,
    /// Learning rate
    #[arg(long, default_value_t = 3e-4, value_parser = not_negative)]
    pub lr: f32,
    /// Decay of the first moment
    #[arg(long, default_value_t = 0.9, value_parser = below_one)]
    pub beta1: f32,
    /// Decay of the second moment
    #[arg(long, default_value_t = 0.999, value_parser = below_one)]
    pub beta2: f32,
    /// Added to the root of the second moment
    #[arg(long, default_value_t = 1e-8, value_parser = not_negative)]
    pub eps: f32,
    /// Decoupled weight decay
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub weight_decay: f32,
    /// Largest gradient norm [default: none]
    #[arg(long, value_name = "NORM", value_parser = positive)]
    pub clip: Option<f32>,
    /// Seed of the random initialisation
    #[arg(long, default_value_t = 42, value_parser = whole::<u64>(..))]
    pub seed: u64,
    /// The same batch every step
    #[arg(long)]
    pub repeat_batch: bool,
    /// Longest wait for anything: a device's for its data, a rank's for another's answer, in seconds [default: 30; in a step 20 expected steps, if that is more]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub timeout: Option<f32>,
    /// For tests of what happens then: die@DEVICE:NUMBER or hang@DEVICE:NUMBER
    #[arg(long, hide = true, value_parser = clap::value_parser!(Fault))]
    pub inject: Option<Fault>,
}

fn not_negative(text: &str) -> Result<f32, String> {
    real::<f32>(text).and_then(|v| if v >= 0.0 { Ok(v) } else { Err(format!("expected 0 or more, found {v}")) })
}

fn positive(text: &str) -> Result<f32, String> {
    real::<f32>(text).and_then(|v| if v > 0.0 { Ok(v) } else { Err(format!("expected more than 0, found {v}")) })
}

fn below_one(text: &str) -> Result<f32, String> {
    not_negative(text).and_then(|v| if v < 1.0 { Ok(v) } else { Err(format!("expected less than 1, found {v}")) })
}

impl ModelOptions {
    /// What these options describe.
    pub fn recipe(&self) -> Recipe {
        Recipe {
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
