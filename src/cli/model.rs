//! Options that say what is trained, on which data, and how.

use super::Failure;
use crate::exec::Fault;
use crate::experiment::training::{Backend, Training};
use crate::model::{AdamW, Config, Parameters, Tokenizer, Tokens};
use crate::ranks::Ranks;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What even a slow core does in a second, for the watchdog's patience.
const SLOW_CORE_FLOPS: f64 = 1e10;

/// How a text file becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TokenizerChoice {
    /// GPT-2's where the model's vocabulary is GPT-2's, else bytes.
    Auto,
    /// A byte is a token.
    Bytes,
    /// GPT-2's byte pair encoding.
    Gpt2,
}

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
    #[arg(long, value_name = "L")]
    pub blocks: Option<usize>,
    /// Number of attention heads, instead of the model's
    #[arg(long, value_name = "NH")]
    pub heads: Option<usize>,
    /// Width of the hidden state, instead of the model's
    #[arg(long, value_name = "C")]
    pub channels: Option<usize>,
    /// Number of token ids, instead of the model's
    #[arg(long, value_name = "V")]
    pub vocabulary: Option<usize>,
    /// Longest sequence with position embeddings, instead of the model's
    #[arg(long, value_name = "T")]
    pub max_sequence: Option<usize>,
    /// llm.c's token file, or any text file [default: a text that comes with the program]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// How a text file becomes tokens
    #[arg(long, value_enum, default_value_t = TokenizerChoice::Auto)]
    pub tokenizer: TokenizerChoice,
    /// Sequences a step, split into the micro-batches [default: one a micro-batch]
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    pub batch: Option<u32>,
    /// Tokens a sequence [default: 256, or the model's longest]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..1 << 24))]
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
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// The same batch every step
    #[arg(long)]
    pub repeat_batch: bool,
    /// Longest wait of a device for its data, in seconds [default: 30, or 20 predicted steps]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub timeout: Option<f32>,
    /// For tests of what happens then: die@DEVICE:NUMBER or hang@DEVICE:NUMBER
    #[arg(long, hide = true, value_parser = clap::value_parser!(Fault))]
    pub inject: Option<Fault>,
}

fn number(text: &str) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| format!("expected a number, found '{text}'"))?;
    if value.is_finite() { Ok(value) } else { Err(format!("expected a finite number, found '{text}'")) }
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text).and_then(|v| if v >= 0.0 { Ok(v) } else { Err(format!("expected 0 or more, found {v}")) })
}

fn positive(text: &str) -> Result<f32, String> {
    number(text).and_then(|v| if v > 0.0 { Ok(v) } else { Err(format!("expected more than 0, found {v}")) })
}

fn below_one(text: &str) -> Result<f32, String> {
    not_negative(text).and_then(|v| if v < 1.0 { Ok(v) } else { Err(format!("expected less than 1, found {v}")) })
}

