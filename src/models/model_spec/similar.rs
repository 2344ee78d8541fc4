//! The built-in model most similar to one that is not read: of the same kind, by parameters.

use super::keys::{latent, optional};
use super::mixture::Experts;
use super::presets::{names, transformer_named};
use super::transformer::{Activation, Biases, Config, Style};
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
    let size = |names: &str| {
        let found = names.split(' ').find_map(|key| optional(keys, key).ok().flatten());
        found.filter(|&size| size > 0)
    };
    let width = size("hidden_size n_embd d_model")?;
    let heads = size("num_attention_heads n_head n_heads")?;
    let mlp = size("dense_intermediate_size intermediate_size n_inner").unwrap_or(width.checked_mul(4)?);
    let is_gated = !["mlp_hidden_act", "activation_function"].iter().any(|key| keys.contains_key(*key));
    let config = Config {
        style: if keys.contains_key("n_embd") { Style::Gpt } else { Style::Llama },
        biases: Biases::NONE,
        vocabulary_multiple: 1,
        groups: size("num_key_value_heads").filter(|groups| heads.is_multiple_of(*groups)).unwrap_or(heads),
        head_size: size("head_dim").unwrap_or((width / heads).max(1)),
        mlp,
        activation: if is_gated { Activation::Gated } else { Activation::Plain },
        tied: keys.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
        ..Config::gpt(size("vocab_size")?, 0, layers(keys)?, heads, width)
    };
    let config = match latent(keys, "") {
        Ok(latent) => config.with_latent(latent),
        Err(_) => config,
    };
    let count = size("n_routed_experts num_experts num_local_experts num_routed_experts");
    let experts = count.map(|count| {
        let width = size("moe_intermediate_size intermediate_size").unwrap_or(mlp);
        let shared = size("n_shared_experts num_shared_experts").unwrap_or(0).saturating_mul(width);
        let shared =
            size("moe_shared_expert_intermediate_size shared_expert_intermediate_size shared_intermediate_size")
                .unwrap_or(shared);
        let narrow = size("moe_latent_size routed_expert_hidden_size").map_or(width, |latent| {
            (width as u128 * latent as u128 / config.channels as u128).clamp(1, width as u128) as usize
        });
        Experts {
            shared_width: shared,
            dense_first: size("first_k_dense_replace").unwrap_or(0),
            every: size("expert_layer_period interleave_moe_layer_step").unwrap_or(1),
            ..Experts::new(
                count,
                size("num_experts_per_tok num_experts_per_token experts_per_token top_k_experts").unwrap_or(1),
                narrow,
            )
        }
    });
    let config = Config { experts, ..config };
    config.validate().ok().map(|()| config)
}

/// Returns the number of layers; of layers with one part each, the ones with experts.
fn layers(keys: &Keys) -> Option<usize> {
    let pattern = keys.get("hybrid_override_pattern").and_then(Value::as_str);
    let list = keys.get("layers_block_type").and_then(Value::as_array);
    let with_experts = match (pattern, list) {
        (Some(pattern), _) => pattern.matches('E').count(),
        (None, Some(list)) => list.iter().filter(|kind| *kind == "moe").count(),
        (None, None) => 0,
    };
    let all = ["num_hidden_layers", "n_layer", "n_layers"].iter().find_map(|key| optional(keys, key).ok().flatten());
    if with_experts > 0 { Some(with_experts) } else { all }
}
