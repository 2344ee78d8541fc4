//! What a shard refuses beyond what the CPU's does: sizes that do not fit the kernels, misplaced hidden states.

use super::api::handle::Address;
use super::kernel::MAX_HEAD_SIZE;
use crate::model::{Config, check_sizes};
use anyhow::{Result, bail, ensure};

/// A model or a schedule that this GPU cannot take: too little memory, or sizes beyond the kernels'. Another device may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub String);

impl Unfit {
    /// Whether an error says so.
    pub fn is_behind(error: &anyhow::Error) -> bool {
        error.chain().any(|cause| cause.is::<Unfit>())
    }
}

/// Addresses of hidden states are multiples of this.
pub const HIDDEN_ALIGNMENT: u64 = 256;

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
    check_sizes(config, [sequences, tokens, microbatches])?;
    ensure!(
        config.head_size() <= MAX_HEAD_SIZE,
        Unfit(format!(
            "expected heads of at most {MAX_HEAD_SIZE} channels on a GPU, found {}: choose more heads",
            config.head_size()
        ))
    );
    let most = i32::MAX as usize;
    let fits = sequences.checked_mul(tokens).is_some_and(|rows| rows <= most) && 4 * config.channels <= most;
    ensure!(
        fits,
        Unfit(format!(
            "expected fewer than 2^31 tokens and 2^29 channels, found {sequences} sequences of {tokens} tokens and {} channels: \
             choose smaller micro-batches",
            config.channels
        ))
    );
    Ok(())
}
