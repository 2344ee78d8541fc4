//! Description of a training: model, data, optimizer and batches.

use super::Error;
use pipesim_exec::Fault;
use pipesim_models::model_spec::transformer::Style;
use pipesim_schedule::mesh::Mesh;
use pipesim_system::{free_memory_bytes, in_words};
use pipesim_train::model::{AdamW, Config, Tokenizer, Tokens, dropouts};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default tokens per sequence: with it, `run` takes well under a minute on a laptop.
pub(super) const DEFAULT_SEQUENCE: usize = 32;

/// Vocabulary of GPT-2's tokenizer.
const GPT2_VOCABULARY: usize = 50_257;
/// Token ids of bytes, with the end of a text.
const BYTE_IDS: usize = 257;

/// Largest time-out.
const LONGEST: Duration = Duration::from_secs(1_000_000);

/// Model, data, optimizer and batches of a training.
#[derive(Clone, Debug)]
pub struct TrainingConfig {
    /// Name of the sizes, `tiny` to `gpt2-xl`, or path of a `config.json`: parameters are initialised at random. Or path of a folder
    /// of Hugging Face's, with weights.
    pub model: String,
    /// Checkpoint in llm.c's format to start from instead.
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
    /// Token file in llm.c's format, or any text file; `None` for the built-in text.
    pub data: Option<PathBuf>,
    /// Tokenizer of a text file; `None` for GPT-2's if the vocabulary is GPT-2's, otherwise bytes.
    pub tokenizer: Option<Tokenizer>,
    /// Blocks of each stage; `None` for an even split.
    pub layers: Option<Vec<usize>>,
    /// Data-parallel replicas and tensor-parallel ranks.
    pub mesh: Mesh,
    /// Sequences per step, split into the micro-batches of all replicas; `None` for one per micro-batch.
    pub batch: Option<u32>,
    /// Tokens per sequence; `None` for 32, or the model's maximum if that is less.
    pub sequence_tokens: Option<usize>,
    /// Options of the optimizer.
    pub adamw: AdamW,
    /// Gradients are clipped to this norm; `None` for no clipping.
    pub clip: Option<f32>,
    /// Seed of the random initialisation.
    pub seed: u64,
    /// Train on the same batch every step.
    pub repeat_batch: bool,
    /// Longest wait of a device for its data; `None` for 30 s, or 20 expected steps if that is more.
    pub timeout: Option<Duration>,
    /// A fault to inject, for tests.
    pub fault: Option<Fault>,
}

