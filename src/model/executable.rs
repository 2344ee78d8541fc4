//! Which decoders can be trained; all others can only be predicted.

use super::layers::compile;
use crate::compute::TensorShare;
use crate::model_spec::transformer::{Config, RotaryScaling};
use anyhow::{Result, ensure};

/// Checks that every operation of the model's description can be executed.
///
/// # Errors
/// One cannot; it is named.
pub fn check_executable(config: &Config) -> Result<()> {
    config.validate()?;
    for part in &config.spec().parts {
        compile(part, config, TensorShare::WHOLE)?;
    }
    ensure!(config.window.is_none(), "expected attention to all tokens before, found a window");
    ensure!(config.projected.is_none(), "expected a projection of the heads' output, found one of another width");
    match config.rotary {
        Some(rotary) => {
            ensure!(rotary.scaling != RotaryScaling::Other, "expected llama3 rope_scaling or none, found another");
            ensure!(config.head_size.is_multiple_of(2), "expected an even head size, found {}", config.head_size);
        }
        None => ensure!(config.positions > 0, "expected learned or rotary positions, found others"),
    }
    Ok(())
}
