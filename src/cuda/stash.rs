//! A stage on its GPU, and what its ops leave behind for those still to come.

use super::group::Group;
use super::memory::{Buffer, Pool};
use super::{block, head};
use crate::anatomy;
use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;

/// One stage's blocks and what its ops left behind, by micro-batch.
pub(super) struct Stage {
    pub(super) layers: anatomy::Stage,
    pub(super) blocks: Vec<Group>,
    pub(super) stashes: Vec<Stash>,
}

/// What the ops of one micro-batch left behind. Of the blocks, the backward's come last first.
pub(super) enum Stash {
    Empty,
    Forward {
        blocks: Vec<block::Forward>,
        head: Option<head::Forward>,
    },
    /// `embedding`: the gradient of the embedding's output (n, C).
    Weight {
        embedding: Option<Buffer>,
        blocks: Vec<block::Weight>,
        head: Option<head::Weight>,
    },
}

impl Stash {
    /// Bytes of all buffers.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Stash::Empty => 0,
            Stash::Forward { blocks, head } => Stash::forward_bytes(blocks, head),
            Stash::Weight { embedding, blocks, head } => Stash::weight_bytes(embedding, blocks, head),
        }
    }

    pub(super) fn forward_bytes(blocks: &[block::Forward], head: &Option<head::Forward>) -> usize {
        blocks.iter().map(block::Forward::bytes).sum::<usize>() + head.as_ref().map_or(0, head::Forward::bytes)
    }

    pub(super) fn weight_bytes(
        embedding: &Option<Buffer>,
        blocks: &[block::Weight],
        head: &Option<head::Weight>,
    ) -> usize {
        embedding.as_ref().map_or(0, Buffer::bytes)
            + blocks.iter().map(block::Weight::bytes).sum::<usize>()
            + head.as_ref().map_or(0, head::Weight::bytes)
    }

    /// Gives all buffers back.
    pub(super) fn give_back(self, pool: &mut Pool) {
        match self {
            Stash::Empty => {}
            Stash::Forward { blocks, head } => {
                blocks.into_iter().for_each(|block| pool.give(block.buffers()));
                head.into_iter().for_each(|head| pool.give(head.buffers()));
            }
            Stash::Weight { embedding, blocks, head } => {
                pool.give(embedding);
                blocks.into_iter().for_each(|block| pool.give(block.buffers()));
                head.into_iter().for_each(|head| pool.give(head.buffers()));
            }
        }
    }
}

/// The stage with this number, if the micro-batch too is one of the step's.
pub(super) fn find(stages: &mut BTreeMap<u32, Stage>, stage: u32, microbatch: u32) -> Result<&mut Stage> {
    let known: Vec<u32> = stages.keys().copied().collect();
    let Some(entry) = stages.get_mut(&stage) else {
        bail!("expected one of this device's stages, {known:?}, found {stage}: send the op to the device that has it");
    };
    let count = entry.stashes.len();
    ensure!(
        (microbatch as usize) < count,
        "expected a micro-batch below {count}, found {microbatch}: use those of this step"
    );
    Ok(entry)
}
