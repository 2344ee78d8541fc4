//! Memory of one step on a device: its tokens, with the index by which the token embedding's gradient is summed in order, and
//! what runs once per step.

use super::operation::{MOST_NORM_GROUPS, TokenIndex};
use anyhow::{Result, ensure};
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
    /// Number of distinct tokens of each micro-batch.
    distinct: Vec<usize>,
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
            distinct: vec![0; microbatches],
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
        let words = self.words(inputs, targets);
        self.turn = 1 - self.turn;
        let (pinned, free) = &mut self.staging[self.turn];
        free.synchronize()?;
        pinned.write(0, &words);
        self.gpu.compute.upload(self.device.address(), pinned, 0..words.len() * WORD)?;
        Ok(self.gpu.compute.record(free)?)
    }

    /// Returns everything to upload: inputs, then ids, orders and starts of all micro-batches, then targets.
    fn words(&mut self, inputs: &[u32], targets: &[u32]) -> Vec<u32> {
        let mut words = Vec::with_capacity(self.device.bytes() / WORD);
        if self.embedding {
            words.extend(inputs);
            let (mut ids, mut orders, mut starts) = (Vec::new(), Vec::new(), Vec::new());
            for (microbatch, tokens) in inputs.chunks(self.rows).enumerate() {
                let (id, start, order) = sorted(tokens);
                self.distinct[microbatch] = id.len();
                padded(&mut ids, id, self.rows);
                orders.extend(order);
                padded(&mut starts, start, self.rows + 1);
            }
            words.extend(ids.into_iter().chain(orders).chain(starts));
        }
        if self.head {
            words.extend(targets);
        }
        words
    }

    /// Address of the input tokens (B, T) of a micro-batch.
    pub(super) fn inputs(&self, microbatch: usize) -> Address {
        self.word(microbatch * self.rows)
    }

    /// Address of the targets (B, T) of a micro-batch.
    pub(super) fn targets(&self, microbatch: usize) -> Address {
        let before = if self.embedding { self.microbatches * (4 * self.rows + 1) } else { 0 };
        self.word(before + microbatch * self.rows)
    }

    /// Returns the index of a micro-batch's input tokens.
    pub(super) fn index(&self, microbatch: usize) -> TokenIndex {
        let all = self.microbatches * self.rows;
        TokenIndex {
            ids: self.word(all + microbatch * self.rows),
            order: self.word(2 * all + microbatch * self.rows),
            starts: self.word(3 * all + microbatch * (self.rows + 1)),
            distinct: self.distinct[microbatch],
        }
    }

    fn word(&self, index: usize) -> Address {
        self.device.address().offset(index * WORD)
    }
}

/// Appends `values` and zeros up to `length`.
fn padded(to: &mut Vec<u32>, values: Vec<u32>, length: usize) {
    let end = to.len() + length;
    to.extend(values);
    to.resize(end, 0);
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
    pub(super) norms_done: Event,
    /// Number of norms that were squared last.
    pub(super) squared: usize,
    /// Factor of the gradients, one float32.
    pub(super) scale: Buffer,
}

pub(super) const DOUBLE: usize = size_of::<f64>();

impl Step {
    pub(super) fn new(gpu: &Arc<Gpu>, parts: usize) -> Result<Step> {
        let context = gpu.context();
        Ok(Step {
            partial: Buffer::new(context, MOST_NORM_GROUPS * DOUBLE)?,
            norms: Buffer::new(context, parts * DOUBLE)?,
            host_norms: Pinned::new(context, parts * DOUBLE)?,
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
