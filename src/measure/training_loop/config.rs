//! What determines a run, as its checkpoints store it.

use super::{LearningRate, Sampling};
use crate::experiment::{Error, Training, TrainingConfig};
use pipesim_schedule::mesh::Mesh;
use pipesim_train::model::{AdamW, Tokenizer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Version of the state in a checkpoint.
const SCHEMA_VERSION: u32 = 1;

/// The state of a run after some steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRun {
    schema_version: u32,
    /// Number of steps done.
    pub step: u32,
    /// Number of the batch of the next step, from 0: its position in the data.
    pub next_batch: u32,
    pub pipeline: Pipeline,
    pub config: LoopConfig,
}

/// How the model is split over devices, which changes no loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Name or path of the schedule.
    pub schedule: String,
    /// Number of devices, p.
    pub stages: u32,
    /// Number of micro-batches per replica, m.
    pub micro: u32,
    /// The workers of each device.
    #[serde(default, skip_serializing_if = "Mesh::is_default")]
    pub mesh: Mesh,
    /// Virtual stages per device.
    pub chunks: Option<u32>,
    /// Options of the schedule.
    pub set: BTreeMap<String, String>,
    /// Blocks of each stage; `None` for an even split.
    pub layers: Option<Vec<usize>>,
}

/// Everything else that determines a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopConfig {
    /// Number of steps.
    pub steps: u32,
    pub learning_rate: LearningRate,
    pub optimizer: Optimizer,
    /// Sequences per step.
    pub batch: u32,
    /// Tokens per sequence.
    pub sequence_tokens: usize,
    /// Train on the same batch in every step.
    pub repeat_batch: bool,
    pub data: DataSource,
    pub validation: Option<Validation>,
    pub samples: Option<Samples>,
    /// Steps between checkpoints; `None` for one at the end.
    pub save_every: Option<u32>,
    /// Seed of the random initialisation, if there was one.
    pub seed: u64,
}

/// AdamW's constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    /// Gradients are clipped to this norm.
    pub clip: Option<f32>,
}

/// The tokens, all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSource {
    /// The file; `None` for the built-in text.
    pub path: Option<PathBuf>,
    /// Tokenizer of a text, if it was given.
    pub tokenizer: Option<Tokenizer>,
    /// Number of tokens.
    pub tokens: usize,
    /// CRC-32 of the tokens, in hexadecimal digits.
    pub crc32: String,
}

/// Validation on the last tokens of the data, which are not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Steps between validations.
    pub every: u32,
    /// Number of batches, at most.
    pub batches: u32,
    /// Share of the tokens that are held out.
    pub held_out: f64,
}

/// Samples of the model's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// Steps between samples.
    pub every: u32,
    /// Number of tokens.
    pub tokens: usize,
    /// The text that is continued; `None` for the first tokens of the held-out data, or of all data.
    pub prompt: Option<String>,
    pub sampling: Sampling,
}

impl SavedRun {
    pub fn new(step: u32, pipeline: Pipeline, config: LoopConfig) -> SavedRun {
        SavedRun { schema_version: SCHEMA_VERSION, step, next_batch: step, pipeline, config }
    }

    /// Checks that this program understands the state.
    ///
    /// # Errors
    /// It is of another version, or contradicts itself.
    pub fn check(&self) -> Result<(), Error> {
        if self.schema_version != SCHEMA_VERSION || self.next_batch != self.step {
            return Err(Error::Usage(format!(
                "expected a checkpoint of version {SCHEMA_VERSION}, found {} with batch {} after step {}; use the program that wrote it",
                self.schema_version, self.next_batch, self.step
            )));
        }
        if !self.pipeline.mesh.is_sound() {
            return Err(Error::Usage(format!(
                "expected degrees of at least 1 in a checkpoint, found {}; use a checkpoint as it was written",
                self.pipeline.mesh
            )));
        }
        Ok(())
    }

    /// Returns the training that goes on from the checkpoint at `path`.
    pub fn training_config(&self, path: &Path) -> TrainingConfig {
        let LoopConfig { batch, sequence_tokens, repeat_batch, data, seed, .. } = self.config.clone();
        TrainingConfig {
            model: path.to_string_lossy().into_owned(),
            data: data.path,
            tokenizer: data.tokenizer,
            layers: self.pipeline.layers.clone(),
            batch: Some(batch),
            sequence_tokens: Some(sequence_tokens),
            adamw: self.config.adamw(0),
            clip: self.config.optimizer.clip,
            seed,
            repeat_batch,
            ..TrainingConfig::default()
        }
    }
}

impl LoopConfig {
    /// Returns the constants of the update of step `step`, from 0.
    pub fn adamw(&self, step: u32) -> AdamW {
        let Optimizer { beta1, beta2, epsilon, weight_decay, .. } = self.optimizer;
        AdamW { learning_rate: self.learning_rate.at(step, self.steps), beta1, beta2, epsilon, weight_decay }
    }
}

impl Optimizer {
    /// The constants of a training.
    pub fn of(training: &TrainingConfig) -> Optimizer {
        let AdamW { beta1, beta2, epsilon, weight_decay, .. } = training.adamw;
        Optimizer { beta1, beta2, epsilon, weight_decay, clip: training.clip }
    }
}

impl DataSource {
    /// The data of a training.
    ///
    /// # Errors
    /// The file's path cannot be made absolute.
    pub fn of(training: &Training) -> Result<DataSource, Error> {
        let config = &training.training_config;
        let absolute = |path: &PathBuf| std::path::absolute(path).map_err(anyhow::Error::from);
        Ok(DataSource {
            path: config.data.as_ref().map(absolute).transpose()?,
            tokenizer: config.tokenizer,
            tokens: training.tokens.len(),
            crc32: format!("{:08x}", training.tokens.crc32()),
        })
    }

    /// Checks that the file exists.
    ///
    /// # Errors
    /// It does not.
    pub fn check_exists(&self) -> Result<(), Error> {
        match &self.path {
            Some(path) if !path.exists() => Err(Error::Usage(format!(
                "expected the data of this run at {}, found nothing; name its new place with `data`",
                path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that `training` has the same tokens.
    ///
    /// # Errors
    /// The file has changed.
    pub fn check(&self, training: &Training) -> Result<(), Error> {
        let found = DataSource::of(training)?;
        if (found.tokens, &found.crc32) != (self.tokens, &self.crc32) {
            let name = found.path.as_ref().map_or("the built-in text".to_string(), |path| path.display().to_string());
            let difference = match found.tokens == self.tokens {
                true => format!("as many with CRC-32 {}, not {}", found.crc32, self.crc32),
                false => format!("{} tokens", found.tokens),
            };
            return Err(Error::Usage(format!(
                "expected {name} to hold the {} tokens of the checkpoint, found {difference}; restore the file, or name its copy with \
                 `data`",
                self.tokens
            )));
        }
        Ok(())
    }
}
