//! Where the model of a training comes from: a name, a Hugging Face folder, or a `config.json`.

use super::{Error, TrainingConfig};
use crate::checkpoint;
use crate::model::{Config, Parameters, check_executable};
use crate::model_spec::huggingface::{self, Described};
use crate::model_spec::{self, gpt2};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Name of Hugging Face's description of a model.
const CONFIG: &str = "config.json";

/// Largest description that is read, in bytes.
const MOST_CONFIG_BYTES: u64 = 16 << 20;

/// Keys of a description that change no cost but the result, with the value that is supported.
const FIXED: [(&str, bool); 2] = [("scale_attn_weights", true), ("scale_attn_by_inverse_layer_idx", false)];

/// Where the model's sizes and weights come from.
pub(super) enum ModelSource {
    /// A checkpoint of llm.c's.
    LlmC(PathBuf),
    /// A name.
    Named,
    /// Hugging Face's description; weights are random.
    Described(PathBuf),
    /// A folder with a description and weights.
    Folder(PathBuf),
}

impl TrainingConfig {
    pub(super) fn source(&self) -> ModelSource {
        let path = Path::new(&self.model);
        match &self.checkpoint {
            Some(checkpoint) => ModelSource::LlmC(checkpoint.clone()),
            None if is_named(&self.model) => ModelSource::Named,
            None if path.is_dir() => ModelSource::Folder(path.to_path_buf()),
            None if self.model.ends_with(".json") => ModelSource::Described(path.to_path_buf()),
            None => ModelSource::Named,
        }
    }

    /// Returns the keys of the `config.json` that the model comes from; none if it comes from something else.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn config_keys(&self) -> Result<Map<String, Value>, Error> {
        match self.source() {
            ModelSource::Described(path) => Ok(read_keys(&path)?.0),
            ModelSource::Folder(path) => Ok(read_keys(&path.join(CONFIG))?.0),
            ModelSource::LlmC(_) | ModelSource::Named => Ok(Map::new()),
        }
    }

    /// Returns the model's sizes, before anything is allocated for it.
    pub(super) fn sizes(&self) -> Result<Config, Error> {
        let path = match self.source() {
            ModelSource::LlmC(path) if !path.is_file() => {
                return Err(Error::Usage(format!("expected a checkpoint at {}, found no file", path.display())));
            }
            ModelSource::LlmC(path) => return Ok(Parameters::read_config(&path)?),
            ModelSource::Named => return self.named(),
            ModelSource::Described(path) => path,
            ModelSource::Folder(path) => path.join(CONFIG),
        };
        self.refuse_changes(path.display())?;
        let (keys, Described { config, unknown }) = read_keys(&path)?;
        let refused = |what: String| {
            Error::Usage(format!("{}: {what}; such a model can only be predicted (predict --model)", path.display()))
        };
        if let Some(key) = unknown.first() {
            return Err(refused(format!("expected keys whose meaning is known, found '{key}'")));
        }
        for (key, supported) in FIXED {
            if keys.get(key).and_then(Value::as_bool).is_some_and(|value| value != supported) {
                return Err(refused(format!("expected '{key}' to be {supported}, found {}", !supported)));
            }
        }
        check_executable(&config).map_err(|why| refused(format!("{why:#}")))?;
        Ok(config)
    }

    /// Returns the sizes of a model by name, with the changes asked for.
    fn named(&self) -> Result<Config, Error> {
        let model = &self.model;
        let Some(preset) = gpt2::Config::preset(&model.to_lowercase()) else { return self.published() };
        let config = gpt2::Config {
            max_sequence: self.max_sequence.unwrap_or(preset.max_sequence),
            vocabulary: self.vocabulary.unwrap_or(preset.vocabulary),
            layers: self.blocks.unwrap_or(preset.layers),
            heads: self.heads.unwrap_or(preset.heads),
            channels: self.channels.unwrap_or(preset.channels),
        };
        config.validate().map_err(|e| Error::Usage(e.to_string()))?;
        Ok(config.transformer())
    }

    /// Returns the sizes of a published model that is no GPT-2.
    fn published(&self) -> Result<Config, Error> {
        let model = &self.model;
        let names = gpt2::Config::PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let Some(config) = model_spec::transformer_named(model) else {
            return Err(Error::Usage(match model.contains('/') {
                true => format!(
                    "expected the folder of a model at {model}, found none; download one, as with hf download \
                     openai-community/gpt2 --local-dir gpt2"
                ),
                false => {
                    format!("no model is called '{model}'; known: {names}, llama-3.2-1b, or a folder of Hugging Face's")
                }
            }));
        };
        self.refuse_changes(model)?;
        check_executable(&config).map_err(|why| {
            Error::Usage(format!(
                "{why:#}: '{model}' can only be predicted (predict --model {model} --hardware h100-sxm); take one of {names}"
            ))
        })?;
        Ok(config)
    }

    /// Checks that no size is to be changed.
    fn refuse_changes(&self, model: impl std::fmt::Display) -> Result<(), Error> {
        let changes = [
            (self.blocks, "--blocks"),
            (self.heads, "--heads"),
            (self.channels, "--channels"),
            (self.vocabulary, "--vocabulary"),
            (self.max_sequence, "--max-sequence"),
        ];
        match changes.iter().find(|(change, _)| change.is_some()) {
            Some((_, option)) => {
                Err(Error::Usage(format!("{option} changes a GPT-2 by name, and {model} has all sizes; leave it out")))
            }
            None => Ok(()),
        }
    }

    pub(super) fn parameters(&self, config: &Config) -> Result<Parameters, Error> {
        Ok(match self.source() {
            ModelSource::LlmC(path) => Parameters::read(&path)?,
            ModelSource::Folder(path) => checkpoint::read_folder(&path, config)?,
            ModelSource::Named | ModelSource::Described(_) => Parameters::random(config, self.seed)?,
        })
    }
}

/// Whether this is the name of a model, which goes before a folder of that name.
fn is_named(name: &str) -> bool {
    gpt2::Config::preset(&name.to_lowercase()).is_some() || model_spec::transformer_named(name).is_some()
}

/// Reads a description, as it is and as a model.
fn read_keys(path: &Path) -> Result<(Map<String, Value>, Described), Error> {
    let wrong = |why: String| Error::Usage(format!("{}: {why}", path.display()));
    let length = path.metadata().map_err(|error| wrong(format!("cannot read it ({error}): check the path")))?.len();
    if length > MOST_CONFIG_BYTES {
        return Err(wrong(format!("expected a file of at most 16 MiB, found {length} bytes: give a config.json")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot read it: {error}")))?;
    let described = huggingface::read(&text).map_err(|error| wrong(error.to_string()))?;
    let keys = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    Ok((keys, described))
}
