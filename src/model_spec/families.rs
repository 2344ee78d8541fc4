//! Families of Hugging Face's `config.json` whose layers differ from Llama's: mixtures of experts, latent attention, windows.

use super::keys::{ConfigError, INSTEAD, flag, is_set, latent, optional, size};
use super::mixture::Experts;
use super::operation::Window;
use super::transformer::{ActivationFunction, Biases, Config};
use serde_json::{Map, Value};

type Keys = Map<String, Value>;

/// A family of models.
pub(super) struct Family {
    /// Values of `model_type`.
    pub kinds: &'static [&'static str],
    /// Keys that are read or change nothing, besides those of Llama, separated by spaces.
    pub keys: &'static str,
    /// Changes a model with Llama's layers to one of the family.
    pub apply: fn(&Keys, Config) -> Result<Config, ConfigError>,
}

/// Keys of routers that change no sizes.
macro_rules! router {
    () => {
        " router_aux_loss_coef output_router_logits router_jitter_noise norm_topk_prob routed_scaling_factor scoring_func topk_method \
         aux_loss_alpha seq_aux ep_size moe_router_dtype "
    };
}

pub(super) const FAMILIES: [Family; 8] = [
    Family {
        kinds: &["mixtral"],
        keys: concat!(router!(), "num_local_experts num_experts_per_tok"),
        apply: |keys, config| {
            let experts = experts(keys, "num_local_experts", config.mlp)?;
            Ok(Config { experts: Some(experts), ..config })
        },
    },
    Family { kinds: &["qwen3"], keys: "", apply: |_, config| Ok(Config { qk_norm: true, ..config }) },
    Family {
        kinds: &["qwen3_moe"],
        keys: concat!(
            router!(),
            "num_experts num_local_experts num_experts_per_tok moe_intermediate_size decoder_sparse_step mlp_only_layers"
        ),
        apply: qwen3_moe,
    },
    Family {
        kinds: &["deepseek_v2", "deepseek_v3", "kimi_k2"],
        keys: concat!(
            router!(),
            "n_routed_experts num_experts_per_tok moe_intermediate_size n_shared_experts first_k_dense_replace moe_layer_freq n_group \
             topk_group num_nextn_predict_layers q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
        ),
        apply: deepseek,
    },
    Family {
        kinds: &["gpt_oss"],
        keys: concat!(
            router!(),
            "num_local_experts num_experts_per_tok experts_per_token swiglu_limit initial_context_length"
        ),
        apply: gpt_oss,
    },
    Family {
        kinds: &["grok-1", "grok1"],
        keys: concat!(
            router!(),
            "num_experts num_experts_per_tok attn_output_multiplier max_attn_value embedding_multiplier_scale output_multiplier_scale"
        ),
        apply: |keys, config| {
            let (experts, tied) = (experts(keys, "num_experts", config.mlp)?, flag(keys, "tie_word_embeddings", true)?);
            Ok(Config { post_norms: true, tied, experts: Some(experts), function: ActivationFunction::Other, ..config })
        },
    },
    Family {
        kinds: &["gemma2"],
        keys: "cache_implementation",
        apply: |keys, config| {
            let tied = flag(keys, "tie_word_embeddings", true)?;
            Ok(Config { post_norms: true, tied, function: ActivationFunction::GeluTanh, ..config })
        },
    },
    Family {
        kinds: &["llama4", "llama4_text"],
        keys: concat!(
            router!(),
            "num_local_experts num_experts_per_tok intermediate_size_mlp interleave_moe_layer_step moe_layers attention_chunk_size \
             no_rope_layers no_rope_layer_interval use_qk_norm attn_temperature_tuning floor_scale attn_scale for_llm_compression"
        ),
        apply: llama_4,
    },
];

/// Returns the keys of the text model, and the names of the file's other parts.
pub(super) fn text_model<'a>(keys: &'a Keys, kind: &str) -> Result<(&'a Keys, Vec<String>), ConfigError> {
    match keys.get("text_config") {
        Some(Value::Object(text)) if kind == "llama4" => {
            let beside = ["vision_config"].into_iter().filter(|key| keys.get(*key).is_some_and(is_set));
            Ok((text, beside.map(|key| format!("{key} (only the text model is predicted)")).collect()))
        }
        _ => Ok((keys, Vec::new())),
    }
}

