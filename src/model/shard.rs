//! What one device owns of the model, and its pipeline ops: forward, backward for the input, backward for the weights.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::block;
use super::head;
use super::lap::{Laps, Part, PartTiming};
use super::parameters::Parameters;
use super::pool::Pool;
use super::stages::{check_held, check_sizes};
use super::stash::{self, Stash, find};
use crate::model_spec::gpt2::{self, BLOCK_TENSORS, LNF_TENSORS, WPE, WTE};
use crate::model_spec::transformer::Config;
use crate::model_spec::{self, BLOCK, EMBEDDING, HEAD, ModelSpec, TiedSides};
use crate::op::Kind;
use cpu_kernels::Shape;
use cpu_kernels::embedding;
use cpu_kernels::optimizer::ParameterGroup;

/// A stage on a CPU.
type Stage = stash::Stage<ParameterGroup, Vec<f32>, Vec<u32>>;

/// The input of a stage.
#[derive(Clone, Copy, Debug)]
pub enum Signal<'a> {
    /// Of the stage with the embedding: token ids (B, T).
    Tokens(&'a [u32]),
    /// Of all others: the hidden state (B, T, C).
    Hidden(&'a [f32]),
}

/// Everything that one device owns: parameters, gradients and AdamW's moments of its stages (the tied token embedding
/// once, even if embedding and head are both here), and what ops leave behind for each stage and micro-batch.
///
/// The token embedding's gradient has two parts, the embedding's and the head's, kept apart and added last: the result has
/// the same bits whether they were computed here or on two devices.
pub struct Shard {
    pub(super) config: Config,
    pub(super) spec: ModelSpec,
    shape: Shape,
    microbatches: usize,
    pub(super) stages: BTreeMap<u32, Stage>,
    /// Token embedding (Vp, C), the logits' weights too; its gradients are the embedding's part.
    pub(super) wte: Option<ParameterGroup>,
    /// The head's part of the token embedding's gradient.
    pub(super) wte_head_gradients: Vec<f32>,
    /// Which sides of the tied token embedding are here.
    pub(super) tied: TiedSides,
    /// Where one side is: whether the other's gradient has arrived this step.
    pub(super) tied_received: bool,
    pub(super) wpe: Option<ParameterGroup>,
    pub(super) lnf: Option<ParameterGroup>,
    losses: Vec<f32>,
    keep_logits: bool,
    logits: Vec<Option<Vec<f32>>>,
    pool: Pool,
    held_bytes: usize,
    peak_held_bytes: usize,
}

impl Shard {
    /// Copies what `stages` hold out of `parameters`. A micro-batch has `sequences` sequences of `tokens` tokens, a step
    /// `microbatches` of them: the loss is the mean over all tokens of the step.
    pub fn new(
        parameters: &Parameters,
        stages: &[(u32, model_spec::Stage)],
        sequences: usize,
        tokens: usize,
        microbatches: usize,
    ) -> Result<Shard> {
        let config = parameters.config;
        check_sizes(&config, [sequences, tokens, microbatches])?;
        check_held(&config, stages)?;
        ensure!(gpt2::Config::of(&config).is_some(), "expected a GPT-2, found another model: take one of its sizes");
        let spec = config.spec();
        let filled = |tensors: Range<usize>, layer: Option<usize>| {
            // each layer's weight with its bias behind it; embeddings have none
            let lengths: Vec<usize> = tensors.clone().map(|tensor| parameters.part(tensor, layer).len()).collect();
            let layers = lengths.chunks(2).map(|layer| [layer[0], layer.get(1).copied().unwrap_or(0)]);
            let mut group = ParameterGroup::new(layers.collect());
            parameters.copy_parts(tensors, layer, &mut group.values);
            group
        };
        let tied = spec.outline().tied_sides(stages.iter().map(|(_, stage)| stage));
        let has = |part| stages.iter().any(|(_, stage)| stage.has(part));
        let (embedding, head) = (has(EMBEDDING), has(HEAD));
        let stages = stages.iter().map(|(id, layers)| {
            let blocks = layers.run(BLOCK).map(|index| filled(BLOCK_TENSORS, Some(index))).collect();
            (*id, Stage::new(layers.clone(), blocks, microbatches))
        });
        let stages = stages.collect();
        let wte = (embedding || head).then(|| filled(WTE..WTE + 1, None));
        Ok(Shard {
            config,
            spec,
            shape: Shape { sequences, tokens, heads: config.heads, channels: config.channels },
            microbatches,
            stages,
            wte_head_gradients: vec![0.0; wte.as_ref().map_or(0, |wte| wte.values.len())],
            wte,
            tied,
            tied_received: false,
            wpe: embedding.then(|| filled(WPE..WPE + 1, None)),
            lnf: head.then(|| filled(LNF_TENSORS, None)),
            losses: vec![0.0; if head { microbatches } else { 0 }],
            keep_logits: false,
            logits: vec![None; if head { microbatches } else { 0 }],
            pool: Pool::default(),
            held_bytes: 0,
            peak_held_bytes: 0,
        })
    }

    #[cfg(feature = "internals")]
    /// Elements of a hidden state, B * T * C: what stages hand to each other.
    pub fn hidden_len(&self) -> usize {
        self.shape.hidden()
    }

    /// Forward of `stage` for `microbatch`. A stage without the head fills `output` (B, T, C); the one with it needs
    /// `targets` (B, T) and keeps the loss.
    pub fn forward(
        &mut self,
        stage: u32,
        microbatch: u32,
        input: Signal,
        targets: Option<&[u32]>,
        output: Option<&mut [f32]>,
        laps: &mut Vec<PartTiming>,
    ) -> Result<()> {
        let (shape, vocabulary) = (self.shape, self.config.vocabulary);
        let call = || format!("forward of stage {stage}, micro-batch {microbatch}");
        let entry = find(&mut self.stages, stage, microbatch).with_context(call)?;
        let index = microbatch as usize;
        if !matches!(entry.stashes[index], Stash::Empty) {
            bail!("{}: expected its first, found a second before the backward: run the backward first", call());
        }
        check_length(output.as_deref().map(<[f32]>::len), !entry.layers.has(HEAD), shape.hidden(), "output")
            .with_context(call)?;
        check_length(targets.map(<[u32]>::len), entry.layers.has(HEAD), shape.rows(), "targets").with_context(call)?;
        check_tokens(targets.unwrap_or_default(), vocabulary).with_context(call)?;

        let mut laps = Laps::start(laps, Kind::F);
        let mut hidden;
        let tokens = match input {
            Signal::Tokens(tokens) => {
                check_length(Some(tokens.len()), entry.layers.has(EMBEDDING), shape.rows(), "tokens")
                    .with_context(call)?;
                check_tokens(tokens, vocabulary).with_context(call)?;
                hidden = self.pool.take(shape.hidden());
                let (Some(wte), Some(wpe)) = (&self.wte, &self.wpe) else { unreachable!("the embedding is here") };
                embedding::forward(&mut hidden, tokens, &wte.values, &wpe.values, shape.tokens, shape.channels);
                laps.end(Part::Embedding);
                Some(tokens.to_vec())
            }
            Signal::Hidden(state) => {
                let length = Some(state.len());
                check_length(length, !entry.layers.has(EMBEDDING), shape.hidden(), "hidden state")
                    .with_context(call)?;
                hidden = self.pool.take(shape.hidden());
                hidden.copy_from_slice(state);
                None
            }
        };
        let mut blocks = Vec::with_capacity(entry.blocks.len());
        for group in &entry.blocks {
            let (stash, next) = block::forward(group, &shape, hidden, &mut self.pool);
            blocks.push(stash);
            hidden = next;
            laps.end(Part::Block);
        }
        let head = if let Some(targets) = targets {
            let context = head_context(&shape, vocabulary, &self.lnf, &self.wte);
            let weight = 1.0 / (self.microbatches * shape.rows()) as f32;
            let keep = self.keep_logits.then(|| self.logits[index].get_or_insert_default());
            let (stash, loss) = head::forward(&context, hidden, targets, weight, keep, &mut self.pool);
            self.losses[index] = loss;
            laps.end(Part::Head);
            Some(stash)
        } else {
            output.into_iter().for_each(|output| output.copy_from_slice(&hidden));
            self.pool.give([hidden]);
            None
        };
        entry.stashes[index] = Stash::Forward((tokens, blocks, head));
        self.held_bytes += bytes(&entry.stashes[index]);
        self.peak_held_bytes = self.peak_held_bytes.max(self.held_bytes);
        Ok(())
    }

    /// Backward for the input. `gradient` (B, T, C) is that of the stage's output, absent for the stage with the head;
    /// `output` receives the gradient of the stage's input, absent for the stage with the embedding.
    pub fn backward_input(
        &mut self,
        stage: u32,
        microbatch: u32,
        gradient: Option<&[f32]>,
        output: Option<&mut [f32]>,
        laps: &mut Vec<PartTiming>,
    ) -> Result<()> {
        let (shape, vocabulary) = (self.shape, self.config.vocabulary);
        let call = || format!("backward for the input of stage {stage}, micro-batch {microbatch}");
        let entry = find(&mut self.stages, stage, microbatch).with_context(call)?;
        let layers = &entry.layers;
        check_length(gradient.map(<[f32]>::len), !layers.has(HEAD), shape.hidden(), "gradient").with_context(call)?;
        check_length(output.as_deref().map(<[f32]>::len), !layers.has(EMBEDDING), shape.hidden(), "output")
            .with_context(call)?;
        let place = &mut entry.stashes[microbatch as usize];
        let held = bytes(place);
        let (tokens, blocks, head) = place.take_forward().map_err(|reason| anyhow!("{}: {reason}", call()))?;
        self.held_bytes -= held;

        let mut laps = Laps::start(laps, Kind::I);
        let mut hidden;
        let head = match head {
            Some(stash) => {
                let context = head_context(&shape, vocabulary, &self.lnf, &self.wte);
                let (stash, gradient) = head::backward_input(&context, stash, &mut self.pool);
                hidden = gradient;
                laps.end(Part::Head);
                Some(stash)
            }
            None => {
                hidden = self.pool.take(shape.hidden());
                gradient.into_iter().for_each(|gradient| hidden.copy_from_slice(gradient));
                None
            }
        };
        let mut left = Vec::with_capacity(blocks.len());
        for (group, stash) in entry.blocks.iter().zip(blocks).rev() {
            let (stash, next) = block::backward_input(group, &shape, stash, hidden, &mut self.pool);
            left.push(stash);
            hidden = next;
            laps.end(Part::Block);
        }
        let tokens = match tokens {
            Some(tokens) => {
                laps.end(Part::Embedding);
                Some((tokens, hidden))
            }
            None => {
                output.into_iter().for_each(|output| output.copy_from_slice(&hidden));
                self.pool.give([hidden]);
                None
            }
        };
        *place = Stash::Weight((tokens, left, head));
        self.held_bytes += bytes(place);
        self.peak_held_bytes = self.peak_held_bytes.max(self.held_bytes);
        Ok(())
    }

    /// Backward for the weights: adds this micro-batch's share to the gradients of the stage's parameters.
    pub fn backward_weight(&mut self, stage: u32, microbatch: u32, laps: &mut Vec<PartTiming>) -> Result<()> {
        let (shape, vocabulary) = (self.shape, self.config.vocabulary);
        let call = || format!("backward for the weights of stage {stage}, micro-batch {microbatch}");
        let entry = find(&mut self.stages, stage, microbatch).with_context(call)?;
        let place = &mut entry.stashes[microbatch as usize];
        let held = bytes(place);
        let (tokens, blocks, head) = place.take_weight().map_err(|reason| anyhow!("{}: {reason}", call()))?;
        self.held_bytes -= held;

        let mut laps = Laps::start(laps, Kind::W);
        if let (Some(stash), Some(lnf)) = (head, &mut self.lnf) {
            head::backward_weight(lnf, &mut self.wte_head_gradients, &shape, vocabulary, stash, &mut self.pool);
            laps.end(Part::Head);
        }
        for (group, stash) in entry.blocks.iter_mut().rev().zip(blocks) {
            block::backward_weight(group, stash, &mut self.pool);
            laps.end(Part::Block);
        }
        if let (Some((tokens, gradient)), Some(wte), Some(wpe)) = (tokens, &mut self.wte, &mut self.wpe) {
            let (wte, wpe) = (&mut wte.gradients, &mut wpe.gradients);
            embedding::backward_weight(wte, wpe, &tokens, &gradient, shape.tokens, shape.channels);
            self.pool.give([gradient]);
            laps.end(Part::Embedding);
        }
        Ok(())
    }

    /// Loss of each micro-batch's last forward, the mean over its tokens; empty where the head is not.
    pub fn losses(&self) -> &[f32] {
        &self.losses
    }

    /// Whether forwards keep a copy of the logits; they do not unless told to.
    pub fn keep_logits(&mut self, keep: bool) {
        self.keep_logits = keep;
        if !keep {
            self.logits.fill(None);
        }
    }

    /// Logits (B, T, V) of a micro-batch's last forward, where the head is and they were kept.
    pub fn logits(&self, microbatch: u32) -> Option<&[f32]> {
        self.logits.get(microbatch as usize)?.as_deref()
    }

    #[cfg(feature = "internals")]
    /// Bytes that finished ops hold for those still to come.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The most that [`Shard::held_bytes`] has been.
    pub fn peak_held_bytes(&self) -> usize {
        self.peak_held_bytes
    }

    /// Drops what the ops of a step that was given up left behind.
    pub(super) fn drop_stashes(&mut self) {
        for place in self.stages.values_mut().flat_map(|stage| &mut stage.stashes) {
            self.pool.give(place.clear());
        }
        self.held_bytes = 0;
    }

    /// The number in the model of each block here, with its parameters.
    pub(super) fn numbered_blocks(&self) -> impl Iterator<Item = (usize, &ParameterGroup)> {
        self.stages.values().flat_map(|stage| stage.layers.run(BLOCK).zip(&stage.blocks))
    }
}

/// Bytes of all that is in a stash.
fn bytes(stash: &Stash<Vec<f32>, Vec<u32>>) -> usize {
    stash.bytes(|buffer| size_of_val(&buffer[..]), |ids| size_of_val(&ids[..]))
}

fn head_context<'a>(
    shape: &'a Shape,
    vocabulary: usize,
    lnf: &'a Option<ParameterGroup>,
    wte: &'a Option<ParameterGroup>,
) -> head::Context<'a> {
    let (Some(lnf), Some(wte)) = (lnf, wte) else { unreachable!("the head is here") };
    head::Context { shape, vocabulary, lnf, wte: &wte.values }
}

