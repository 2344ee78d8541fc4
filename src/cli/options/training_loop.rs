//! Options of a training that goes on until it is done: learning rates, validation, samples, checkpoints.

use super::training::{not_negative, positive};
use super::values::{one_of, share, whole};
use clap::Args;
use pipesim_measure::experiment::{Error, Training};
use pipesim_measure::training_loop::{
    DataSource, Decay, LearningRate, LoopConfig, Optimizer, Samples, Sampling, Validation,
};

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
    /// Passes over the data, instead of --steps: 2 or 0.5
    #[arg(long, value_name = "N", conflicts_with_all = ["steps", "repeat_batch"], value_parser = positive)]
    pub epochs: Option<f32>,
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
    /// Batches per validation, at most [default: 8]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub validation_batches: Option<u32>,
    /// Share of the tokens, at the end of the data, that is held out for validation
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share)]
    pub held_out: f64,
    /// Steps between samples of the model's text [default: never]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub sample_every: Option<u32>,
    /// Tokens per sample [default: 64]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..1 << 20))]
    pub sample_tokens: Option<usize>,
    /// Text that samples continue [default: the first 8 held-out tokens, or the data's]
    #[arg(long, value_name = "TEXT")]
    pub sample_prompt: Option<String>,
    /// Choose tokens at random by this temperature [default: always the likeliest]
    #[arg(long, value_name = "T", value_parser = positive)]
    pub temperature: Option<f32>,
    /// Choose among this many of the likeliest tokens [default: all]
    #[arg(long, value_name = "K", value_parser = whole::<usize>(1..))]
    pub top_k: Option<usize>,
    /// Seed of the choices [default: 0]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(..))]
    pub sample_seed: Option<u64>,
    /// Steps between checkpoints [default: one at the end]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub save_every: Option<u32>,
}

/// Numbers of steps, of batches per validation and of tokens per sample unless they are given.
const STEPS: u32 = 1000;
const VALIDATION_BATCHES: u32 = 8;
const SAMPLE_TOKENS: usize = 64;

/// Returns the steps in which a run sees each of `tokens` once, but for those that are held out.
pub fn epoch_steps(tokens: usize, validation: Option<Validation>, batch: u32, sequence_tokens: usize) -> f64 {
    let held_out = validation.map_or(0.0, |validation| (tokens as f64 * validation.held_out).round());
    (tokens as f64 - held_out) / (f64::from(batch) * sequence_tokens as f64).max(1.0)
}

impl LoopOptions {
    /// Returns what determines a new run of `training`, with steps of `microbatches` micro-batches.
    pub fn config(&self, training: &Training, microbatches: u32) -> Result<LoopConfig, Error> {
        let options = &training.training_config;
        let batches = self.validation_batches.unwrap_or(VALIDATION_BATCHES);
        let validation = |every| Validation { every, batches, held_out: self.held_out };
        let batch = training.micro_batch.sequences as u32 * microbatches * training.mesh().data;
        let (sequence_tokens, all) = (training.micro_batch.tokens, training.tokens.len());
        let validation = self.validate_every.map(validation);
        let epoch = epoch_steps(all, validation, batch, sequence_tokens);
        Ok(LoopConfig {
            steps: self.steps_asked(epoch)?.unwrap_or(STEPS),
            learning_rate: LearningRate {
                peak: options.adamw.learning_rate,
                minimum: self.min_lr,
                decay: self.lr_schedule,
                warmup_steps: self.warmup_steps,
            },
            optimizer: Optimizer::of(options),
            batch,
            sequence_tokens,
            repeat_batch: options.repeat_batch,
            data: DataSource::of(training)?,
            validation,
            samples: self.samples(None)?,
            save_every: self.save_every,
            seed: options.seed,
        })
    }

    /// Returns what determines a run that goes on from a checkpoint: what was `saved`, with the options given that change no loss.
    pub fn resumed(&self, saved: LoopConfig) -> Result<LoopConfig, Error> {
        let validation = match saved.validation {
            Some(validation) => Some(Validation {
                every: self.validate_every.unwrap_or(validation.every),
                batches: self.validation_batches.unwrap_or(validation.batches),
                ..validation
            }),
            None if self.validate_every.or(self.validation_batches).is_some() => {
                return Err(Error::Usage(
                    "--validate-every would hold out tokens that this run trains on; leave it out, or begin another run without --resume"
                        .to_string(),
                ));
            }
            None => None,
        };
        let epoch = epoch_steps(saved.data.tokens, validation, saved.batch, saved.sequence_tokens);
        Ok(LoopConfig {
            steps: self.steps_asked(epoch)?.unwrap_or(saved.steps),
            validation,
            samples: self.samples(saved.samples)?,
            save_every: self.save_every.or(saved.save_every),
            ..saved
        })
    }

    /// Returns the steps of --steps or --epochs, if one is given, for steps per epoch.
    fn steps_asked(&self, epoch: f64) -> Result<Option<u32>, Error> {
        let Some(epochs) = self.epochs else { return Ok(self.steps) };
        let (steps, most) = ((f64::from(epochs) * epoch).round(), f64::from(i32::MAX));
        if steps > most {
            return Err(Error::Usage(format!(
                "expected --epochs of at most {}, which are {most} steps of this data, found {epochs}; ask for fewer",
                (most / epoch).floor()
            )));
        }
        Ok(Some(steps.max(1.0) as u32))
    }

    /// Returns the samples asked for, or those `saved` with the options given.
    fn samples(&self, saved: Option<Samples>) -> Result<Option<Samples>, Error> {
        let (old, old_sampling) = (saved.as_ref(), saved.as_ref().map(|saved| saved.sampling));
        let Some(every) = self.sample_every.or(old.map(|old| old.every)) else {
            return match self.first_of_samples() {
                Some(option) => Err(Error::Usage(format!("{option} is about samples; give --sample-every, too"))),
                None => Ok(None),
            };
        };
        let sampling = Sampling {
            temperature: self.temperature.or(old_sampling.and_then(|old| old.temperature)),
            top_k: self.top_k.or(old_sampling.and_then(|old| old.top_k)),
            seed: self.sample_seed.or(old_sampling.map(|old| old.seed)).unwrap_or_default(),
        };
        let of_choices = self.top_k.map(|_| "--top-k").or(self.sample_seed.map(|_| "--sample-seed"));
        if let (None, Some(option)) = (sampling.temperature, of_choices) {
            return Err(Error::Usage(format!("{option} is about choices at random; give --temperature, too")));
        }
        Ok(Some(Samples {
            every,
            tokens: self.sample_tokens.or(old.map(|old| old.tokens)).unwrap_or(SAMPLE_TOKENS),
            prompt: self.sample_prompt.clone().or(old.and_then(|old| old.prompt.clone())),
            sampling,
        }))
    }

    /// The first option given that describes samples.
    fn first_of_samples(&self) -> Option<&'static str> {
        let given = [
            ("--sample-tokens", self.sample_tokens.is_some()),
            ("--sample-prompt", self.sample_prompt.is_some()),
            ("--temperature", self.temperature.is_some()),
            ("--top-k", self.top_k.is_some()),
            ("--sample-seed", self.sample_seed.is_some()),
        ];
        given.iter().find(|(_, is_given)| *is_given).map(|(option, _)| *option)
    }
}
