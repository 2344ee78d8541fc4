//! What a device refuses to train.

use anyhow::{Result, ensure};

use pipesim_models::model_spec::Stage;
use pipesim_models::model_spec::transformer::Config;

/// Checks that the model takes sequences of `tokens` tokens, and that there is anything to compute.
pub fn check_sizes(config: &Config, [sequences, tokens, microbatches]: [usize; 3]) -> Result<()> {
    config.validate()?;
    let longest = config.longest_sequence().unwrap_or(i32::MAX as usize);
    ensure!(
        (1..=longest).contains(&tokens),
        "expected sequences of 1 to {longest} tokens, found {tokens}: choose a length that the model has positions for"
    );
    ensure!(
        sequences > 0 && microbatches > 0,
        "expected at least 1 sequence and 1 micro-batch, found {sequences} and {microbatches}: ask for more"
    );
    Ok(())
}

/// Whether one device can hold these stages, each with its number.
pub fn check_held(config: &Config, stages: &[(u32, Stage)]) -> Result<()> {
    let outline = config.spec().outline();
    for (index, (id, stage)) in stages.iter().enumerate() {
        ensure!(
            outline.has_run(stage),
            "expected stage {id} to hold a run of the model's {} blocks, found {stage}: correct its layers",
            config.layers
        );
        for (other, others) in &stages[..index] {
            ensure!(
                id != other && !stage.overlaps(others),
                "expected every layer once on a device, found stages {other} ({others}) and {id} ({stage}): give each its own \
                 layers"
            );
        }
    }
    Ok(())
}
