//! The logits of one sequence that grows, from the whole model on the calling thread. A token that comes is a slice of its own behind
//! the slice of all tokens before it, whose keys and values are kept.

use super::module::StageModule;
use super::parameters::Parameters;
use crate::compute::cpu::Cpu;
use crate::compute::{Alone, Collective, Compute as _, Stopwatch};
use anyhow::{Context, Error, Result, ensure};
use pipesim_schedule::op::{Kind, Op};

/// A whole model that only computes logits.
pub struct WholeModel<'a> {
    parameters: &'a Parameters,
    /// Longest sequence.
    longest: usize,
    sequence: Option<Sequence>,
    /// Number of tokens that forwards have computed.
    forwarded: usize,
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
        Ok(WholeModel { parameters, longest, sequence: None, forwarded: 0 })
    }

    /// Returns the logits (V) of the token that follows the last of `ids`. If `ids` begin with the ids of the last call, only
    /// the tokens after them are computed.
    ///
    /// # Errors
    /// There are no ids, too many, or one that is not in the vocabulary.
    pub fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let found = ids.len();
        ensure!((1..=self.longest).contains(&found), "expected 1 to {} tokens, found {found}", self.longest);
        let is_beginning = |begun: &Sequence| found > begun.ids.len() && ids.starts_with(&begun.ids);
        let grown = self.sequence.take().filter(is_beginning);
        let mut sequence = match grown {
            Some(sequence) => sequence,
            None => Sequence::new(self.parameters, self.longest)?,
        };
        let before = sequence.ids.len();
        let logits = sequence.grow(ids)?;
        self.forwarded += sequence.ids.len() - before;
        self.sequence = Some(sequence);
        Ok(logits)
    }

    /// Number of tokens that forwards have computed so far.
    pub fn forwarded(&self) -> usize {
        self.forwarded
    }
}

/// A sequence, with the keys and values of its tokens.
struct Sequence {
    module: StageModule<Cpu>,
    longest: usize,
    /// The tokens that are computed.
    ids: Vec<u32>,
}

impl Sequence {
    /// Creates a sequence of up to `longest` tokens. No token is computed yet.
    fn new(parameters: &Parameters, longest: usize) -> Result<Sequence> {
        let stages = parameters.config.spec().split(1, None)?;
        let stages: Vec<_> = stages.into_iter().map(|stage| (0, stage)).collect();
        let slices = if longest > 1 { vec![longest - 1, 1] } else { Vec::new() };
        let alone: Box<dyn Collective> = Box::new(Alone);
        let mut module = StageModule::on_cpu_slices(parameters, &stages, [1, longest, 1], &slices, alone)?;
        (module.forwards_only, module.grows) = (true, true);
        Ok(Sequence { module, longest, ids: Vec::new() })
    }

    /// Computes the tokens of `ids` after those that it has: the first ones together, others one by one. Returns the logits after the
    /// last one.
    fn grow(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let mut padded = ids.to_vec();
        padded.resize(self.longest, 0);
        let mut slice = 0;
        while self.ids.len() < ids.len() {
            let before = self.ids.len();
            let slices = if before == 0 { vec![ids.len()] } else { vec![before, 1] };
            slice = slices.len() as u32 - 1;
            let end: usize = slices.iter().sum();
            self.module.compute.cut(slices);
            self.module.compute.keep_logits(end == ids.len());
            self.module.begin(&padded, &padded)?;
            let op = Op::of_unit(Kind::F, 0, slice, self.module.slices as u32);
            self.module.run(op, None, None, &mut Stopwatch::default())?;
            if slice > 0 {
                self.join()?;
            }
            self.ids.extend(&ids[before..end]);
        }
        let rows = self.module.compute.logits(slice).context("expected logits")?;
        let logits = rows[rows.len() - self.module.config.vocabulary..].to_vec();
        self.module.compute.keep_logits(false);
        Ok(logits)
    }

    /// Adds what the last token left to what those before it left.
    fn join(&mut self) -> Result<()> {
        for stage in self.module.stages.values_mut() {
            let [before, last] = &mut stage.stashes[..] else { continue };
            let left = before.forward_mut().map_err(Error::msg)?.iter_mut().flatten();
            let of_last = last.forward().map_err(Error::msg)?.iter().flatten();
            left.zip(of_last).for_each(|(left, last)| left.append_keys(last));
            last.clear().for_each(|buffer| self.module.compute.give(buffer));
        }
        Ok(())
    }
}
