//! Which decoders can be trained; all others can only be predicted.

use super::layers::compile;
use crate::compute::TensorShare;
use anyhow::{Result, bail, ensure};
use pipesim_models::model_spec::other_values;
use pipesim_models::model_spec::transformer::{Config, Norms, QkNorm, RotaryScaling};
use serde_json::{Map, Value};

/// Checks that every operation of the model's description can be executed.
///
/// # Errors
/// One cannot; it is named.
pub fn check_executable(config: &Config) -> Result<()> {
    config.validate()?;
    let rare = config.rare_parts();
    ensure!(rare.is_empty(), "expected softmax attention and an MLP in each layer, found {}", rare.join(", "));
    ensure!(config.pattern.is_none(), "expected layers that are all alike, found layers that differ");
    ensure!(config.experts.is_none(), "expected a dense model, found a mixture of experts");
    ensure!(config.latent.is_none(), "expected queries, keys and values of the hidden state, found latent attention");
    ensure!(
        config.prediction_layers == 0,
        "expected predictions of the next token alone, found multi-token prediction"
    );
    let has_norms = config.qk_norm != QkNorm::None || config.norms != Norms::Before || config.has_sinks;
    ensure!(
        !has_norms,
        "expected one norm before attention and one before the MLP, found other norms or attention sinks"
    );
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

/// Keys whose null is not their default.
const NOT_NULL: [&str; 5] = ["rms_norm_eps", "layer_norm_epsilon", "rope_theta", "hidden_act", "activation_function"];

/// Checks the keys of a description that the model's sizes do not contain.
///
/// # Errors
/// One asks for a function that cannot be executed; it is named.
pub fn check_executable_keys(keys: &Map<String, Value>) -> Result<()> {
    if let Some(found) = other_values(keys) {
        bail!(found);
    }
    if let Some(key) = NOT_NULL.iter().find(|key| keys.get(**key).is_some_and(Value::is_null)) {
        bail!("expected a value of '{key}', found null");
    }
    let quantized = keys.get("quantization_config").is_some_and(|value| !value.is_null());
    ensure!(!quantized, "expected weights that are not quantized, found a 'quantization_config'");
    Ok(())
}

/// Returns the dropouts of a description, as in `attn_pdrop 0.1`. They act in training only, and training here has none.
pub fn dropouts(keys: &Map<String, Value>) -> Vec<String> {
    let is_dropout = |key: &str| (key.ends_with("_pdrop") || key.ends_with("_dropout")) && !key.starts_with("summary_");
    let positive = |value: &Value| value.as_f64().is_some_and(|share| share > 0.0);
    let found = keys.iter().filter(|(key, value)| is_dropout(key) && positive(value));
    found.map(|(key, value)| format!("{key} {value}")).collect()
}
