//! Memory of one step on a device: its tokens, with the index by which the token embedding's gradient is summed in order, and
//! what runs once per step. The index of a micro-batch is made when its backward pass is enqueued, while the GPU computes.

use super::operation::{MOST_NORM_GROUPS, TokenIndex};
use anyhow::{Context as _, Result, ensure};
use pipesim_cuda::Gpu;
use pipesim_cuda::api::{Address, Buffer, Event, Pinned};
use std::sync::Arc;

/// The tokens of a step, uploaded by one copy. Two pinned copies alternate, so that the host fills one while the device may
/// still read the other.
pub(super) struct Batch {
    gpu: Arc<Gpu>,
    microbatches: usize,
    rows: usize,
    vocabulary: usize,
    embedding: bool,
    head: bool,
    device: Buffer,
    staging: [(Pinned, Event); 2],
    turn: usize,
    /// Inputs of the step, if they are needed.
    tokens: Vec<u32>,
}

const WORD: usize = size_of::<u32>();

impl Batch {
    /// Allocates memory for steps of `microbatches` micro-batches of `rows` tokens: inputs for the embedding, targets for the head.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        [microbatches, rows, vocabulary]: [usize; 3],
        [embedding, head]: [bool; 2],
    ) -> Result<Batch> {
        let words =
            microbatches * if embedding { 4 * rows + 1 } else { 0 } + if head { microbatches * rows } else { 0 };
        let staging =
            || -> Result<(Pinned, Event)> { Ok((Pinned::new(gpu.context(), words * WORD)?, gpu.events().untimed()?)) };
        Ok(Batch {
            gpu: gpu.clone(),
            microbatches,
            rows,
            vocabulary,
            embedding,
            head,
            device: Buffer::new(gpu.context(), words * WORD)?,
            staging: [staging()?, staging()?],
            turn: 0,
            tokens: Vec::new(),
        })
    }

    /// Enqueues the upload of a step's tokens behind the uses of the previous step's. Waits only if the host is more than one step
    /// ahead.
    pub(super) fn begin(&mut self, inputs: &[u32], targets: &[u32]) -> Result<()> {
        for (what, wanted, tokens) in [("inputs", self.embedding, inputs), ("targets", self.head, targets)] {
            let expected = self.microbatches * self.rows;
            ensure!(
                !wanted || tokens.len() == expected,
                "expected {expected} {what} per step, found {}: pass all micro-batches one after the other",
                tokens.len()
            );
            let beyond = tokens.iter().find(|&&token| wanted && token as usize >= self.vocabulary);
            ensure!(
                beyond.is_none(),
                "expected {what} below the vocabulary's {}, found {beyond:?}: use data or a tokenizer that fits the model",
                self.vocabulary
            );
        }
        self.turn = 1 - self.turn;
        self.staging[self.turn].1.synchronize()?;
        self.tokens.clear();
        let mut words = Vec::with_capacity(2 * self.microbatches * self.rows);
        if self.head {
            words.extend(targets);
        }
        if self.embedding {
            words.extend(inputs);
            self.tokens.extend(inputs);
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
        if self.head { self.microbatches * self.rows } else { 0 }
    }

    /// Address of the input tokens (B, T) of a micro-batch.
    pub(super) fn inputs(&self, microbatch: usize) -> Address {
        self.word(self.first_input() + microbatch * self.rows)
    }

    /// Address of the targets (B, T) of a micro-batch.
    pub(super) fn targets(&self, microbatch: usize) -> Address {
        self.word(microbatch * self.rows)
    }

    /// Returns the index of a micro-batch's input tokens, whose upload it enqueues: ids, starts, order.
    pub(super) fn index(&mut self, microbatch: usize) -> Result<TokenIndex> {
        let rows = self.rows;
        let tokens = self.tokens.get(microbatch * rows..(microbatch + 1) * rows);
        let (mut words, mut starts, order) = sorted(tokens.context("expected a step's inputs, found none")?);
        let distinct = words.len();
        words.resize(rows, 0);
        starts.resize(rows + 1, 0);
        words.extend(starts);
        words.extend(order);
        let first = self.first_input() + self.microbatches * rows + microbatch * (3 * rows + 1);
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
    pub(super) fn new(gpu: &Arc<Gpu>, parts: usize, microbatches: usize) -> Result<Step> {
        let context = gpu.context();
        Ok(Step {
            partial: Buffer::new(context, MOST_NORM_GROUPS * DOUBLE)?,
            norms: Buffer::new(context, parts * DOUBLE)?,
            host_norms: Pinned::new(context, parts * DOUBLE)?,
            host_losses: Pinned::new(context, microbatches * size_of::<f32>())?,
            norms_done: gpu.events().untimed()?,
            squared: 0,
            scale: Buffer::new(context, size_of::<f32>())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_sorted_by_token_then_by_place() {
        let (ids, starts, order) = sorted(&[7, 3, 7, 0, 3, 7]);
        assert_eq!((ids, starts, order), (vec![0, 3, 7], vec![0, 1, 3, 6], vec![3, 1, 4, 0, 2, 5]));
        assert_eq!(sorted(&[5]), (vec![5], vec![0, 1], vec![0]));
    }
}