impl Default for TrainingConfig {
    fn default() -> TrainingConfig {
        TrainingConfig {
            model: "tiny".to_string(),
            checkpoint: None,
            blocks: None,
            heads: None,
            channels: None,
            vocabulary: None,
            max_sequence: None,
            data: None,
            tokenizer: None,
            layers: None,
            mesh: Mesh::default(),
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

impl TrainingConfig {
    /// Returns the longest wait of a device: as given, or at least 30 s and 20 steps of `step_seconds`.
    pub(super) fn timeout(&self, step_seconds: f64) -> Duration {
        let expected = || Duration::try_from_secs_f64((20.0 * step_seconds).max(30.0)).unwrap_or(LONGEST);
        self.timeout.unwrap_or_else(expected).min(LONGEST)
    }

    /// Returns the model's sizes, before anything is allocated for it; they fit into free memory.
    pub(crate) fn config(&self) -> Result<Config, Error> {
        let config = self.sizes()?;
        require_memory(&config)?;
        Ok(config)
    }

    /// Returns how texts become tokens of this model, and tokens text; `None` if that is not known.
    pub fn tokenizer(&self, config: &Config) -> Option<Tokenizer> {
        let Some(path) = &self.data else { return Some(Tokenizer::Bytes) };
        let is_text = !Tokens::is_token_file(path);
        match (self.tokenizer, config.vocabulary) {
            (Some(tokenizer), _) => Some(tokenizer),
            (None, 50257..) if is_text => Some(Tokenizer::Gpt2),
            (None, 50257) => Some(Tokenizer::Gpt2),
            (None, vocabulary) if is_text || vocabulary <= 257 => Some(Tokenizer::Bytes),
            (None, _) => None,
        }
    }

    /// Returns remarks on tokens that are not the model's own, on dropout and on initial weights.
    ///
    /// # Errors
    /// The model's description cannot be read.
    pub fn remarks(&self, config: &Config) -> Result<Vec<String>, Error> {
        let dropouts = dropouts(&self.config_keys()?);
        let dropouts = (!dropouts.is_empty())
            .then(|| format!("the model's config.json has {}; training here has no dropout", dropouts.join(", ")));
        Ok(self.tokens_remark(config).into_iter().chain(dropouts).chain(self.initial_remark()?).collect())
    }

    /// A remark on random weights that are not as small as the model's description says.
    fn initial_remark(&self) -> Result<Option<String>, Error> {
        let keys = self.config_keys()?;
        let asked = keys.get("initializer_range").filter(|range| range.as_f64() != Some(0.02) && !range.is_null());
        let asked = asked.filter(|_| !Path::new(&self.model).is_dir());
        Ok(asked.map(|range| {
            format!(
                "the model's config.json has initializer_range {range}; random weights here have a deviation of 0.02"
            )
        }))
    }

    /// A remark on a text that is not read with the model's own tokenizer.
    fn tokens_remark(&self, config: &Config) -> Option<String> {
        let is_own = !self.has_own_tokens(config) || config.vocabulary <= BYTE_IDS;
        let is_asked_for =
            self.tokenizer.is_some() || self.data.as_ref().is_some_and(|path| Tokens::is_token_file(path));
        if is_own || is_asked_for {
            return None;
        }
        let read = match self.tokenizer(config).unwrap_or_default() {
            Tokenizer::Gpt2 if config.style == Style::Gpt && config.vocabulary == GPT2_VOCABULARY => return None,
            Tokenizer::Gpt2 => "with GPT-2's tokenizer",
            Tokenizer::Bytes => "as bytes, 256 ids",
        };
        Some(format!(
            "the text is read {read}, and the model has {} token ids of its own; to use them, write a token file of llm.c's with the \
             model's tokenizer, in 32-bit ids, and give it with `data`",
            config.vocabulary
        ))
    }

    pub(super) fn tokens(&self, config: &Config) -> Result<Tokens, Error> {
        match &self.data {
            Some(path) if !path.is_file() => {
                let (place, found) = (path.display(), not_a_file(path));
                Err(Error::Usage(format!("expected a data file at {place}, found {found}")))
            }
            Some(path) if self.tokenizer.is_some() && Tokens::is_token_file(path) => Err(Error::Usage(format!(
                "`tokenizer` says how a text becomes tokens, and {} holds tokens; leave it out",
                path.display()
            ))),
            Some(path) => {
                require_room(path)?;
                Ok(Tokens::read(path, self.tokenizer(config).unwrap_or_default())?)
            }
            None => Ok(Tokens::embedded()),
        }
    }
}

/// Checks that a data file is not too long and fits into memory.
fn require_room(path: &Path) -> Result<(), Error> {
    let length = path.metadata().map_or(0, |found| found.len());
    let needed = length.saturating_mul(5); // the text, and four bytes per token
    let (shown, cut) = (path.display(), "use a part of it, as head -c 1G FILE writes");
    if length > Tokens::MOST_BYTES {
        let (most, found) = (in_words(Tokens::MOST_BYTES), in_words(length));
        return Err(Error::Usage(format!("expected at most {most} of data at {shown}, found {found}; {cut}")));
    }
    match free_memory_bytes() {
        Some(free) if needed > free => {
            let (needed, free) = (in_words(needed), in_words(free));
            Err(Error::Environment(format!("expected {needed} of memory to read {shown}, found {free} free; {cut}")))
        }
        _ => Ok(()),
    }
}

/// Describes what is at `path` instead of a plain file, and what to do.
fn not_a_file(path: &Path) -> &'static str {
    match path.metadata() {
        Ok(found) if found.is_dir() => "a folder; name a file in it",
        Ok(_) => "a pipe or a device, which every rank would have to read; copy it to a file",
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            "a file that may not be read; change its permissions"
        }
        Err(_) => "none; check the path, or leave `data` out for the text that comes with the program",
    }
}

/// Checks that parameters, gradients and moments of the model fit into free memory.
fn require_memory(config: &Config) -> Result<(), Error> {
    let bytes = (config.parameter_count() as u64).saturating_mul(4 * 5);
    match free_memory_bytes() {
        Some(free) if bytes > free => Err(Error::Environment(format!(
            "expected {} of memory for the model's {} parameters in float32 with gradients and moments, found {} free; choose a \
             smaller `model`",
            in_words(bytes),
            config.parameter_count(),
            in_words(free)
        ))),
        _ => Ok(()),
    }
}
