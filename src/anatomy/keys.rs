//! The keys of a `config.json`: which change a model, which do not, and which are unknown.

use serde_json::{Map, Value};

/// Parts of keys that stand for something no description here has, and what that is. A key that is read is exempt.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("mixture-of-experts models are not supported", &["expert", "moe", "dense_replace", "sparse_step", "ffn_config"]),
    (
        "multi-head latent attention is not supported",
        &["lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"],
    ),
    ("multi-token prediction is not supported", &["nextn", "mtp"]),
    (
        "layers without softmax attention are not supported",
        &[
            "mamba",
            "ssm",
            "rwkv",
            "recurrent",
            "linear_",
            "conv_",
            "_conv",
            "state_size",
            "attn_layer",
            "full_attention",
        ],
    ),
    (
        "layers that differ from each other are not supported",
        &["layer_types", "block_type", "block_configs", "per_layer"],
    ),
    ("attention windows are not supported", &["window", "sliding", "local_attention", "chunk_size", "sparse_"]),
    ("these heads are not supported", &["multi_query", "kv_shared", "new_decoder_architecture"]),
    ("these norms are not supported", &["qk_norm", "qk_layernorm", "norm_reorder"]),
    ("these biases are not supported", &["bias"]),
    ("encoders and cross-attention are not supported", &["cross_attention", "encoder"]),
    ("a model of several models is not supported", &["vision", "audio", "text_config", "embedding_size", "embed_proj"]),
];

/// Keys that change neither the number of parameters nor what is computed in matrix products and attention.
const HARMLESS: &[&str] = &[
    "activation_function",
    "architectures",
    "attn_logit_softcapping",
    "auto_map",
    "chunk_size_feed_forward",
    "dtype",
    "final_logit_softcapping",
    "gradient_checkpointing",
    "hidden_act",
    "hidden_activation",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "label2id",
    "max_length",
    "max_position_embeddings",
    "max_sequence_length",
    "max_window_layers",
    "model_max_length",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "partial_rotary_factor",
    "pretraining_tp",
    "quantization_config",
    "query_pre_attn_scalar",
    "reorder_and_upcast_attn",
    "return_dict",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Beginnings and ends of such keys.
const HARMLESS_STARTS: &[&str] = &["_", "rope_", "summary_"];
const HARMLESS_ENDS: &[&str] = &["_token_id", "_eps", "_epsilon", "_pdrop", "_dropout", "_theta"];

/// Whether a key says something: null, false, 0 and what is empty say that there is no such thing.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(yes) => *yes,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

fn is_harmless(key: &str) -> bool {
    HARMLESS.contains(&key)
        || HARMLESS_STARTS.iter().any(|start| key.starts_with(start))
        || HARMLESS_ENDS.iter().any(|end| key.ends_with(end))
}

/// The first key that changes the model in a way that is not described here, and what to say of it; `read` are keys that are.
pub(super) fn unsupported(keys: &Map<String, Value>, read: &[&str]) -> Option<String> {
    let mut set =
        keys.iter().filter(|(key, value)| is_set(value) && !read.contains(&key.as_str()) && !is_harmless(key));
    set.find_map(|(key, value)| {
        let (why, _) = UNSUPPORTED.iter().find(|(_, parts)| parts.iter().any(|part| key.contains(part)))?;
        let value = match value {
            Value::Array(_) | Value::Object(_) => String::new(),
            value => format!(": {value}"),
        };
        Some(format!("found '{key}'{value}, but {why}"))
    })
}

/// Keys of which nothing is known.
pub(super) fn unknown(keys: &Map<String, Value>, read: &[&str]) -> Vec<String> {
    let set = keys.iter().filter(|(key, value)| is_set(value) && !read.contains(&key.as_str()) && !is_harmless(key));
    set.map(|(key, _)| key.clone()).collect()
}
