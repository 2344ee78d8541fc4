//! Validation on tokens that are not trained on.

use super::Validation;
use crate::experiment::{Error, Training};
use pipesim_exec::{Batch, Session};
use pipesim_train::model::Tokens;
use std::sync::Arc;

/// Number of tokens that a sample continues unless a prompt is given.
pub const PROMPT_TOKENS: usize = 8;

/// The held-out tokens of a run, in batches like the batches of its steps.
pub struct HeldOut {
    batches: Vec<Arc<Batch>>,
    /// The first tokens.
    pub beginning: Vec<u32>,
}

impl HeldOut {
    /// Takes the last tokens from the data of `training`.
    ///
    /// # Errors
    /// What is held out, or what is left, is shorter than a batch.
    pub fn split(training: &mut Training, validation: Validation, microbatches: u32) -> Result<HeldOut, Error> {
        let all = training.tokens.len();
        let count = (all as f64 * validation.held_out).round() as usize;
        let tokens: Tokens = training.tokens.split_off(all - count.min(all));
        let all = (microbatches * training.mesh().data) as usize;
        let (sequences, length) = (training.micro_batch.sequences * all, training.micro_batch.tokens);
        let available = tokens.len().saturating_sub(1) / (sequences * length);
        if available == 0 {
            return Err(Error::Usage(format!(
                "expected at least {} held-out tokens, a batch of {sequences} sequences of {length} tokens and one more, found \
                 {count} of {all}; use longer data, a smaller batch or a larger `held-out` share",
                sequences * length + 1
            )));
        }
        training.batch(0, microbatches).map_err(|short| Error::Usage(format!("without held-out tokens: {short}")))?;
        let batch = |number| {
            let (inputs, targets) = tokens.batch(number, sequences, length)?;
            Ok(Arc::new(Batch { inputs, targets }))
        };
        let batches = (0..available.min(validation.batches as usize)).map(batch).collect::<anyhow::Result<_>>()?;
        Ok(HeldOut { batches, beginning: tokens.ids().iter().take(PROMPT_TOKENS).copied().collect() })
    }

    /// Returns the mean loss over the batches. The session's devices run forwards only.
    ///
    /// # Errors
    /// As [`Session::evaluate`].
    pub fn loss(&self, session: &mut Session) -> Result<Option<f64>, Error> {
        let mut sum = 0.0;
        for batch in &self.batches {
            let Some(loss) = session.evaluate(batch)?.loss else { return Ok(None) };
            sum += loss;
        }
        Ok(Some(sum / self.batches.len() as f64))
    }
}