impl ModelOptions {
    /// The training that these options ask for, with steps of `microbatches` micro-batches.
    ///
    /// # Errors
    /// Sizes that contradict each other, unreadable files, data that does not fit the model.
    pub fn training(
        &self,
        microbatches: u32,
        layers: Option<Vec<usize>>,
        ranks: &Arc<Ranks>,
    ) -> Result<Training, Failure> {
        let parameters = self.parameters()?;
        let config = parameters.config;
        let batch = self.batch.unwrap_or(microbatches);
        if !batch.is_multiple_of(microbatches) {
            return Err(Failure::Usage(format!(
                "expected --batch to be a multiple of --micro {microbatches}, found {batch}; try {}",
                batch.next_multiple_of(microbatches)
            )));
        }
        let sequence_tokens = self.seq.map_or(config.max_sequence.min(256), |seq| seq as usize);
        if sequence_tokens > config.max_sequence {
            return Err(Failure::Usage(format!(
                "expected --seq of at most {}, the model's position table, found {sequence_tokens}",
                config.max_sequence
            )));
        }
        let tokens = self.tokens(&config)?;
        if tokens.vocabulary_needed > config.vocabulary {
            return Err(Failure::Usage(format!(
                "the data holds token id {}, but the model's vocabulary has {} ids; choose other data, --tokenizer or --vocabulary",
                tokens.vocabulary_needed - 1,
                config.vocabulary
            )));
        }
        // Forward and backward: 6 operations a parameter and token (Narayanan et al. 2021, without attention).
        let step_flops = 6.0 * config.parameter_count() as f64 * f64::from(batch) * sequence_tokens as f64;
        let adamw = AdamW {
            learning_rate: self.lr,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.eps,
            weight_decay: self.weight_decay,
        };
        let training = Training {
            parameters,
            tokens,
            sequences: (batch / microbatches) as usize,
            sequence_tokens,
            layers,
            adamw,
            clip: self.clip,
            repeat_batch: self.repeat_batch,
            timeout: self.timeout(step_flops / SLOW_CORE_FLOPS),
            fault: self.inject,
            ranks: ranks.clone(),
            backend: Backend::Cpu,
        };
        training.batch(0, microbatches).map_err(|e| Failure::Usage(format!("{e:#}")))?;
        Ok(training)
    }

    /// Longest wait of a device: as given, or 30 s, or 20 times a step that is expected to last `step_seconds`.
    pub fn timeout(&self, step_seconds: f64) -> Duration {
        let seconds = self.timeout.map_or((20.0 * step_seconds).max(30.0), f64::from);
        Duration::from_secs_f64(seconds.min(1e6))
    }

    fn parameters(&self) -> Result<Parameters, Failure> {
        if let Some(path) = &self.checkpoint {
            if !path.is_file() {
                return Err(Failure::Usage(format!("expected a checkpoint at {}, found no file", path.display())));
            }
            return Ok(Parameters::read(path)?);
        }
        let names = || Config::PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let preset = Config::preset(&self.model.to_lowercase());
        let preset =
            preset.ok_or_else(|| Failure::Usage(format!("no model is called '{}'; known: {}", self.model, names())))?;
        let config = Config {
            max_sequence: self.max_sequence.unwrap_or(preset.max_sequence),
            vocabulary: self.vocabulary.unwrap_or(preset.vocabulary),
            layers: self.blocks.unwrap_or(preset.layers),
            heads: self.heads.unwrap_or(preset.heads),
            channels: self.channels.unwrap_or(preset.channels),
        };
        config.validate().map_err(|e| Failure::Usage(format!("{e:#}")))?;
        self.require_memory(&config)?;
        Ok(Parameters::random(&config, self.seed)?)
    }

    /// Refuses a model whose parameters, gradients and moments would not fit in free memory.
    fn require_memory(&self, config: &Config) -> Result<(), Failure> {
        let bytes = (config.parameter_count() as u64).saturating_mul(4 * 5);
        match super::guard::free_memory_bytes() {
            Some(free) if bytes > free => Err(Failure::Environment(format!(
                "the model's {} parameters need {} GiB in float32 with gradients and moments, {} GiB are free; choose a smaller --model",
                config.parameter_count(),
                bytes >> 30,
                free >> 30
            ))),
            _ => Ok(()),
        }
    }

    fn tokens(&self, config: &Config) -> Result<Tokens, Failure> {
        let tokenizer = match self.tokenizer {
            TokenizerChoice::Bytes => Tokenizer::Bytes,
            TokenizerChoice::Gpt2 => Tokenizer::Gpt2,
            TokenizerChoice::Auto if config.vocabulary >= 50257 => Tokenizer::Gpt2,
            TokenizerChoice::Auto => Tokenizer::Bytes,
        };
        match &self.data {
            Some(path) if !path.is_file() => {
                Err(Failure::Usage(format!("expected a data file at {}, found none", path.display())))
            }
            Some(path) => Ok(Tokens::read(path, tokenizer)?),
            None => Ok(Tokens::embedded()),
        }
    }
}
