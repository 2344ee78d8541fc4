//! Families of Hugging Face's `config.json` whose layers differ from Llama's: mixtures of experts, latent attention, windows.

use super::keys::{ConfigError, agree, flag, is_set, latent, optional, size};
use super::mixture::Experts;
use super::transformer::{ActivationFunction, Biases, Config};
use serde_json::{Map, Value};
use std::borrow::Cow;

type Keys = Map<String, Value>;

/// A family of models.
pub(super) struct Family {
    /// Values of `model_type`.
    pub kinds: &'static [&'static str],
    /// Keys that are read or change nothing, in addition to Llama's keys, separated by spaces.
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

pub(super) static FAMILIES: [Family; 8] = [
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
             topk_group num_nextn_predict_layers rope_interleave q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
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
        keys: "hidden_activation",
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

/// Families under another name. Each has the layers of the second one.
const ALIASES: [(&str, &str); 7] = [
    ("phi3", "llama"),
    ("internlm2", "llama"),
    ("qwen3_vl", "qwen3"),
    ("qwen3_vl_text", "qwen3"),
    ("qwen3_vl_moe", "qwen3_moe"),
    ("qwen3_vl_moe_text", "qwen3_moe"),
    ("kimi_k25", "kimi_k2"),
];

/// Returns the family that a `model_type` belongs to.
pub(super) fn alias(kind: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == kind).map_or(kind, |(_, family)| family)
}

/// Returns the keys of the text model, and the names of the file's other parts.
pub(super) fn text_model(keys: &Keys) -> (Cow<'_, Keys>, Vec<String>) {
    let Some(Value::Object(text)) = keys.get("text_config") else { return (Cow::Borrowed(keys), Vec::new()) };
    let mut text = text.clone();
    if let (Some(tied), false) = (keys.get("tie_word_embeddings"), text.contains_key("tie_word_embeddings")) {
        text.insert("tie_word_embeddings".to_string(), tied.clone());
    }
    let beside = ["vision_config", "audio_config"].into_iter().filter(|key| keys.get(*key).is_some_and(is_set));
    let beside = beside.map(|key| format!("{key} (only the text model is predicted)")).collect();
    (Cow::Owned(text), beside)
}

/// Reads experts in every layer.
fn experts(keys: &Keys, count: &str, width: usize) -> Result<Experts, ConfigError> {
    let kind = format!("{count} num_experts_per_tok");
    let chosen = agree(keys, "num_experts_per_tok", "experts_per_token")?;
    let chosen = chosen.map_or_else(|| size(keys, "num_experts_per_tok", &kind), Ok)?;
    Ok(Experts::new(size(keys, count, &kind)?, chosen, width))
}

/// Rejects a key with another value than `expected`.
fn must_be(keys: &Keys, key: &str, expected: &Value) -> Result<(), ConfigError> {
    match keys.get(key).filter(|value| !value.is_null() && *value != expected) {
        Some(found) => Err(ConfigError(format!(
            "expected '{key}' to be {expected}, found {found}: layers with other patterns of experts are not modelled"
        ))),
        None => Ok(()),
    }
}

fn qwen3_moe(keys: &Keys, config: Config) -> Result<Config, ConfigError> {
    must_be(keys, "decoder_sparse_step", &Value::from(1))?;
    must_be(keys, "mlp_only_layers", &Value::Array(Vec::new()))?;
    let width = size(keys, "moe_intermediate_size", "moe_intermediate_size")?;
    agree(keys, "num_experts", "num_local_experts")?;
    let count = if keys.contains_key("num_experts") { "num_experts" } else { "num_local_experts" };
    Ok(Config { qk_norm: true, experts: Some(experts(keys, count, width)?), ..config })
}

fn deepseek(keys: &Keys, config: Config) -> Result<Config, ConfigError> {
    must_be(keys, "moe_layer_freq", &Value::from(1))?;
    let kind = "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim moe_intermediate_size";
    let latent = latent(keys, kind)?;
    if flag(keys, "attention_bias", false)? {
        return Err(ConfigError(
            "expected latent attention without biases, found 'attention_bias': true: not modelled".to_string(),
        ));
    }
    if config.groups != config.heads {
        return Err(ConfigError(format!(
            "expected as many key and value heads as heads with latent attention, found {} and {}; correct 'num_key_value_heads'",
            config.groups, config.heads
        )));
    }
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
    if let Some(found) = keys.get("moe_layers").filter(|value| is_set(value)) {
        let usual = (0..config.layers).filter(|layer| layer % every == every - 1).map(Value::from);
        if *found != Value::Array(usual.collect()) {
            return Err(ConfigError(format!(
                "expected every {every}th of the layers in 'moe_layers', as 'interleave_moe_layer_step' says, found others; correct one"
            )));
        }
    }
    let width = config.mlp;
    let experts = Experts { every, shared_width: width, ..experts(keys, "num_local_experts", width)? };
    let mlp = optional(keys, "intermediate_size_mlp")?.unwrap_or(width);
    Ok(Config { mlp, experts: Some(experts), ..config })
}
