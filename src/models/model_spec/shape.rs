//! Reader of shape files: a model's sizes in JSON with short keys, as in tables of published steps. Unknown keys are rejected.

use super::json;
use super::keys::{ConfigError, agree, divides, flag, latent, lists, optional, size};
use super::mixture::Experts;
use super::operation::Window;
use super::transformer::{Activation, ActivationFunction, Biases, Config, QkNorm, Rotary, Style};
use serde_json::{Map, Value};

type Keys = Map<String, Value>;

/// Keys that are read.
const READ: &str = "arch moe layers hidden heads kv_heads head_dim ffn dense_ffn gated_mlp vocab tied act pos bias qkv_bias qk_norm attention \
    q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim dense_first moe_every experts top_k moe_ffn shared_experts \
    shared_ffn mtp_layers router_groups router_group_top_k sliding_window sliding_every embedding_norm projected params params_total_b";
/// Keys that say where the sizes come from.
const REMARKS: &str = "name base source notes from_memory params_active_b";

/// Substrings of keys and values for features that are not modelled.
const NOT_MODELLED: [(&str, &str); 16] = [
    ("mamba", "Mamba layers are"),
    ("ssm", "state-space layers are"),
    ("linear", "linear attention is"),
    ("delta", "delta-net layers are"),
    ("rwkv", "recurrent layers are"),
    ("recurrent", "recurrent layers are"),
    ("hybrid", "hybrid layers are"),
    ("vision", "encoders of images are"),
    ("audio", "encoders of sound are"),
    ("cross", "cross-attention is"),
    ("encoder", "encoders are"),
    ("conv", "convolutions are"),
    ("sparse", "sparse attention is"),
    ("index", "sparse attention is"),
    ("hyper", "hyper-connections are"),
    ("lora", "adapters are"),
];

fn wrong<T>(text: String) -> Result<T, ConfigError> {
    Err(ConfigError(text))
}

/// Returns whether a JSON object is a shape file rather than one of Hugging Face's.
pub fn is_shape(text: &str) -> bool {
    json::object(text, "").is_ok_and(|keys| {
        !keys.contains_key("model_type") && (keys.contains_key("hidden") || keys.contains_key("layers"))
    })
}

/// Reads a shape file. Models with learned positions get positions for `sequence` tokens.
///
/// # Errors
/// An unknown key, a feature that is not modelled, or impossible sizes.
pub fn read(text: &str, sequence: usize) -> Result<Config, ConfigError> {
    let keys = json::object(text, "a shape file")?;
    if let Some(key) = keys.keys().find(|key| !lists(READ, key) && !lists(REMARKS, key)) {
        return unknown(key);
    }
    let config = attention(&keys, mixture(&keys, dense(&keys, sequence)?)?)?;
    config.validate().map_err(|error| ConfigError(error.to_string()))?;
    check_parameters(&keys, &config)?;
    Ok(config)
}

fn not_modelled(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase();
    NOT_MODELLED.iter().find(|(part, _)| text.contains(part)).map(|(_, what)| *what)
}

fn unknown<T>(key: &str) -> Result<T, ConfigError> {
    match not_modelled(key) {
        Some(what) => wrong(format!("'{key}': {what} not modelled; take a model without")),
        None => wrong(format!(
            "'{key}' is not a known key, and may change the model; leave it out, or write one of {}",
            READ.split(' ').collect::<Vec<_>>().join(", ")
        )),
    }
}

/// Returns the value of a key that takes one of a few texts; the first if it is missing.
fn one_of<'a>(keys: &'a Keys, key: &str, known: &[&'a str]) -> Result<&'a str, ConfigError> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(known[0]),
        Some(Value::String(text)) if known.contains(&text.as_str()) => Ok(text),
        Some(found) => match found.as_str().and_then(not_modelled) {
            Some(what) => wrong(format!("'{key}': {found}: {what} not modelled; take a model without")),
            None => wrong(format!(
                "expected '{key}' to be one of {}, found {found}; others are not modelled",
                known.join(", ")
            )),
        },
    }
}

const NEEDED: &str = "layers hidden heads vocab ffn";

