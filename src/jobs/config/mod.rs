//! Configurations of torchtitan, Megatron-Bridge, NeMo, DeepSpeed, nanotron and Hugging Face's Trainer.

mod bridge;
mod command;
mod deepspeed;
mod document;
mod framework;
mod nanotron;
mod torchtitan;

use crate::error::JobError;
use crate::job::Job;
use crate::launch::Launch;
use crate::source::Sources;
use document::{Document, Language};

/// Reads a job whose first file is a configuration of one of these frameworks; `None` if it is something else.
///
/// # Errors
/// The file is not of its language, or has values that its framework does not take.
pub fn read(sources: &Sources) -> Result<Option<Job>, JobError> {
    let Some(file) = sources.files.first() else { return Ok(None) };
    let Some(language) = Language::of(&file.name, &file.text) else { return Ok(None) };
    let mut document = Document::parse(language, &file.name, &file.text)?;
    document.override_with_arguments(&sources.arguments)?;
    read_document(language, document, sources)
}

/// Reads a configuration by the names that only its framework has.
fn read_document(language: Language, document: Document, sources: &Sources) -> Result<Option<Job>, JobError> {
    let gpus = sources.gpus;
    let has = |starts: &[&str]| {
        starts.iter().all(|start| {
            document
                .values
                .keys()
                .any(|name| name == start || name.strip_prefix(start).is_some_and(|rest| rest.starts_with('.')))
        })
    };
    let is_titan = has(&["training", "model.flavor"]) || has(&["training", "parallelism"]) || has(&["training", "job"]);
    let is_old_titan = has(&["training"]) || has(&["model.name"]) || has(&["parallelism"]) || has(&["experimental"]);
    match () {
        () if is_titan || language == Language::Toml && is_old_titan => torchtitan::read(document, gpus).map(Some),
        () if has(&["parallelism", "tokens"]) || has(&["parallelism", "model.model_config"]) => {
            nanotron::read(document, gpus).map(Some)
        }
        () if has(&["model", "trainer"]) || has(&["model", "train"]) || has(&["model._target_"]) => {
            bridge::read(document, gpus).map(Some)
        }
        () if DEEPSPEED.iter().any(|name| has(&[name])) => deepspeed::read(document, gpus).map(Some),
        () => Ok(None),
    }
}

/// Names of which each shows a configuration of DeepSpeed or of Hugging Face's Trainer.
const DEEPSPEED: [&str; 6] = [
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "zero_optimization",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "zero_allow_untested_optimizer",
];

/// Reads a job from the command that starts one of these frameworks; `None` if it starts something else.
///
/// # Errors
/// As [`read`]; also a file that the command names and the sources lack.
pub fn of_launch(launch: &Launch, sources: &Sources) -> Result<Option<Job>, JobError> {
    command::read(launch, sources)
}
