//! `pipesim generate`: text from a trained model.

use crate::cli::Failure;
use crate::cli::options::training::{TOKENIZERS, TokenizerChoice, positive};
use crate::cli::options::values::{one_of, whole};
use crate::cli::terminal::print_text;
use clap::Args;
use pipesim_measure::training_loop::{Sampling, TextModel};
use std::path::PathBuf;

#[derive(Args)]
pub struct Generate {
    /// Folder of a run of `pipesim train`, one of its checkpoints, or a Hugging Face folder with weights
    #[arg(value_name = "CHECKPOINT")]
    trained: PathBuf,
    /// Text to continue [default: none, a new text]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Number of tokens to add
    #[arg(long = "tokens", value_name = "N", default_value_t = 100, value_parser = whole::<usize>(1..1 << 20))]
    count: usize,
    /// Choose tokens at random by this temperature [default: always the likeliest]
    #[arg(long, value_name = "T", value_parser = positive)]
    temperature: Option<f32>,
    /// Choose among this many of the likeliest tokens [default: all]
    #[arg(long, value_name = "K", requires = "temperature", value_parser = whole::<usize>(1..))]
    top_k: Option<usize>,
    /// Seed of the choices [default: 0]
    #[arg(long, value_name = "N", requires = "temperature", value_parser = whole::<u64>(..))]
    sample_seed: Option<u64>,
    /// Tokenizer of the model, if its folder does not say it
    #[arg(id = "own_tokenizer", long = "tokenizer", value_parser = one_of(TOKENIZERS), default_value = "auto")]
    tokenizer: TokenizerChoice,
}

impl Generate {
    pub fn run(&self) -> Result<(), Failure> {
        let model = TextModel::read(&self.trained, self.tokenizer)?;
        let sampling =
            Sampling { temperature: self.temperature, top_k: self.top_k, seed: self.sample_seed.unwrap_or_default() };
        let text = model.continued(self.prompt.as_deref(), self.count, sampling)?;
        print_text(&format!("{text}\n"))
    }
}
