//! Which layers a pipeline stage holds.

use std::ops::Range;

use anyhow::{Result, ensure};

use super::config::Config;

/// What one stage holds: a run of blocks, the first stage also the embedding, the last one also the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageLayers {
    /// Token and position embedding.
    pub embedding: bool,
    /// Transformer blocks, numbered through the model.
    pub blocks: Range<usize>,
    /// Final LayerNorm, logits and loss.
    pub head: bool,
}

/// Splits the model's blocks into `stages` runs: evenly, earlier stages taking the remainder since the last one has the
/// head, or by the number of blocks of each stage. Only the first and the last stage may be without blocks.
pub fn split_layers(config: &Config, stages: usize, explicit: Option<&[usize]>) -> Result<Vec<StageLayers>> {
    split_blocks(config.layers, stages, explicit)
}

/// [`split_layers`] for a model of which only the number of blocks is known.
pub fn split_blocks(layers: usize, stages: usize, explicit: Option<&[usize]>) -> Result<Vec<StageLayers>> {
    ensure!(stages > 0, "expected at least 1 stage, found 0: ask for one or more");
    let counts = match explicit {
        Some(counts) => {
            ensure!(
                counts.len() == stages,
                "expected layers for {stages} stages, found {}: give one number for each stage",
                counts.len()
            );
            let sum = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
            ensure!(
                sum == Some(layers),
                "expected layers that add up to the model's {layers}, found {counts:?}: change one of them"
            );
            let inner = counts.get(1..stages - 1).unwrap_or_default();
            ensure!(
                !inner.contains(&0),
                "expected at least 1 layer in every stage but the first and the last, found {counts:?}: move a layer"
            );
            counts.to_vec()
        }
        None => {
            ensure!(
                stages <= layers,
                "expected at most as many stages as the model's {layers} layers, found {stages} stages: \
                 choose fewer stages or a deeper model"
            );
            (0..stages).map(|stage| layers / stages + usize::from(stage < layers % stages)).collect()
        }
    };
    let mut end = 0;
    let split = counts.iter().enumerate().map(|(stage, &count)| {
        let start = end;
        end += count;
        StageLayers { embedding: stage == 0, blocks: start..end, head: stage == stages - 1 }
    });
    Ok(split.collect())
}

/// Whether the model takes sequences of so many tokens, and whether there is anything to compute.
///
/// # Errors
/// Sizes that do not fit the model.
pub fn check_sizes(config: &Config, [sequences, tokens, microbatches]: [usize; 3]) -> Result<()> {
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
    Ok(())
}

/// Whether one device can hold these stages, each with its number.
///
/// # Errors
/// Layers that the model does not have, or that the device would hold twice.
pub fn check_held(config: &Config, stages: &[(u32, StageLayers)]) -> Result<()> {
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
