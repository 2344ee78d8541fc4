//! Options of a training that goes on until it is done: learning rates, validation, samples, checkpoints.

use super::training::{not_negative, positive};
use super::values::{one_of, share, whole};
use crate::experiment::{Error, Training};
use crate::training_loop::{DataSource, Decay, LearningRate, LoopConfig, Optimizer, Samples, Sampling, Validation};
use clap::Args;

const DECAYS: [(&str, &str, Decay); 3] = [
    ("constant", "The rate stays the same", Decay::Constant),
    ("linear", "It falls on a straight line", Decay::Linear),
    ("cosine", "It falls on half a period of a cosine", Decay::Cosine),
];

#[derive(Args, Clone, Debug)]
pub struct LoopOptions {
    /// Training steps [default: 1000, or the checkpoint's]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..1 << 31))]
    pub steps: Option<u32>,
    /// How the learning rate falls from --lr to --min-lr after the warm-up
    #[arg(long, value_name = "HOW", default_value = "constant", value_parser = one_of(DECAYS))]
    pub lr_schedule: Decay,
    /// Steps over which the learning rate rises to --lr
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u32>(..))]
    pub warmup_steps: u32,
    /// Learning rate at the end of a falling schedule
    #[arg(long, value_name = "RATE", default_value_t = 0.0, value_parser = not_negative)]
    pub min_lr: f32,
    /// Steps between measurements of the loss on held-out tokens [default: never]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub validate_every: Option<u32>,
    /// Batches per validation, at most
    #[arg(long, value_name = "N", default_value_t = 8, requires = "validate_every", value_parser = whole::<u32>(1..))]
    pub validation_batches: u32,
    /// Share of the tokens, at the end of the data, that is held out for validation
    #[arg(long, value_name = "SHARE", default_value = "5%", requires = "validate_every", value_parser = share)]
    pub held_out: f64,
    /// Steps between samples of the model's text [default: never]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub sample_every: Option<u32>,
    /// Tokens per sample
    #[arg(long, value_name = "N", default_value_t = 64, requires = "sample_every", value_parser = whole::<usize>(1..1 << 20))]
    pub sample_tokens: usize,
    /// Text that samples continue [default: the first 8 held-out tokens, or the data's]
    #[arg(long, value_name = "TEXT", requires = "sample_every")]
    pub sample_prompt: Option<String>,
    /// Choose tokens at random by this temperature [default: always the likeliest]
    #[arg(long, value_name = "T", requires = "sample_every", value_parser = positive)]
    pub temperature: Option<f32>,
    /// Choose among this many of the likeliest tokens [default: all]
    #[arg(long, value_name = "K", requires = "temperature", value_parser = whole::<usize>(1..))]
    pub top_k: Option<usize>,
    /// Seed of the choices
    #[arg(long, value_name = "N", default_value_t = 0, requires = "temperature", value_parser = whole::<u64>(..))]
    pub sample_seed: u64,
    /// Steps between checkpoints [default: one at the end]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub save_every: Option<u32>,
}

/// Number of steps unless it is given.
const STEPS: u32 = 1000;

impl LoopOptions {
    /// Returns what determines a new run of `training`, with steps of `microbatches` micro-batches.
    pub fn config(&self, training: &Training, microbatches: u32) -> Result<LoopConfig, Error> {
        let options = &training.training_config;
        let validation = |every| Validation { every, batches: self.validation_batches, held_out: self.held_out };
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k, seed: self.sample_seed };
        let samples =
            |every| Samples { every, tokens: self.sample_tokens, prompt: self.sample_prompt.clone(), sampling };
        Ok(LoopConfig {
            steps: self.steps.unwrap_or(STEPS),
            learning_rate: LearningRate {
                peak: options.adamw.learning_rate,
                minimum: self.min_lr,
                decay: self.lr_schedule,
                warmup_steps: self.warmup_steps,
            },
            optimizer: Optimizer::of(options),
            batch: training.micro_batch.sequences as u32 * microbatches * training.mesh().data,
            sequence_tokens: training.micro_batch.tokens,
            repeat_batch: options.repeat_batch,
            data: DataSource::of(training)?,
            validation: self.validate_every.map(validation),
            samples: self.sample_every.map(samples),
            save_every: self.save_every,
            seed: options.seed,
        })
    }
}