/// Returns the window of layers, and the n of which every n-th layer has full attention. Qwen's files name a window even if it is
/// not used; Gemma 2 and gpt-oss alternate.
pub(super) fn windows(keys: &Keys, kind: &str, layers: usize) -> Result<(Option<Window>, usize), ConfigError> {
    let names = match keys.get("layer_types") {
        Some(Value::Array(names)) => names.iter().map(|name| name.as_str().unwrap_or_default()).collect(),
        _ => Vec::new(),
    };
    let kinds = ["full_attention", "sliding_attention", "chunked_attention"];
    if let Some(other) = names.iter().find(|name| !kinds.contains(name)) {
        return Err(ConfigError(format!("expected layers among {}, found {other}; {INSTEAD}", kinds.join(", "))));
    }
    let is_llama_4 = kind.starts_with("llama4");
    let is_used = flag(keys, "use_sliding_window", !kind.starts_with("qwen"))?;
    let tokens = optional(keys, if is_llama_4 { "attention_chunk_size" } else { "sliding_window" })?;
    let Some(tokens) = tokens.filter(|_| is_used || names.iter().any(|name| *name != kinds[0])) else {
        return Ok((None, 0));
    };
    let window = Some(Window { tokens, is_chunked: is_llama_4 });
    let usual = match kind {
        "gemma2" | "gpt_oss" => 2,
        _ if is_llama_4 => optional(keys, "no_rope_layer_interval")?.unwrap_or(4),
        _ => 0,
    };
    let Some(first_full) = names.iter().position(|name| *name == kinds[0]) else {
        return Ok((window, if names.is_empty() { usual } else { 0 }));
    };
    let every = first_full + 1;
    if names.iter().all(|name| *name == kinds[0]) {
        return Ok((None, 0));
    }
    let fits = |(layer, name): (usize, &&str)| (layer % every == first_full) == (*name == kinds[0]);
    if names.len() <= layers && names.iter().enumerate().all(fits) {
        return Ok((window, every));
    }
    Err(ConfigError(format!(
        "expected every n-th of 'layer_types' to be full_attention, found another pattern; {INSTEAD}"
    )))
}

/// Reads experts in every layer.
fn experts(keys: &Keys, count: &str, width: usize) -> Result<Experts, ConfigError> {
    let kind = format!("{count} num_experts_per_tok");
    let has_usual = optional(keys, "num_experts_per_tok")?.is_some() || !keys.contains_key("experts_per_token");
    let chosen = size(keys, if has_usual { "num_experts_per_tok" } else { "experts_per_token" }, &kind)?;
    Ok(Experts::new(size(keys, count, &kind)?, chosen, width))
}

/// Rejects a key with another value than `expected`.
fn must_be(keys: &Keys, key: &str, expected: &Value) -> Result<(), ConfigError> {
    match keys.get(key).filter(|value| is_set(value) && *value != expected) {
        Some(found) => Err(ConfigError(format!("expected '{key}' to be {expected}, found {found}; {INSTEAD}"))),
        None => Ok(()),
    }
}

fn qwen3_moe(keys: &Keys, config: Config) -> Result<Config, ConfigError> {
    must_be(keys, "decoder_sparse_step", &Value::from(1))?;
    must_be(keys, "mlp_only_layers", &Value::Array(Vec::new()))?;
    let width = size(keys, "moe_intermediate_size", "moe_intermediate_size")?;
    let count = if keys.contains_key("num_experts") { "num_experts" } else { "num_local_experts" };
    Ok(Config { qk_norm: true, experts: Some(experts(keys, count, width)?), ..config })
}

fn deepseek(keys: &Keys, config: Config) -> Result<Config, ConfigError> {
    must_be(keys, "moe_layer_freq", &Value::from(1))?;
    let kind = "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim moe_intermediate_size";
    let latent = latent(keys, kind)?;
    let width = size(keys, "moe_intermediate_size", kind)?;
    let shared = optional(keys, "n_shared_experts")?.unwrap_or(0);
    let groups = optional(keys, "n_group")?.unwrap_or(1).max(1);
    let experts = Experts {
        shared_width: shared.saturating_mul(width),
        dense_first: optional(keys, "first_k_dense_replace")?.unwrap_or(0),
        router_groups: groups,
        group_top_k: optional(keys, "topk_group")?.unwrap_or(groups).max(1),
        ..experts(keys, "n_routed_experts", width)?
    };
    Ok(Config {
        experts: Some(experts),
        prediction_layers: optional(keys, "num_nextn_predict_layers")?.unwrap_or(0),
        ..config.with_latent(latent)
    })
}

fn gpt_oss(keys: &Keys, config: Config) -> Result<Config, ConfigError> {
    let experts = experts(keys, "num_local_experts", config.mlp)?;
    let biases = Biases { mlp: true, ..config.biases };
    Ok(Config { biases, has_sinks: true, experts: Some(experts), function: ActivationFunction::Other, ..config })
}

/// Layers with experts have one shared expert of their width, the others an MLP of `intermediate_size_mlp`.
fn llama_4(keys: &Keys, config: Config) -> Result<Config, ConfigError> {
    let every = optional(keys, "interleave_moe_layer_step")?.unwrap_or(1).max(1);
    if let Some(Value::Array(layers)) = keys.get("moe_layers") {
        let usual = (0..config.layers).filter(|layer| layer % every == every - 1).map(Value::from);
        if !layers.is_empty() && !layers.iter().cloned().eq(usual) {
            return Err(ConfigError(format!(
                "expected every {every}th of the layers in 'moe_layers', found others; {INSTEAD}"
            )));
        }
    }
    let width = config.mlp;
    let experts = Experts { every, shared_width: width, ..experts(keys, "num_local_experts", width)? };
    let mlp = optional(keys, "intermediate_size_mlp")?.unwrap_or(width);
    Ok(Config { mlp, experts: Some(experts), ..config })
}
