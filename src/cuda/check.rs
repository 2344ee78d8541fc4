//! What a shard refuses: sizes that do not fit the model or the kernels, stages that overlap, misplaced hidden states.

use super::api::handle::Address;
use super::kernel::MAX_HEAD_SIZE;
use super::shard::HIDDEN_ALIGNMENT;
use crate::model::{Config, StageLayers};
use anyhow::{Result, bail, ensure};

/// Whether an address is there exactly when it should be, and aligned.
pub(super) fn address(found: Option<Address>, wanted: bool, what: &str) -> Result<()> {
    match (found, wanted) {
        (Some(address), true) => ensure!(
            address.0.is_multiple_of(HIDDEN_ALIGNMENT),
            "expected {what} at a multiple of {HIDDEN_ALIGNMENT}, found it at {:#x}: align it",
            address.0
        ),
        (None, true) => bail!("expected {what}, found none: pass it"),
        (Some(_), false) => bail!("expected no {what} for a stage with these layers, found one: leave it out"),
        (None, false) => {}
    }
    Ok(())
}

pub(super) fn sizes(config: &Config, [sequences, tokens, microbatches]: [usize; 3]) -> Result<()> {
    config.validate()?;
    ensure!(
        (1..=config.max_sequence).contains(&tokens),
        "expected sequences of 1 to {} tokens, found {tokens}: choose a length that the model has positions for",
        config.max_sequence
    );
    ensure!(
        sequences > 0 && microbatches > 0,
        "expected at least 1 sequence and 1 micro-batch, found {sequences} and {microbatches}: ask for more"
    );
    ensure!(
        config.head_size() <= MAX_HEAD_SIZE,
        "expected heads of at most {MAX_HEAD_SIZE} channels on a GPU, found {}: choose more heads",
        config.head_size()
    );
    let most = i32::MAX as usize;
    let fits = sequences.checked_mul(tokens).is_some_and(|rows| rows <= most) && 4 * config.channels <= most;
    ensure!(
        fits,
        "expected fewer than 2^31 tokens and 2^29 channels, found {sequences} sequences of {tokens} tokens and {} channels: \
         choose smaller micro-batches",
        config.channels
    );
    Ok(())
}

pub(super) fn stages(config: &Config, stages: &[(u32, StageLayers)]) -> Result<()> {
    for (index, (id, layers)) in stages.iter().enumerate() {
        let StageLayers { embedding, blocks, head } = layers;
        ensure!(
            blocks.start <= blocks.end
                && blocks.end <= config.layers
                && (!embedding || blocks.start == 0)
                && (!head || blocks.end == config.layers),
            "expected stage {id} to hold a run of the model's {} blocks, found {layers:?}: correct its layers",
            config.layers
        );
        for (other, others) in &stages[..index] {
            let apart = blocks.end <= others.blocks.start || others.blocks.end <= blocks.start;
            ensure!(
                id != other
                    && (apart || blocks.is_empty() || others.blocks.is_empty())
                    && !(*embedding && others.embedding)
                    && !(*head && others.head),
                "expected every layer once on a device, found stages {other} {others:?} and {id} {layers:?}: give each its \
                 own layers"
            );
        }
    }
    Ok(())
}
