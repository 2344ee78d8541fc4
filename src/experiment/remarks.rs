//! What a training does not do as the origin of its model did.

use super::{Error, TrainingConfig};
use crate::model::{Config, Tokenizer, Tokens, dropouts};
use crate::model_spec::transformer::Style;

/// Vocabulary of GPT-2's tokenizer.
const GPT2_VOCABULARY: usize = 50_257;
/// Token ids of bytes, with the end of a text.
const BYTE_IDS: usize = 257;

impl TrainingConfig {
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
        let asked = asked.filter(|_| !std::path::Path::new(&self.model).is_dir());
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
             model's tokenizer, in 32-bit ids, and give it with --data",
            config.vocabulary
        ))
    }
}
