//! Reader of Hugging Face's `config.json`: GPT-2, Llama and its relatives, and families of mixtures of experts.

pub use super::keys::ConfigError;

use super::families::{self, windows};
use super::keys::{INSTEAD, divides, flag, is_set, lists, number, optional, size};
use super::transformer::{Activation, ActivationFunction, Biases, Config, Rotary, RotaryScaling, Style};
use serde_json::{Map, Value};

/// A model, with the unknown keys of its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// The model.
    pub config: Config,
    /// Unknown keys, which are assumed not to change the model.
    pub unknown: Vec<String>,
}

/// Keys that are read for GPT-2, separated by spaces.
const GPT2: &str = "n_layer n_head n_embd n_inner vocab_size n_positions n_ctx tie_word_embeddings";
/// Keys that are read for Llama and its relatives.
const LLAMA: &str = "num_hidden_layers num_attention_heads num_key_value_heads hidden_size intermediate_size head_dim vocab_size \
    tie_word_embeddings attention_bias mlp_bias sliding_window use_sliding_window layer_types";

/// Values of `model_type` of GPT-2, Llama and models with the same layers; [`families`] has the others.
const TYPES: [&str; 4] = ["gpt2", "llama", "mistral", "qwen2"];

/// Reads the text of Hugging Face's `config.json`.
///
/// # Errors
/// The text is not JSON, the `model_type` is unknown, a key describes an unsupported feature, or a size is missing or out of
/// range.
pub fn read(text: &str) -> Result<Described, ConfigError> {
    let value: Value = serde_json::from_str(text).map_err(|error| match text.trim().is_empty() {
        true => ConfigError("expected Hugging Face's config.json, found an empty file; download it again".to_string()),
        false => ConfigError(format!("expected Hugging Face's config.json, found invalid JSON ({error})")),
    })?;
    let Value::Object(keys) = value else {
        return Err(ConfigError(
            "expected Hugging Face's config.json, an object, found another JSON value".to_string(),
        ));
    };
    let kind = match keys.get("model_type").and_then(Value::as_str).unwrap_or_default() {
        "" if keys.contains_key("n_embd") => "gpt2",
        "" if keys.contains_key("hidden_size") => "llama",
        kind => kind,
    };
    let family = families::FAMILIES.iter().find(|family| family.kinds.contains(&kind));
    let (keys, beside) = families::text_model(&keys, kind)?;
    let more = family.map_or("", |family| family.keys);
    let read = |key: &str| lists(if kind == "gpt2" { GPT2 } else { LLAMA }, key) || lists(more, key);
    if let Some(found) = others(keys, read).find_map(unsupported) {
        return Err(ConfigError(format!(
            "expected a decoder of type '{kind}' with the layers of its family, {found}; {INSTEAD}"
        )));
    }
    if family.is_none() && !TYPES.contains(&kind) {
        let types: Vec<&str> = TYPES
            .into_iter()
            .chain(families::FAMILIES.iter().flat_map(|family| family.kinds.iter().copied()))
            .collect();
        let types = types.join(", ");
        return Err(ConfigError(format!("expected model_type to be one of {types}, found '{kind}'; {INSTEAD}")));
    }
    let config = match family {
        _ if kind == "gpt2" => gpt2(keys)?,
        Some(family) => (family.apply)(keys, llama(keys, kind)?)?,
        None => llama(keys, kind)?,
    };
    config.validate().map_err(|error| ConfigError(error.to_string()))?;
    Ok(Described { config, unknown: others(keys, read).map(|(key, _)| key.clone()).chain(beside).collect() })
}

/// Returns the activation function. Unknown ones cost the same, but cannot be executed.
fn function(keys: &Map<String, Value>, key: &str, default: &str) -> ActivationFunction {
    match keys.get(key).filter(|value| !value.is_null()).map_or(Some(default), Value::as_str) {
        Some("gelu_new" | "gelu_pytorch_tanh") => ActivationFunction::GeluTanh,
        Some("silu" | "swish") => ActivationFunction::Silu,
        Some("relu2" | "squared_relu") => ActivationFunction::SquaredRelu,
        _ => ActivationFunction::Other,
    }
}

/// Reads the rotary positions, at the top level or under `rope_parameters`, where later versions of `transformers` write them.
fn rotary(keys: &Map<String, Value>) -> Result<Rotary, ConfigError> {
    let nested = ["rope_parameters", "rope_scaling"].iter().find_map(|key| keys.get(*key).and_then(Value::as_object));
    let nested_theta = nested.map_or(Ok(None), |nested| number(nested, "rope_theta"))?;
    let theta = number(keys, "rope_theta")?.or(nested_theta).unwrap_or(10_000.0);
    let partial = |keys: &Map<String, Value>| keys.get("partial_rotary_factor").is_some_and(|factor| factor != 1.0);
    let scaling = match nested {
        _ if partial(keys) || nested.is_some_and(partial) => RotaryScaling::Other,
        None => RotaryScaling::None,
        Some(nested) => match nested.get("rope_type").or(nested.get("type")).and_then(Value::as_str) {
            Some("llama3") => {
                let read = |key: &str| {
                    let missing =
                        || ConfigError(format!("expected '{key}' of a llama3 rope_scaling, found none; add it"));
                    number(nested, key)?.ok_or_else(missing)
                };
                let [factor, low, high] = [read("factor")?, read("low_freq_factor")?, read("high_freq_factor")?];
                if high <= low {
                    let told = format!(
                        "expected 'high_freq_factor' above 'low_freq_factor', found {high} and {low}; correct them"
                    );
                    return Err(ConfigError(told));
                }
                let original_positions = read("original_max_position_embeddings")?;
                RotaryScaling::Llama3 { factor, low, high, original_positions }
            }
            None | Some("default") => RotaryScaling::None,
            Some(_) => RotaryScaling::Other,
        },
    };
    Ok(Rotary { theta, scaling })
}

