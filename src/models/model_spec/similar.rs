//! The built-in model most similar to one that is not read: of the same kind, by parameters.

use super::configuration::decoder;
use super::families::families;
use super::keys::optional;
use super::presets::{names, transformer_named};
use super::reader::Reader;
use super::transformer::{Activation, Config, Style};
use serde_json::{Map, Value};

type Keys = Map<String, Value>;

/// Most times the parameters of a similar model, or the reverse.
const MOST: f64 = 2.0;

/// Returns the most similar built-in model: a mixture for a mixture, by parameters and those that a token activates; `None` if
/// none is similar, or sizes are missing.
pub(super) fn similar(keys: &Keys) -> Option<String> {
    let sketch = sketch(keys)?;
    let [all, active] = parameters(&sketch);
    let far = |name: &String| {
        let kind = |config: &Config| (config.experts.is_some(), config.style);
        let other = transformer_named(name).filter(|other| kind(other) == kind(&sketch))?;
        let [others, others_active] = parameters(&other);
        let (size, work) = ((others / all).ln().abs(), (others_active / active).ln().abs());
        (size.max(work) <= MOST.ln()).then_some(size + work)
    };
    let known = names().filter_map(|name| far(&name).map(|far| (far, name)));
    known.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
}

fn parameters(config: &Config) -> [f64; 2] {
    let spec = config.spec();
    [spec.parameters(), spec.active_parameters()].map(|count| count as f64)
}

/// Returns a decoder of about the sizes that `keys` name, by the names that families use.
fn sketch(keys: &Keys) -> Option<Config> {
    let family = families().named.get("any")?;
    let mut keys = keys.clone();
    keys.extend(layers(&keys).map(|layers| ("num_hidden_layers".to_string(), Value::from(layers))));
    let read = Reader { keys: &keys, family };
    let has_experts = read.size("experts").ok()?.is_some();
    let mut config =
        decoder(if has_experts { read } else { Reader { keys: &keys, family: families().named.get("any_dense")? } })
            .ok()?;
    let is_gpt = keys.contains_key("n_embd");
    let is_plain = ["mlp_hidden_act", "activation_function"].iter().any(|key| keys.contains_key(*key));
    config.style = if is_gpt { Style::Gpt } else { Style::Llama };
    config.activation = if is_plain { Activation::Plain } else { Activation::Gated };
    let latent = optional(&keys, "moe_latent_size")
        .ok()
        .flatten()
        .or(optional(&keys, "routed_expert_hidden_size").ok().flatten());
    if let (Some(experts), Some(latent)) = (config.experts.as_mut(), latent) {
        experts.width = (experts.width.saturating_mul(latent) / config.channels.max(1)).max(1);
    }
    config.validate().ok().map(|()| config)
}

/// Returns the number of layers with experts, of layers with one part each.
fn layers(keys: &Keys) -> Option<usize> {
    let pattern = keys.get("hybrid_override_pattern").and_then(Value::as_str);
    let list = keys.get("layers_block_type").and_then(Value::as_array);
    let with_experts = match (pattern, list) {
        (Some(pattern), _) => pattern.matches('E').count(),
        (None, Some(list)) => list.iter().filter(|kind| *kind == "moe").count(),
        (None, None) => 0,
    };
    (with_experts > 0).then_some(with_experts)
}