/// Whether something is there exactly when it should be, and of the right length.
fn check_length(found: Option<usize>, wanted: bool, expected: usize, what: &str) -> Result<()> {
    match (found, wanted) {
        (Some(length), true) => {
            ensure!(
                length == expected,
                "expected {what} of {expected} elements, found {length}: pass a whole micro-batch"
            );
        }
        (None, true) => bail!("expected {what} of {expected} elements, found none: pass it"),
        (Some(_), false) => bail!("expected no {what} for a stage with these layers, found one: leave it out"),
        (None, false) => {}
    }
    Ok(())
}

fn check_tokens(tokens: &[u32], vocabulary: usize) -> Result<()> {
    match tokens.iter().find(|&&token| token as usize >= vocabulary) {
        Some(token) => bail!(
            "expected token ids below the vocabulary's {vocabulary}, found {token}: use data or a tokenizer that fits the model"
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::STORAGE;
    use super::*;
    use crate::model_spec::MicroBatch;

    #[test]
    fn ops_leave_behind_what_the_anatomy_says() {
        let config = gpt2::Config { max_sequence: 16, vocabulary: 37, layers: 3, heads: 3, channels: 24 }.transformer();
        let parameters = Parameters::random(&config, 1).unwrap();
        let stages = [(0, config.spec().split(1, None).unwrap().remove(0))];
        let tokens: Vec<u32> = (0..32).collect();
        for backward in [false, true] {
            let mut shard = Shard::new(&parameters, &stages, 2, 16, 1).unwrap();
            shard.forward(0, 0, Signal::Tokens(&tokens), Some(&tokens), None, &mut Vec::new()).unwrap();
            if backward {
                shard.backward_input(0, 0, None, None, &mut Vec::new()).unwrap();
            }
            let kind = if backward { Kind::I } else { Kind::F };
            let micro = MicroBatch { sequences: 2, tokens: 16 };
            let left = config.spec().left(&stages[0].1, kind, micro, &STORAGE);
            assert_eq!(shard.held_bytes(), left, "backward: {backward}");
        }
    }
}