fn gpt2(keys: &Map<String, Value>) -> Result<Config, ConfigError> {
    let size = |key| size(keys, key, GPT2);
    let (layers, heads, channels) = (size("n_layer")?, size("n_head")?, size("n_embd")?);
    let positions = optional(keys, "n_positions")?.or(optional(keys, "n_ctx")?).unwrap_or(1024);
    divides("n_embd", channels, "n_head", heads)?;
    let gpt = Config::gpt(size("vocab_size")?, positions, layers, heads, channels);
    let mlp = optional(keys, "n_inner")?.unwrap_or(gpt.mlp);
    let norm_epsilon = number(keys, "layer_norm_epsilon")?.unwrap_or(1e-5);
    let function = function(keys, "activation_function", "gelu_new");
    Ok(Config { mlp, function, norm_epsilon, tied: flag(keys, "tie_word_embeddings", true)?, ..gpt })
}

fn llama(keys: &Map<String, Value>, kind: &str) -> Result<Config, ConfigError> {
    let size = |key| size(keys, key, LLAMA);
    let (heads, channels) = (size("num_attention_heads")?, size("hidden_size")?);
    let head_size = match optional(keys, "head_dim")? {
        Some(size) => size,
        None => {
            divides("hidden_size", channels, "num_attention_heads", heads)?;
            channels / heads
        }
    };
    let attention_bias = flag(keys, "attention_bias", kind == "gpt_oss")?;
    let layers = size("num_hidden_layers")?;
    let (window, full_every) = windows(keys, kind, layers)?;
    let biases = Biases {
        norms: false,
        qkv: attention_bias || kind == "qwen2",
        projection: attention_bias,
        mlp: flag(keys, "mlp_bias", false)?,
    };
    Ok(Config {
        style: Style::Llama,
        biases,
        vocabulary_multiple: 1,
        rotary: Some(rotary(keys)?),
        groups: optional(keys, "num_key_value_heads")?.unwrap_or(heads),
        head_size,
        mlp: size("intermediate_size")?,
        activation: Activation::Gated,
        function: function(keys, "hidden_act", "silu"),
        norm_epsilon: number(keys, "rms_norm_eps")?.unwrap_or(1e-6),
        tied: flag(keys, "tie_word_embeddings", false)?,
        window,
        full_every,
        ..Config::gpt(size("vocab_size")?, 0, layers, heads, channels)
    })
}

/// Unsupported features, with substrings of their keys. Keys that are read are exempt.
const UNSUPPORTED: [(&str, &str); 11] = [
    ("experts are", "expert moe dense_replace sparse_step ffn_config"),
    ("multi-head latent attention is", "lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"),
    ("multi-token prediction is", "nextn mtp"),
    (
        "layers without softmax attention are",
        "mamba ssm rwkv recurrent linear_ conv_ _conv state_size attn_layer full_attention",
    ),
    ("layers that differ from each other are", "layer_types block_type block_configs per_layer"),
    ("attention windows are", "window sliding local_attention chunk_size sparse_"),
    ("these heads are", "multi_query kv_shared new_decoder_architecture"),
    ("these norms are", "qk_norm qk_layernorm norm_reorder"),
    ("these biases are", "bias"),
    ("encoders and cross-attention are", "cross_attention encoder"),
    ("composite models are", "vision audio text_config embedding_size embed_proj"),
];

/// Keys that change neither the number of parameters nor the matrix products and attention, separated by spaces.
const HARMLESS: &str = "\
    activation_function architectures attn_logit_softcapping auto_map chunk_size_feed_forward dtype final_logit_softcapping \
    gradient_checkpointing hidden_act hidden_activation id2label initializer_factor initializer_range is_decoder label2id \
    max_length max_position_embeddings max_sequence_length max_window_layers model_max_length model_type output_attentions \
    output_hidden_states partial_rotary_factor pretraining_tp quantization_config query_pre_attn_scalar \
    reorder_and_upcast_attn return_dict scale_attn_by_inverse_layer_idx scale_attn_weights task_specific_params \
    tokenizer_class torch_dtype transformers_version use_cache";

/// Prefixes and suffixes of harmless keys.
const HARMLESS_STARTS: &[&str] = &["_", "rope_", "summary_"];
const HARMLESS_ENDS: &[&str] = &["_token_id", "_eps", "_epsilon", "_pdrop", "_dropout", "_theta"];

fn is_harmless(key: &str) -> bool {
    lists(HARMLESS, key)
        || HARMLESS_STARTS.iter().any(|start| key.starts_with(start))
        || HARMLESS_ENDS.iter().any(|end| key.ends_with(end))
}

/// Returns the keys that are set, not in `read` and not harmless.
fn others(keys: &Map<String, Value>, read: impl Fn(&str) -> bool + Copy) -> impl Iterator<Item = (&String, &Value)> {
    keys.iter().filter(move |(key, value)| is_set(value) && !read(key) && !is_harmless(key))
}

/// Describes a key of an unsupported feature.
fn unsupported((key, value): (&String, &Value)) -> Option<String> {
    let (what, _) = UNSUPPORTED.iter().find(|(_, parts)| parts.split(' ').any(|part| key.contains(part)))?;
    let value = match value {
        Value::Array(_) | Value::Object(_) => String::new(),
        value => format!(": {value}"),
    };
    Some(format!("found '{key}'{value}, but {what} not supported there"))
}