fn dense(keys: &Keys, sequence: usize) -> Result<Config, ConfigError> {
    let is_gpt = match keys.get("arch") {
        None | Some(Value::Null) => {
            return wrong("expected 'arch', found none; write gpt (LayerNorm, biases) or llama".to_string());
        }
        Some(_) => one_of(keys, "arch", &["gpt", "llama"])? == "gpt",
    };
    let (heads, hidden) = (size(keys, "heads", NEEDED)?, size(keys, "hidden", NEEDED)?);
    let head_size = match optional(keys, "head_dim")? {
        Some(size) => size,
        None => {
            divides("hidden", hidden, "heads", heads)?;
            hidden / heads
        }
    };
    let mlp = match (agree(keys, "ffn", "dense_ffn")?, optional(keys, "experts")?.is_some_and(|count| count > 0)) {
        (Some(width), _) => width,
        (None, true) if !has_dense_layers(keys)? => size(keys, "moe_ffn", NEEDED)?, // no layer has this width
        (None, _) if is_gpt => hidden.saturating_mul(4),
        (None, _) => size(keys, "ffn", NEEDED)?,
    };
    let pos = one_of(
        keys,
        "pos",
        if is_gpt { &["learned", "rope", "alibi", "none"] } else { &["rope", "learned", "alibi", "none"] },
    )?;
    let named = one_of(keys, "act", &["gelu", "squared_relu", "relu", "silu", "swiglu", "geglu"])?;
    let (names_gate, usual) = (["swiglu", "geglu"].contains(&named), !is_gpt);
    let is_gated = flag(keys, "gated_mlp", usual || names_gate)?;
    if names_gate && !is_gated {
        return wrong(format!(
            "expected 'gated_mlp' true with 'act' {named}, which has a gate, found false; correct one"
        ));
    }
    let biases = match flag(keys, "bias", is_gpt)? {
        true => Biases { norms: is_gpt, ..Biases::ALL },
        false => Biases { qkv: flag(keys, "qkv_bias", false)?, ..Biases::NONE },
    };
    Ok(Config {
        style: if is_gpt { Style::Gpt } else { Style::Llama },
        biases,
        vocabulary_multiple: 1,
        rotary: (pos == "rope").then_some(Rotary::new(10_000.0)),
        groups: groups(keys, heads)?,
        head_size,
        mlp,
        activation: if is_gated { Activation::Gated } else { Activation::Plain },
        function: match named {
            "gelu" => ActivationFunction::GeluTanh,
            "squared_relu" => ActivationFunction::SquaredRelu,
            _ => ActivationFunction::Other,
        },
        embedding_norm: flag(keys, "embedding_norm", false)?,
        projected: optional(keys, "projected")?,
        tied: flag(keys, "tied", is_gpt)?,
        qk_norm: if flag(keys, "qk_norm", false)? { QkNorm::Head } else { QkNorm::None },
        prediction_layers: optional(keys, "mtp_layers")?.unwrap_or(0),
        ..Config::gpt(
            size(keys, "vocab", NEEDED)?,
            if pos == "learned" { sequence } else { 0 },
            size(keys, "layers", NEEDED)?,
            heads,
            hidden,
        )
    })
}

/// Returns the number of key and value heads, which the kind of attention and a key of their own say.
fn groups(keys: &Keys, heads: usize) -> Result<usize, ConfigError> {
    let given = optional(keys, "kv_heads")?;
    let kind = one_of(keys, "attention", &ATTENTION)?;
    let is_named = keys.get("attention").is_some_and(|kind| !kind.is_null());
    let (expected, what) = match kind {
        "mqa" => (Some(1), "1"),
        "mha" | "mla" => (Some(heads), "the number of heads"),
        _ => (None, ""),
    };
    match (given, expected) {
        (Some(found), Some(expected)) if found != expected => wrong(format!(
            "expected 'kv_heads' to be {what} with 'attention' {kind}, found {found}; correct one of them"
        )),
        (None, None) if is_named => wrong(format!("expected 'kv_heads' with 'attention' {kind}, found none; add it")),
        (given, expected) => Ok(given.or(expected).unwrap_or(heads)),
    }
}

/// Whether a mixture has layers without experts, too.
fn has_dense_layers(keys: &Keys) -> Result<bool, ConfigError> {
    let [first, every] = [optional(keys, "dense_first")?, optional(keys, "moe_every")?];
    Ok(first.unwrap_or(0) > 0 || every.unwrap_or(1) > 1)
}

/// Keys that only mixtures have.
const OF_MIXTURES: &str =
    "top_k moe_ffn shared_experts shared_ffn router_groups router_group_top_k dense_first moe_every";

