//! A stage on its device, and what its ops leave behind for those still to come.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::block;
use super::head;
use super::optimizer::Group;
use super::pool::Pool;
use crate::anatomy;

/// One stage's blocks and what its ops left behind, by micro-batch.
pub(super) struct Stage {
    pub(super) layers: anatomy::Stage,
    /// Bytes that its F leaves behind for its I, and its I for its W.
    pub(super) left: [usize; 2],
    pub(super) blocks: Vec<Group>,
    pub(super) stashes: Vec<Stash>,
}

/// What the ops of one micro-batch left behind.
pub(super) enum Stash {
    Empty,
    Forward { tokens: Option<Vec<u32>>, blocks: Vec<block::Forward>, head: Option<head::Forward> },
    Weight { tokens: Option<(Vec<u32>, Vec<f32>)>, blocks: Vec<block::Weight>, head: Option<head::Weight> },
}

impl Stash {
    /// Gives all buffers back.
    pub(super) fn give_back(self, pool: &mut Pool) {
        match self {
            Stash::Empty => {}
            Stash::Forward { blocks, head, .. } => {
                blocks.into_iter().for_each(|block| pool.give(block.buffers()));
                head.into_iter().for_each(|head| pool.give(head.buffers()));
            }
            Stash::Weight { tokens, blocks, head } => {
                tokens.into_iter().for_each(|(_, gradient)| pool.give([gradient]));
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
