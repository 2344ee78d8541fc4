//! Memory of one step on a device: its tokens, with the index by which the token embedding's gradient is summed in order, and
//! what runs once per step. The index of a micro-batch's slice is made when its backward pass is enqueued, while the GPU computes.

use super::operation::{MOST_NORM_GROUPS, TokenIndex};
use crate::compute::Workload;
use anyhow::{Context as _, Result, ensure};
use pipesim_gpu::Gpu;
use pipesim_gpu::api::{Address, Buffer, Event, Pinned};
use std::sync::Arc;

/// The tokens of a step, uploaded by one copy. Two pinned copies alternate, so that the host fills one while the device may
/// still read the other.
pub(super) struct TokenBatch {
    gpu: Arc<Gpu>,
    workload: Workload,
    device: Buffer,
    staging: [(Pinned, Event); 2],
    turn: usize,
    /// Inputs of the step, if they are needed.
    tokens: Vec<u32>,
}

const WORD: usize = size_of::<u32>();

impl TokenBatch {
    /// Allocates memory for the tokens of a step: inputs for the embedding, targets for the head.
    pub(super) fn new(gpu: &Arc<Gpu>, workload: &Workload) -> Result<TokenBatch> {
        let (tokens, units) = (step_tokens(workload), workload.microbatches * workload.slice_count());
        let words =
            if workload.has_embedding { 4 * tokens + units } else { 0 } + if workload.has_head { tokens } else { 0 };
        let staging =
            || -> Result<(Pinned, Event)> { Ok((Pinned::new(gpu.context(), words * WORD)?, gpu.events().untimed()?)) };
        Ok(TokenBatch {
            gpu: gpu.clone(),
            workload: workload.clone(),
            device: Buffer::new(gpu.context(), words * WORD)?,
            staging: [staging()?, staging()?],
            turn: 0,
            tokens: Vec::new(),
        })
    }

    /// Enqueues the upload of a step's tokens behind the uses of the previous step's. Waits only if the host is more than one step
    /// ahead.
    pub(super) fn begin(&mut self, inputs: &[u32], targets: &[u32]) -> Result<()> {
        let Workload { has_embedding, has_head, vocabulary, .. } = self.workload;
        let expected = step_tokens(&self.workload);
        for (what, wanted, tokens) in [("inputs", has_embedding, inputs), ("targets", has_head, targets)] {
            ensure!(
                !wanted || tokens.len() == expected,
                "expected {expected} {what} per step, found {}: pass all micro-batches one after the other",
                tokens.len()
            );
            let beyond = tokens.iter().find(|&&token| wanted && token as usize >= vocabulary);
            ensure!(
                beyond.is_none(),
                "expected {what} below the vocabulary's {}, found {beyond:?}: use data or a tokenizer that fits the model",
                vocabulary
            );
        }
        self.turn = 1 - self.turn;
        self.staging[self.turn].1.synchronize()?;
        self.tokens.clear();
        let mut words = Vec::with_capacity(2 * expected);
        if has_head {
            self.workload.in_order(targets, &mut words);
        }
        if has_embedding {
            self.workload.in_order(inputs, &mut self.tokens);
            words.extend(&self.tokens);
        }
        self.upload(0, &words)
    }

    /// Enqueues the upload of `words` to the word `first`.
    fn upload(&mut self, first: usize, words: &[u32]) -> Result<()> {
        let (pinned, free) = &mut self.staging[self.turn];
        let bytes = first * WORD..(first + words.len()) * WORD;
        pinned.write(bytes.start, words);
        self.gpu.compute.upload(self.device.address().offset(bytes.start), pinned, bytes)?;
        Ok(self.gpu.compute.record(free)?)
    }

    /// Word of the first input token.
    fn first_input(&self) -> usize {
        if self.workload.has_head { step_tokens(&self.workload) } else { 0 }
    }

    /// Address of the input tokens (B, T) of a micro-batch's slice.
    pub(super) fn inputs(&self, microbatch: usize, slice: usize) -> Address {
        self.word(self.first_input() + self.workload.slice_tokens(microbatch, slice).start)
    }

    /// Address of the targets (B, T) of a micro-batch's slice.
    pub(super) fn targets(&self, microbatch: usize, slice: usize) -> Address {
        self.word(self.workload.slice_tokens(microbatch, slice).start)
    }

    /// Returns the index of the input tokens of a micro-batch's slice, whose upload it enqueues: ids, starts, order.
    pub(super) fn index(&mut self, microbatch: usize, slice: usize) -> Result<TokenIndex> {
        let range = self.workload.slice_tokens(microbatch, slice);
        let rows = range.len();
        let tokens = self.tokens.get(range.clone());
        let (mut words, mut starts, order) = sorted(tokens.context("expected a step's inputs, found none")?);
        let distinct = words.len();
        words.resize(rows, 0);
        starts.resize(rows + 1, 0);
        words.extend(starts);
        words.extend(order);
        let unit = microbatch * self.workload.slice_count() + slice;
        let first = self.first_input() + step_tokens(&self.workload) + 3 * range.start + unit;
        self.upload(first, &words)?;
        Ok(TokenIndex {
            ids: self.word(first),
            starts: self.word(first + rows),
            order: self.word(first + 2 * rows + 1),
            distinct,
        })
    }

    fn word(&self, index: usize) -> Address {
        self.device.address().offset(index * WORD)
    }
}

/// Tokens of a step.
fn step_tokens(workload: &Workload) -> usize {
    workload.microbatches * workload.micro_batch.rows()
}

/// Returns the distinct tokens in ascending order, the start of each token's positions (and the end of the last), and the
/// positions sorted by token, then by position.
fn sorted(tokens: &[u32]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let mut keys: Vec<u64> = tokens.iter().zip(0_u64..).map(|(&token, place)| u64::from(token) << 32 | place).collect();
    keys.sort_unstable();
    let (mut ids, mut starts, mut order) = (Vec::new(), Vec::new(), Vec::with_capacity(keys.len()));
    for key in keys {
        let (token, place) = ((key >> 32) as u32, key as u32);
        if ids.last() != Some(&token) {
            ids.push(token);
            starts.push(order.len() as u32);
        }
        order.push(place);
    }
    starts.push(order.len() as u32);
    (ids, starts, order)
}

/// Memory of what runs once per step: gradient norms, the update's scale.
pub(super) struct Step {
    /// Partial sums of one squared norm, doubles.
    pub(super) partial: Buffer,
    /// Squared norms of this device's parts, doubles; the host reads its copy once the event is reached.
    pub(super) norms: Buffer,
    pub(super) host_norms: Pinned,
    /// The losses of a step.
    pub(super) host_losses: Pinned,
    pub(super) norms_done: Event,
    /// Number of norms that were squared last.
    pub(super) squared: usize,
    /// Factor of the gradients, one float32.
    pub(super) scale: Buffer,
}

pub(super) const DOUBLE: usize = size_of::<f64>();

impl Step {
    pub(super) fn new(gpu: &Arc<Gpu>, parts: usize, losses: usize) -> Result<Step> {
        let context = gpu.context();
        Ok(Step {
            partial: Buffer::new(context, MOST_NORM_GROUPS * DOUBLE)?,
            norms: Buffer::new(context, parts * DOUBLE)?,
            host_norms: Pinned::new(context, parts * DOUBLE)?,
            host_losses: Pinned::new(context, losses * size_of::<f32>())?,
            norms_done: gpu.events().untimed()?,
            squared: 0,
            scale: Buffer::new(context, size_of::<f32>())?,
        })
    }
}