fn mixture(keys: &Keys, config: Config) -> Result<Config, ConfigError> {
    let count = optional(keys, "experts")?.filter(|&count| count > 0);
    let says = flag(keys, "moe", count.is_some())?;
    let Some(count) = count.filter(|_| says) else {
        if says || count.is_some() {
            return wrong("expected 'moe' true with 'experts', and false without; correct one of them".to_string());
        }
        // every layer of a dense model is like every other one
        let set = |key: &&str| {
            keys.get(*key).and_then(Value::as_u64).is_some_and(|size| size > u64::from(*key == "moe_every"))
        };
        return match OF_MIXTURES.split(' ').find(set) {
            Some(key) => wrong(format!("expected 'experts' with '{key}', found none; add it or leave '{key}' out")),
            None => Ok(config),
        };
    };
    let needed = "experts top_k moe_ffn";
    let width = size(keys, "moe_ffn", needed)?;
    let shared = optional(keys, "shared_experts")?;
    let shared_width = match (optional(keys, "shared_ffn")?, shared) {
        (Some(width), Some(0)) if width > 0 => {
            return wrong(format!(
                "expected 'shared_ffn' 0 without 'shared_experts', found {width}; correct one of them"
            ));
        }
        (Some(0), Some(count)) if count > 0 => {
            return wrong(format!(
                "expected 'shared_ffn' above 0 with {count} 'shared_experts', found 0; correct one of them"
            ));
        }
        (Some(width), _) => width,
        (None, count) => count.unwrap_or(0).saturating_mul(width),
    };
    let groups = optional(keys, "router_groups")?.unwrap_or(1).max(1);
    let experts = Experts {
        shared_width,
        dense_first: optional(keys, "dense_first")?.unwrap_or(0),
        every: optional(keys, "moe_every")?.unwrap_or(1),
        router_groups: groups,
        group_top_k: optional(keys, "router_group_top_k")?.unwrap_or(groups).max(1),
        ..Experts::new(count, size(keys, "top_k", needed)?, width)
    };
    if experts.every == 0 {
        return wrong("expected 'moe_every' of at least 1, found 0; write 1 for experts in each layer".to_string());
    }
    Ok(Config { experts: Some(experts), ..config })
}

/// Kinds of attention; the first needs no name.
const ATTENTION: [&str; 4] = ["gqa", "mha", "mqa", "mla"];
/// Keys that only latent attention has.
const OF_LATENT: &str = "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim";

fn attention(keys: &Keys, config: Config) -> Result<Config, ConfigError> {
    let tokens = optional(keys, "sliding_window")?;
    let full_every = match optional(keys, "sliding_every")? {
        None | Some(1) => 0,
        Some(2) => 2,
        Some(other) => {
            return wrong(format!(
                "expected 'sliding_every' 1 or 2, found {other}: other patterns of windows are not modelled"
            ));
        }
    };
    let window = tokens.filter(|&tokens| tokens > 0).map(|tokens| Window { tokens, is_chunked: false });
    if window.is_none() && full_every > 0 {
        return wrong(
            "expected 'sliding_window' with 'sliding_every' 2, found none; add it or leave both out".to_string(),
        );
    }
    let config = Config { window, full_every, ..config };
    if one_of(keys, "attention", &ATTENTION)? != "mla" {
        let given = OF_LATENT.split(' ').find(|key| keys.get(*key).is_some_and(|value| !value.is_null()));
        return match given {
            Some(key) => {
                wrong(format!("expected 'attention' mla with '{key}', found another; add it or leave '{key}' out"))
            }
            None => Ok(config),
        };
    }
    let latent = latent(keys, OF_LATENT)?;
    if flag(keys, "qk_norm", false)? {
        return wrong("'qk_norm' with latent attention is not modelled; leave it out".to_string());
    }
    if config.biases.qkv {
        return wrong("biases with latent attention are not modelled; write \"bias\": false".to_string());
    }
    let config = config.with_latent(latent);
    match optional(keys, "head_dim")? {
        Some(size) if size != config.head_size => {
            return wrong(format!(
                "expected 'head_dim' to be 'qk_nope_head_dim' and 'qk_rope_head_dim' together, {}, found {size}; leave it out",
                config.head_size
            ));
        }
        _ => {}
    }
    Ok(config)
}

/// Rejects sizes that give another number of parameters than the file says, beyond what embeddings and norms can explain.
fn check_parameters(keys: &Keys, config: &Config) -> Result<(), ConfigError> {
    let spec = config.spec();
    let (all, active) = (spec.parameters() as f64, spec.active_parameters() as f64);
    for (key, unit, found, most) in
        [("params", 1.0, all, 0.05), ("params_total_b", 1e9, all, 0.05), ("params_active_b", 1e9, active, 0.2)]
    {
        let Some(stated) = keys.get(key).and_then(Value::as_f64).map(|number| number * unit) else { continue };
        if (found / stated - 1.0).abs() > most {
            return wrong(format!(
                "expected sizes of {:.2} G parameters, as '{key}' says, found {:.2} G; correct one",
                stated / 1e9,
                found / 1e9
            ));
        }
    }
    Ok(())
}
