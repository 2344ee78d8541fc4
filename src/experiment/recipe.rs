//! What is trained, written down: model, data, optimizer and batches, by name and number.

use super::machine::free_memory_bytes;
use super::{Backend, Error, Training};
use crate::anatomy::MicroBatch;
use crate::exec::Fault;
use crate::model::{AdamW, Config, Parameters, Tokenizer, Tokens};
use crate::op::Kind;
use crate::ranks::Ranks;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What even a slow core does in a second, for the watchdog's patience.
const SLOW_CORE_FLOPS: f64 = 1e10;

/// Most patience.
const LONGEST: Duration = Duration::from_secs(1_000_000);

/// Model, data, optimizer and batches of a training.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Sizes by name, `tiny` to `gpt2-xl`; initialised at random.
    pub model: String,
    /// llm.c's checkpoint to start from instead.
    pub checkpoint: Option<PathBuf>,
    /// Number of transformer blocks, instead of the model's.
    pub blocks: Option<usize>,
    /// Number of attention heads, instead of the model's.
    pub heads: Option<usize>,
    /// Width of the hidden state, instead of the model's.
    pub channels: Option<usize>,
    /// Number of token ids, instead of the model's.
    pub vocabulary: Option<usize>,
    /// Longest sequence with position embeddings, instead of the model's.
    pub max_sequence: Option<usize>,
    /// llm.c's token file or any text file; none for a text that comes with the program.
    pub data: Option<PathBuf>,
    /// How a text file becomes tokens; none for GPT-2's where the vocabulary is GPT-2's, else bytes.
    pub tokenizer: Option<Tokenizer>,
    /// Sequences a step, split into the micro-batches; none for one a micro-batch.
    pub batch: Option<u32>,
    /// Tokens a sequence; none for 256, or the model's longest.
    pub sequence_tokens: Option<usize>,
    /// The optimizer.
    pub adamw: AdamW,
    /// Largest gradient norm.
    pub clip: Option<f32>,
    /// Seed of the random initialisation.
    pub seed: u64,
    /// The same batch every step.
    pub repeat_batch: bool,
    /// Longest wait of a device for its data; none for 30 s, or 20 predicted steps.
    pub timeout: Option<Duration>,
    /// A fault to inject, for tests of what happens then.
    pub fault: Option<Fault>,
}

impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            model: "tiny".to_string(),
            checkpoint: None,
            blocks: None,
            heads: None,
            channels: None,
            vocabulary: None,
            max_sequence: None,
            data: None,
            tokenizer: None,
            batch: None,
            sequence_tokens: None,
            adamw: AdamW::default(),
            clip: None,
            seed: 42,
            repeat_batch: false,
            timeout: None,
            fault: None,
        }
    }
}

impl Recipe {
    /// The training that this describes, on CPU threads, with steps of `microbatches` micro-batches and `layers` blocks a stage
    /// where they are not split evenly.
    ///
    /// # Errors
    /// Sizes that contradict each other, unreadable files, data that does not fit the model.
    pub fn training(
        &self,
        microbatches: u32,
        layers: Option<Vec<usize>>,
        ranks: &Arc<Ranks>,
    ) -> Result<Training, Error> {
        let config = self.config()?;
        if microbatches == 0 {
            return Err(Error::Usage("expected at least 1 micro-batch, found 0; ask for one or more".to_string()));
        }
        let batch = self.batch.unwrap_or(microbatches);
        if !batch.is_multiple_of(microbatches) {
            return Err(Error::Usage(format!(
                "expected --batch to be a multiple of --micro {microbatches}, found {batch}; try {}",
                batch.next_multiple_of(microbatches)
            )));
        }
        let sequence_tokens = self.sequence_tokens.unwrap_or(config.max_sequence.min(256));
        if sequence_tokens > config.max_sequence {
            return Err(Error::Usage(format!(
                "expected --seq of at most {}, the model's position table, found {sequence_tokens}",
                config.max_sequence
            )));
        }
        let tokens = self.tokens(&config)?;
        if tokens.vocabulary_needed > config.vocabulary {
            return Err(Error::Usage(format!(
                "the data holds token id {}, but the model's vocabulary has {} ids; choose other data, --tokenizer or --vocabulary",
                tokens.vocabulary_needed - 1,
                config.vocabulary
            )));
        }
        let step = MicroBatch { sequences: batch as usize, tokens: sequence_tokens };
        let step_flops: u128 = [Kind::F, Kind::B].map(|kind| config.anatomy().flops(kind, step)).iter().sum();
        let training = Training {
            parameters: self.parameters(&config)?,
            tokens,
            sequences: (batch / microbatches) as usize,
            sequence_tokens,
            layers,
            adamw: self.adamw,
            clip: self.clip,
            repeat_batch: self.repeat_batch,
            timeout: self.timeout(step_flops as f64 / SLOW_CORE_FLOPS),
            fault: self.fault,
            ranks: ranks.clone(),
            backend: Backend::Cpu,
        };
        training.batch(0, microbatches).map_err(|short| Error::Usage(short.to_string()))?;
        Ok(training)
    }

