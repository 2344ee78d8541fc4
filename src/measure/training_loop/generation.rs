//! Text from a trained model.

use super::config::SavedRun;
use super::sampling::Sampling;
use crate::experiment::{Error, TrainingConfig};
use pipesim_train::checkpoint::{Checkpoint, NotFound, STATE};
use pipesim_train::model::{Parameters, Tokenizer};
use std::path::Path;

/// Vocabulary of GPT-2's tokenizer, whose last id ends a text, and of bytes.
const VOCABULARIES: [(Tokenizer, usize); 2] = [(Tokenizer::Gpt2, 50_257), (Tokenizer::Bytes, 257)];

/// A trained model that continues texts.
pub struct TextModel {
    parameters: Parameters,
    tokenizer: Tokenizer,
    /// Longest sequence that it was trained on, in tokens.
    longest: usize,
}

impl TextModel {
    /// Reads a checkpoint, the newest one of a run, or a folder of Hugging Face's. `tokenizer` replaces the model's.
    ///
    /// # Errors
    /// There is none, it is damaged, or its tokenizer is not known.
    pub fn read(path: &Path, tokenizer: Option<Tokenizer>) -> Result<TextModel, Error> {
        let (training, longest) = match Checkpoint::find(path) {
            Ok(checkpoint) => {
                let saved: SavedRun = checkpoint.json(STATE)?;
                saved.check()?;
                (saved.training_config(&checkpoint.path), Some(saved.config.sequence_tokens))
            }
            Err(NotFound::Absent(_)) if path.join("config.json").is_file() => {
                let model = path.to_string_lossy().into_owned();
                (TrainingConfig { model, ..TrainingConfig::default() }, None)
            }
            Err(NotFound::Absent(why)) => return Err(Error::Usage(why)),
            Err(NotFound::Damaged(why)) => return Err(why.into()),
        };
        let config = training.config()?;
        let own = match longest {
            Some(_) => training.tokenizer(&config),
            None => VOCABULARIES.iter().find(|(_, size)| *size == config.vocabulary).map(|(tokenizer, _)| *tokenizer),
        };
        let tokenizer = tokenizer.or(own).ok_or_else(|| {
            Error::Usage(format!(
                "expected a model with a known tokenizer, found one of {} token ids; say `tokenizer`",
                config.vocabulary
            ))
        })?;
        let limit = training.longest_sequence(&config)?.map(|(limit, _)| limit);
        let longest = longest.into_iter().chain(limit).min().unwrap_or(1024).max(2);
        Ok(TextModel { parameters: training.parameters(&config)?, tokenizer, longest })
    }

    /// Continues `prompt`, or begins a text, by `count` tokens. Of a text that is longer than the model's sequences, the last half of
    /// a sequence is continued.
    ///
    /// # Errors
    /// The prompt has ids that the model does not have.
    pub fn continued(&self, prompt: Option<&str>, count: usize, sampling: Sampling) -> Result<String, Error> {
        let vocabulary = self.parameters.config.vocabulary;
        let begin =
            VOCABULARIES.iter().find(|(tokenizer, _)| *tokenizer == self.tokenizer).map_or(0, |(_, size)| size - 1);
        let begin = if begin < vocabulary { begin as u32 } else { u32::from(b'\n') };
        let mut ids = match prompt.filter(|text| !text.is_empty()) {
            Some(text) => self.tokenizer.encode(text),
            None => vec![begin],
        };
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(Error::Usage(format!(
                "expected a `prompt` of token ids below the vocabulary's {vocabulary}, found {id}; choose another text"
            )));
        }
        let (before, mut stream) = (ids.len(), 0);
        while ids.len() < before + count {
            let kept = if ids.len() >= self.longest { self.longest / 2 } else { ids.len() };
            let window = &ids[ids.len() - kept..];
            let more = (self.longest - kept).min(before + count - ids.len());
            let found = sampling.sample(&self.parameters, window, more, stream)?;
            ids.extend(found);
            stream += 1;
        }
        let shown = if prompt.is_some() { 0 } else { before };
        Ok(self.tokenizer.decode(&ids[shown..]))
    }
}
