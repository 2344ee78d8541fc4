//! Where the model of a training comes from: a name, a Hugging Face folder, or a `config.json`.

use super::{Error, TrainingConfig};
use anyhow::Context;
use pipesim_models::model_spec::huggingface::{self, Described};
use pipesim_models::model_spec::transformer::{RotaryScaling, Style};
use pipesim_models::model_spec::{self, gpt2};
use pipesim_train::checkpoint;
use pipesim_train::model::{Config, Parameters, check_executable, check_executable_keys};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Name of Hugging Face's description of a model.
const CONFIG: &str = "config.json";

/// Largest description that is read, in bytes.
const MOST_CONFIG_BYTES: u64 = 16 << 20;

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
            Error::Usage(format!("{}: {what}; such a model can only be predicted (predict `model`)", path.display()))
        };
        if let Some(part) = config.rare_parts().first() {
            return Err(refused(format!("expected softmax attention and an MLP in each layer, found {part}")));
        }
        if let Some(key) = unknown.first() {
            return Err(refused(format!("expected keys whose meaning is known, found '{key}'")));
        }
        check_executable_keys(&keys).map_err(|why| refused(format!("{why:#}")))?;
        check_executable(&config).map_err(|why| refused(format!("{why:#}")))?;
        Ok(config)
    }

    /// Whether the model has a tokenizer of its own: it is no GPT-2 with random weights.
    pub(super) fn has_own_tokens(&self, config: &Config) -> bool {
        config.style == Style::Llama || matches!(self.source(), ModelSource::LlmC(_) | ModelSource::Folder(_))
    }

    /// Returns the longest sequence of the model and what limits it; `None` without a limit.
    ///
    /// # Errors
    /// The model's description cannot be read.
    pub fn longest_sequence(&self, config: &Config) -> Result<Option<(usize, &'static str)>, Error> {
        if let Some(positions) = config.longest_sequence() {
            return Ok(Some((positions, "the model's position table")));
        }
        let keys = self.config_keys()?;
        let most = keys.get("max_position_embeddings").and_then(Value::as_u64);
        // Scaled positions reach further than the sequences of the first training.
        let scaled = match config.rotary.map(|rotary| rotary.scaling) {
            Some(RotaryScaling::Llama3 { factor, original_positions, .. }) => (factor * original_positions) as usize,
            _ => 0,
        };
        Ok(most.map(|most| (scaled.max(most as usize), "the model's max_position_embeddings")))
    }

    /// Returns the sizes of a model by name, with the changes asked for.
    fn named(&self) -> Result<Config, Error> {
        let model = &self.model;
        let Some(preset) = gpt2::Config::preset(&model.to_lowercase()) else { return self.published() };
        let config = gpt2::Config {
            max_sequence: self.max_sequence.unwrap_or(preset.max_sequence),
            vocabulary: self.vocabulary.unwrap_or(preset.vocabulary),
            layers: self.blocks.unwrap_or(preset.layers),
            heads: self.heads.unwrap_or_else(|| usual_heads(&preset, self.channels)),
            channels: self.channels.unwrap_or(preset.channels),
        };
        config.validate().map_err(|e| Error::Usage(e.to_string()))?;
        Ok(config.transformer())
    }

    /// Says how many attention heads the model has if they were chosen for --channels.
    pub fn chosen_heads(&self) -> Option<String> {
        let preset = gpt2::Config::preset(&self.model.to_lowercase()).filter(|_| self.checkpoint.is_none())?;
        let (channels, heads) = (self.channels.filter(|_| self.heads.is_none())?, usual_heads(&preset, self.channels));
        (heads != preset.heads).then(|| {
            format!(
                "{heads} attention {} of {} channels: `channels` {channels} is no multiple of the {} of '{}'; choose others with `heads`",
                if heads == 1 { "head" } else { "heads" },
                channels / heads,
                preset.heads,
                self.model
            )
        })
    }

    /// Returns the sizes of a published model that is no GPT-2.
    fn published(&self) -> Result<Config, Error> {
        let model = &self.model;
        let Some(config) = model_spec::transformer_named(model) else {
            return Err(Error::Usage(match model.contains('/') {
                true => format!(
                    "expected the folder of a model at {model}, found none; download one, as with hf download \
                     openai-community/gpt2 --local-dir gpt2"
                ),
                false => model_spec::unknown_among(model, &trainable_names()),
            }));
        };
        self.refuse_changes(model)?;
        check_executable(&config).map_err(|why| {
            Error::Usage(format!(
                "{why:#}: '{model}' can only be predicted (predict `model` {model} `hardware` h100-sxm); take one of {}",
                trainable_names().join(", ")
            ))
        })?;
        Ok(config)
    }

    /// Checks that no size is to be changed.
    fn refuse_changes(&self, model: impl std::fmt::Display) -> Result<(), Error> {
        let changes = [
            (self.blocks, "blocks"),
            (self.heads, "heads"),
            (self.channels, "channels"),
            (self.vocabulary, "vocabulary"),
            (self.max_sequence, "max-sequence"),
        ];
        match changes.iter().find(|(change, _)| change.is_some()) {
            Some((_, option)) => Err(Error::Usage(format!(
                "`{option}` changes a GPT-2 by name, and {model} has all sizes; leave it out"
            ))),
            None => Ok(()),
        }
    }

    pub(crate) fn parameters(&self, config: &Config) -> Result<Parameters, Error> {
        Ok(match self.source() {
            ModelSource::LlmC(path) => {
                let parameters = Parameters::read(&path)?;
                parameters.check_finite().with_context(|| format!("reading the checkpoint {}", path.display()))?;
                parameters
            }
            ModelSource::Folder(path) => checkpoint::read_folder(&path, config)?,
            ModelSource::Named | ModelSource::Described(_) => Parameters::random(config, self.seed)?,
        })
    }
}

/// Returns the attention heads of a GPT-2 with this number of channels: the preset's if they divide them, otherwise heads of 64
/// channels, otherwise the most heads that divide them, up to the preset's.
fn usual_heads(preset: &gpt2::Config, channels: Option<usize>) -> usize {
    const SIZE: usize = 64;
    match channels {
        Some(channels) if channels > 0 && !channels.is_multiple_of(preset.heads) => {
            let most = (1..=preset.heads).rev().find(|heads| channels.is_multiple_of(*heads)).unwrap_or(1);
            if channels.is_multiple_of(SIZE) { channels / SIZE } else { most }
        }
        _ => preset.heads,
    }
}

/// Names of the models that can be trained.
fn trainable_names() -> Vec<String> {
    let can_be_trained =
        |name: &String| model_spec::transformer_named(name).is_some_and(|config| check_executable(&config).is_ok());
    model_spec::names().filter(can_be_trained).collect()
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
    let keys = huggingface::keys(&text).map_err(|error| wrong(error.to_string()))?;
    Ok((keys, described))
}
