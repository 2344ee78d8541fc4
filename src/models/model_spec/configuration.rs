//! The sizes that the keys of a Hugging Face `config.json` give, by the family that its `model_type` names.

use super::families::{self, FAMILIES, Family};
use super::keys::{ConfigError, agree, divides, flag, is_set, lists, number, optional, size};
use super::transformer::{Activation, ActivationFunction, Biases, Config, Rotary, RotaryScaling, Style};
use super::windows::windows;
use pipesim_schedule::nearest::plain;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Keys that are read for GPT-2, separated by spaces.
const GPT2: &str = "n_layer n_head n_embd n_inner vocab_size n_positions n_ctx tie_word_embeddings layer_norm_epsilon activation_function";
/// Keys that are read for Llama and its relatives.
const LLAMA: &str = "num_hidden_layers num_attention_heads num_key_value_heads hidden_size intermediate_size head_dim vocab_size \
    tie_word_embeddings attention_bias mlp_bias sliding_window use_sliding_window layer_types rope_theta rope_scaling rope_parameters \
    rms_norm_eps hidden_act";

/// Values of `model_type` of GPT-2, Llama and models with the same layers; [`families`] has the others.
pub(super) const TYPES: [&str; 4] = ["gpt2", "llama", "mistral", "qwen2"];

/// The keys of a file, with the family that reads them.
pub(super) struct Configuration<'a> {
    /// Keys of the text model.
    pub keys: Cow<'a, Map<String, Value>>,
    /// The `model_type`, or the one that keys reveal.
    pub named: &'a str,
    /// The file's other parts.
    pub beside: Vec<String>,
    /// The type whose layers these are.
    kind: &'a str,
    family: Option<&'static Family>,
}

impl Configuration<'_> {
    pub fn of(keys: &Map<String, Value>) -> Configuration<'_> {
        let named = match keys.get("model_type").and_then(Value::as_str).unwrap_or_default() {
            "" if keys.contains_key("n_embd") => "gpt2",
            "" if keys.contains_key("hidden_size") => "llama",
            kind => kind,
        };
        let kind = families::alias(named);
        let family = FAMILIES.iter().find(|family| family.kinds.contains(&kind));
        let (keys, beside) = families::text_model(keys);
        Configuration { keys, named, beside, kind, family }
    }

    /// Returns the class in `architectures` of another family.
    pub fn other_class(&self) -> Option<&str> {
        let class = self.keys.get("architectures")?.get(0)?.as_str()?;
        let is_of = |kind: &&str| {
            let rest = class.to_lowercase().strip_prefix(&plain(kind)).map(str::to_string);
            rest.is_some_and(|rest| ["for", "lmhead", "model"].iter().any(|next| rest.starts_with(next)))
        };
        let of_families = FAMILIES.iter().flat_map(|family| family.kinds).copied();
        let named = TYPES.into_iter().chain(of_families).find(is_of)?;
        let is_own = named == self.kind || self.family.is_some_and(|family| family.kinds.contains(&named));
        (!is_own).then_some(class)
    }

    pub fn is_known(&self) -> bool {
        self.family.is_some() || TYPES.contains(&self.kind)
    }

    /// Whether the family reads this key.
    pub fn reads(&self, key: &str) -> bool {
        let of_qwen = if self.kind.starts_with("qwen") { "max_window_layers" } else { "" };
        let of_kind = [if self.kind == "gpt2" { GPT2 } else { LLAMA }, self.family.map_or("", |one| one.keys), of_qwen];
        of_kind.iter().any(|known| lists(known, key))
    }

    /// Reads the sizes.
    ///
    /// # Errors
    /// A size is missing or out of range, or keys contradict each other.
    pub fn sizes(&self) -> Result<Config, ConfigError> {
        let keys = &*self.keys;
        let config = match self.family {
            _ if self.kind == "gpt2" => gpt2(keys)?,
            Some(Family { apply, .. }) => apply(keys, llama(keys, self.kind)?)?,
            None => llama(keys, self.kind)?,
        };
        config.validate().map_err(|error| ConfigError(error.to_string()))?;
        Ok(config)
    }
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
    let given = ["rope_parameters", "rope_scaling"].iter().find(|key| keys.get(**key).is_some_and(is_set));
    let nested = match given.and_then(|key| keys.get_key_value(*key)) {
        None => None,
        Some((_, Value::Object(nested))) => Some(nested),
        Some((key, found)) => {
            return Err(ConfigError(format!("expected '{key}' to be an object, found {found}; correct it")));
        }
    };
    let nested_theta = nested.map_or(Ok(None), |nested| number(nested, "rope_theta"))?;
    let theta = match (number(keys, "rope_theta")?, nested_theta) {
        (Some(one), Some(other)) if one != other => {
            return Err(ConfigError(format!(
                "expected one 'rope_theta', found {one} and {other}; leave one of them out"
            )));
        }
        (one, other) => one.or(other).unwrap_or(10_000.0),
    };
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
                if high < low {
                    let told = format!(
                        "expected 'high_freq_factor' of at least 'low_freq_factor', found {high} and {low}; correct them"
                    );
                    return Err(ConfigError(told));
                }
                let original_positions = read("original_max_position_embeddings")?;
                RotaryScaling::Llama3 { factor, low, high, original_positions }
            }
            None if nested.get("factor").is_some_and(|factor| factor.as_f64() != Some(1.0)) => RotaryScaling::Other,
            None | Some("default") => RotaryScaling::None,
            Some(_) => RotaryScaling::Other,
        },
    };
    Ok(Rotary { theta, scaling })
}

fn gpt2(keys: &Map<String, Value>) -> Result<Config, ConfigError> {
    let size = |key| size(keys, key, GPT2);
    let (layers, heads, channels) = (size("n_layer")?, size("n_head")?, size("n_embd")?);
    let positions = agree(keys, "n_positions", "n_ctx")?.unwrap_or(1024);
    divides("n_embd", channels, "n_head", heads)?;
    let gpt = Config::gpt(size("vocab_size")?, positions, layers, heads, channels);
    let mlp = optional(keys, "n_inner")?.unwrap_or(gpt.mlp);
    let norm_epsilon = number(keys, "layer_norm_epsilon")?.unwrap_or(1e-5);
    let function = function(keys, "activation_function", "gelu_new");
    Ok(Config { mlp, function, norm_epsilon, tied: flag(keys, "tie_word_embeddings", true)?, ..gpt })
}

/// Channels per head of families whose default is not the hidden size by heads.
const HEAD_SIZES: [(&str, usize); 3] = [("qwen3", 128), ("gemma2", 256), ("gpt_oss", 64)];

fn llama(keys: &Map<String, Value>, kind: &str) -> Result<Config, ConfigError> {
    let size = |key| size(keys, key, LLAMA);
    let (heads, channels) = (size("num_attention_heads")?, size("hidden_size")?);
    let usual = HEAD_SIZES.iter().find(|(family, _)| *family == kind).map(|(_, size)| *size);
    let head_size = match optional(keys, "head_dim")?.or(usual) {
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
        projection: attention_bias && kind != "qwen2", // whose biases are fixed
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
