//! The logits of one sequence, from the whole model on the calling thread.

use super::module::StageModule;
use super::parameters::Parameters;
use crate::compute::cpu::Cpu;
use crate::compute::{Compute as _, Stopwatch};
use anyhow::{Context, Result, ensure};

/// Sequences are padded to a multiple of this, so that growing ones seldom need another layout of buffers.
const STRIDE: usize = 32;

/// A whole model that only computes logits.
pub struct WholeModel<'a> {
    parameters: &'a Parameters,
    /// Longest sequence.
    longest: usize,
    /// The model for sequences of this length.
    module: Option<(usize, StageModule<Cpu>)>,
}

impl<'a> WholeModel<'a> {
    /// Creates a model for sequences of up to `longest` tokens.
    ///
    /// # Errors
    /// The model has fewer positions.
    pub fn new(parameters: &'a Parameters, longest: usize) -> Result<WholeModel<'a>> {
        let positions = parameters.config.longest_sequence().unwrap_or(longest);
        ensure!(
            longest <= positions,
            "expected a sequence of at most {positions} tokens, the model's position table, found {longest}: sample fewer tokens"
        );
        Ok(WholeModel { parameters, longest, module: None })
    }

    /// Returns the logits (V) after the last of `ids`, those of the token that follows.
    ///
    /// # Errors
    /// There are no ids, too many, or one that is not in the vocabulary.
    pub fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let found = ids.len();
        ensure!((1..=self.longest).contains(&found), "expected 1 to {} tokens, found {found}", self.longest);
        let tokens = found.next_multiple_of(STRIDE).min(self.longest);
        if self.module.as_ref().is_none_or(|(length, _)| *length != tokens) {
            self.module = None; // before the next one takes as much memory
            let stages = self.parameters.config.spec().split(1, None)?;
            let stages: Vec<_> = stages.into_iter().map(|stage| (0, stage)).collect();
            let mut module = StageModule::on_cpu(self.parameters, &stages, [1, tokens, 1])?;
            module.compute.keep_logits(true);
            self.module = Some((tokens, module));
        }
        let (_, module) = self.module.as_mut().context("expected a model")?;
        // What follows a token does not change its logits.
        let mut padded = ids.to_vec();
        padded.resize(tokens, 0);
        module.begin(&padded, &padded)?;
        module.forward(0, 0, None, None, &mut Stopwatch::default())?;
        for stash in module.stages.values_mut().flat_map(|stage| &mut stage.stashes) {
            stash.clear().for_each(|buffer| module.compute.give(buffer));
        }
        module.held.end();
        let logits = module.compute.logits(0).context("expected logits")?;
        let vocabulary = self.parameters.config.vocabulary;
        Ok(logits[(found - 1) * vocabulary..found * vocabulary].to_vec())
    }
}