    /// Longest wait of a device: as given, or 30 s, or 20 times a step that is expected to last `step_seconds`.
    pub(super) fn timeout(&self, step_seconds: f64) -> Duration {
        let expected = || Duration::try_from_secs_f64((20.0 * step_seconds).max(30.0)).unwrap_or(LONGEST);
        self.timeout.unwrap_or_else(expected).min(LONGEST)
    }

    /// The sizes of the model, before anything is allocated for it.
    fn config(&self) -> Result<Config, Error> {
        if let Some(path) = &self.checkpoint {
            if !path.is_file() {
                return Err(Error::Usage(format!("expected a checkpoint at {}, found no file", path.display())));
            }
            return Ok(Parameters::read_config(path)?);
        }
        let names = || Config::PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let preset = Config::preset(&self.model.to_lowercase());
        let preset =
            preset.ok_or_else(|| Error::Usage(format!("no model is called '{}'; known: {}", self.model, names())))?;
        let config = Config {
            max_sequence: self.max_sequence.unwrap_or(preset.max_sequence),
            vocabulary: self.vocabulary.unwrap_or(preset.vocabulary),
            layers: self.blocks.unwrap_or(preset.layers),
            heads: self.heads.unwrap_or(preset.heads),
            channels: self.channels.unwrap_or(preset.channels),
        };
        config.validate().map_err(|e| Error::Usage(e.to_string()))?;
        require_memory(&config)?;
        Ok(config)
    }

    fn parameters(&self, config: &Config) -> Result<Parameters, Error> {
        Ok(match &self.checkpoint {
            Some(path) => Parameters::read(path)?,
            None => Parameters::random(config, self.seed)?,
        })
    }

    fn tokens(&self, config: &Config) -> Result<Tokens, Error> {
        let by_vocabulary = if config.vocabulary >= 50257 { Tokenizer::Gpt2 } else { Tokenizer::Bytes };
        match &self.data {
            Some(path) if !path.is_file() => {
                Err(Error::Usage(format!("expected a data file at {}, found none", path.display())))
            }
            Some(path) => Ok(Tokens::read(path, self.tokenizer.unwrap_or(by_vocabulary))?),
            None => Ok(Tokens::embedded()),
        }
    }
}

/// Refuses a model whose parameters, gradients and moments would not fit in free memory.
fn require_memory(config: &Config) -> Result<(), Error> {
    let bytes = (config.parameter_count() as u64).saturating_mul(4 * 5);
    match free_memory_bytes() {
        Some(free) if bytes > free => Err(Error::Environment(format!(
            "the model's {} parameters need {} GiB in float32 with gradients and moments, {} GiB are free; choose a smaller --model",
            config.parameter_count(),
            bytes >> 30,
            free >> 30
        ))),
        _ => Ok(()),
    }
}
