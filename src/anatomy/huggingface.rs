//! Reader of Hugging Face's `config.json` for models of the GPT-2 and Llama families.

use super::keys::{unknown, unsupported};
use super::transformer::{Activation, Biases, Config, Style};
use serde_json::{Map, Value};

/// Why a file describes no supported model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// A model, with the unknown keys of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The model.
    pub config: Config,
    /// Unknown keys, which are assumed not to change the model.
    pub unknown: Vec<String>,
}

/// Keys that are read for GPT-2.
const GPT2: &[&str] =
    &["n_layer", "n_head", "n_embd", "n_inner", "vocab_size", "n_positions", "n_ctx", "tie_word_embeddings"];
/// Keys that are read for Llama and its relatives.
const LLAMA: &[&str] = &[
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
];

/// Supported values of `model_type`.
const TYPES: [&str; 4] = ["gpt2", "llama", "mistral", "qwen2"];

/// Reads the text of a `config.json`.
///
/// # Errors
/// The text is not JSON, the `model_type` is unknown, a key describes an unsupported feature, or a size is missing or out of
/// range.
pub fn read(text: &str) -> Result<Described, Unreadable> {
    let value: Value = serde_json::from_str(text).map_err(|error| match text.trim().is_empty() {
        true => Unreadable("expected Hugging Face's config.json, found an empty file; download it again".to_string()),
        false => Unreadable(format!("expected Hugging Face's config.json, found invalid JSON ({error})")),
    })?;
    let Value::Object(keys) = value else {
        return Err(Unreadable("expected Hugging Face's config.json, an object, found another JSON value".to_string()));
    };
    let kind = match keys.get("model_type").and_then(Value::as_str).unwrap_or_default() {
        "" if keys.contains_key("n_embd") => "gpt2",
        "" if keys.contains_key("hidden_size") => "llama",
        kind => kind,
    };
    let read = if kind == "gpt2" { GPT2 } else { LLAMA };
    if let Some(found) = unsupported(&keys, read) {
        return Err(Unreadable(format!("expected a decoder of equal blocks, {found}; {INSTEAD}")));
    }
    if !TYPES.contains(&kind) {
        let types = TYPES.join(", ");
        return Err(Unreadable(format!("expected model_type to be one of {types}, found '{kind}'; {INSTEAD}")));
    }
    let config = if kind == "gpt2" { gpt2(&keys)? } else { llama(&keys, kind)? };
    config.validate().map_err(|error| Unreadable(error.to_string()))?;
    Ok(Described { config, unknown: unknown(&keys, read) })
}

/// Advice for unsupported models.
const INSTEAD: &str = "take a dense model of similar sizes, such as --model llama-3-8b";

/// Reads a whole number.
fn size(keys: &Map<String, Value>, key: &str, kind: &[&str]) -> Result<usize, Unreadable> {
    let missing = || Unreadable(format!("expected '{key}', found none; a model of this type has {}", kind.join(", ")));
    optional(keys, key)?.ok_or_else(missing)
}

/// Reads a whole number; `None` if the key is missing or null.
fn optional(keys: &Map<String, Value>, key: &str) -> Result<Option<usize>, Unreadable> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            let wrong = || Unreadable(format!("expected '{key}' to be a whole number, found {value}; correct it"));
            Ok(Some(number.ok_or_else(wrong)?))
        }
    }
}

fn flag(keys: &Map<String, Value>, key: &str, default: bool) -> Result<bool, Unreadable> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => {
            value.as_bool().ok_or_else(|| Unreadable(format!("expected '{key}' to be true or false, found {value}")))
        }
    }
}

fn gpt2(keys: &Map<String, Value>) -> Result<Config, Unreadable> {
    let size = |key| size(keys, key, GPT2);
    let (layers, heads, channels) = (size("n_layer")?, size("n_head")?, size("n_embd")?);
    let positions = optional(keys, "n_positions")?.or(optional(keys, "n_ctx")?).unwrap_or(1024);
    divides("n_embd", channels, "n_head", heads)?;
    let gpt = Config::gpt(size("vocab_size")?, positions, layers, heads, channels);
    let mlp = optional(keys, "n_inner")?.unwrap_or(gpt.mlp);
    Ok(Config { mlp, tied: flag(keys, "tie_word_embeddings", true)?, ..gpt })
}

/// Returns the attention window in tokens. Qwen's files name a window even if it is not used.
fn window(keys: &Map<String, Value>, kind: &str) -> Result<Option<usize>, Unreadable> {
    let layers = match keys.get("layer_types") {
        Some(Value::Array(layers)) => layers.clone(),
        _ => Vec::new(),
    };
    let kinds = ["full_attention", "sliding_attention"];
    if let Some(other) = layers.iter().find(|layer| !layer.as_str().is_some_and(|layer| kinds.contains(&layer))) {
        return Err(Unreadable(format!("expected layers among {}, found {other}; {INSTEAD}", kinds.join(", "))));
    }
    let slides = layers.is_empty() || layers.iter().any(|layer| layer == "sliding_attention");
    let is_used = flag(keys, "use_sliding_window", kind != "qwen2")?;
    let window = optional(keys, "sliding_window")?;
    Ok(window.filter(|_| slides && is_used))
}

fn llama(keys: &Map<String, Value>, kind: &str) -> Result<Config, Unreadable> {
    let size = |key| size(keys, key, LLAMA);
    let (heads, channels) = (size("num_attention_heads")?, size("hidden_size")?);
    let head_size = match optional(keys, "head_dim")? {
        Some(size) => size,
        None => {
            divides("hidden_size", channels, "num_attention_heads", heads)?;
            channels / heads
        }
    };
    let attention_bias = flag(keys, "attention_bias", false)?;
    Ok(Config {
        style: Style::Llama,
        biases: Biases {
            norms: false,
            qkv: attention_bias || kind == "qwen2",
            projection: attention_bias,
            mlp: flag(keys, "mlp_bias", false)?,
        },
        embedding_norm: false,
        vocabulary: size("vocab_size")?,
        vocabulary_multiple: 1,
        positions: 0,
        rotary: true,
        layers: size("num_hidden_layers")?,
        heads,
        groups: optional(keys, "num_key_value_heads")?.unwrap_or(heads),
        head_size,
        channels,
        mlp: size("intermediate_size")?,
        activation: Activation::Gated,
        tied: flag(keys, "tie_word_embeddings", false)?,
        window: window(keys, kind)?,
        projected: None,
    })
}

fn divides(of: &str, whole: usize, by: &str, part: usize) -> Result<(), Unreadable> {
    if part == 0 || !whole.is_multiple_of(part) {
        return Err(Unreadable(format!(
            "expected '{of}' to be a multiple of '{by}', found {whole} and {part}; correct one"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_files_give_the_published_models() {
        let llama = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
            "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0,
            "tie_word_embeddings": false, "torch_dtype": "bfloat16", "max_position_embeddings": 8192}"#;
        assert_eq!(read(llama).unwrap().config.anatomy().parameters(), 70_553_706_496);
        let gpt2 = r#"{"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}"#;
        assert_eq!(read(gpt2).unwrap().config.anatomy().parameters(), 124_439_808);
    }

    #[test]
    fn other_files_are_refused_in_one_line() {
        let said = |text: &str| read(text).unwrap_err().to_string();
        assert!(said("[]").contains("an object"));
        assert!(said("{").contains("invalid JSON"));
        let unknown = said(r#"{"model_type": "phi3", "hidden_size": 3072}"#);
        assert!(unknown.contains("gpt2, llama, mistral, qwen2, found 'phi3'"), "{unknown}");
        assert!(said(r#"{"model_type": "llama", "hidden_size": -1}"#).contains("'num_attention_heads', found none"));
        let text = r#"{"model_type": "gpt2", "n_layer": 2, "n_head": 5, "n_embd": 768, "vocab_size": 10}"#;
        assert!(said(text).contains("multiple"));
        let text = r#"{"model_type": "gpt2", "n_layer": 1.5, "n_head": 12, "n_embd": 768, "vocab_size": 10}"#;
        assert!(said(text).contains("'n_layer' to be a whole number, found 1.5"));
        let text = r#"{"model_type": "gpt2", "n_layer": 0, "n_head": 12, "n_embd": 768, "vocab_size": 10}"#;
        assert!(said(text).contains("layers"));
    }

    const LLAMA_3: &str = r#""architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.0",
        "use_cache": true, "vocab_size": 128256"#;

    fn llama_3(more: &str) -> String {
        format!("{{{LLAMA_3}, {more}}}")
    }

    #[test]
    fn harmless_keys_are_no_trouble_and_unknown_ones_are_named() {
        let described = read(&llama_3(r#""model_type": "llama""#)).unwrap();
        assert_eq!((described.config.anatomy().parameters(), described.unknown), (8_030_261_248, Vec::new()));
        let described = read(&llama_3(r#""model_type": "llama", "flux_factor": 3, "sliding_window": null"#)).unwrap();
        assert_eq!(described.unknown, ["flux_factor"]);
        // Qwen2.5 7B: biases for queries, keys and values; a window that is not used
        let qwen = r#"{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 3584,
            "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2",
            "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
            "sliding_window": 131072, "tie_word_embeddings": false, "use_mrope": false, "use_sliding_window": false, "vocab_size": 152064}"#;
        let described = read(qwen).unwrap();
        assert_eq!((described.config.anatomy().parameters(), described.config.window), (7_615_616_512, None));
        assert_eq!(described.unknown, Vec::<String>::new());
        let gpt2 = r#"{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
            "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
            "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_type": "cls_index",
            "summary_use_proj": true, "task_specific_params": {"text-generation": {"max_length": 50}}, "vocab_size": 50257}"#;
        assert_eq!(read(gpt2).unwrap().unknown, Vec::<String>::new());
    }

    #[test]
    fn biases_and_windows_are_read() {
        let of = |more: &str| read(&llama_3(&format!("{more}, \"model_type\": \"llama\""))).unwrap().config;
        let parameters = |config: Config| config.anatomy().parameters();
        let plain = parameters(of(r#""attention_bias": false"#));
        // queries 4096, keys and values 1024 each, the projection 4096; gate and up 14336 each, down 4096
        assert_eq!(parameters(of(r#""attention_bias": true"#)) - plain, 32 * (4096 + 2 * 1024 + 4096));
        assert_eq!(parameters(of(r#""mlp_bias": true"#)) - plain, 32 * (2 * 14336 + 4096));
        assert_eq!(of(r#""sliding_window": 4096"#).window, Some(4096));
        assert_eq!(of(r#""sliding_window": 4096, "use_sliding_window": false"#).window, None);
        assert_eq!(of(r#""sliding_window": 4096, "layer_types": ["full_attention"]"#).window, None);
    }

    #[test]
    fn keys_that_change_the_model_are_refused_by_name() {
        for (kind, keys) in [
            ("llama", r#""num_local_experts": 8, "num_experts_per_tok": 2"#),
            ("mixtral", r#""num_local_experts": 8, "num_experts_per_tok": 2"#),
            ("qwen2", r#""num_experts": 64, "moe_intermediate_size": 1408"#),
            ("deepseek_v3", r#""n_routed_experts": 256, "first_k_dense_replace": 3"#),
        ] {
            let said = read(&llama_3(&format!("{keys}, \"model_type\": \"{kind}\""))).unwrap_err().to_string();
            assert!(said.contains("mixture-of-experts models are not supported") && said.contains("found '"), "{said}");
            assert!(!said.contains("model_type"), "{said}");
        }
        for (keys, key) in [
            (r#""kv_lora_rank": 512"#, "kv_lora_rank"),
            (r#""num_nextn_predict_layers": 1"#, "num_nextn_predict_layers"),
            (r#""mamba_d_state": 16"#, "mamba_d_state"),
            (r#""linear_num_key_heads": 16"#, "linear_num_key_heads"),
            (r#""qkv_bias": true"#, "qkv_bias"),
            (r#""use_qk_norm": true"#, "use_qk_norm"),
            (r#""attention_chunk_size": 8192"#, "attention_chunk_size"),
            (r#""vision_config": {"depth": 32}"#, "vision_config"),
            (r#""add_cross_attention": true"#, "add_cross_attention"),
            (r#""layer_types": ["full_attention", "linear_attention"]"#, "linear_attention"),
        ] {
            let said = read(&llama_3(&format!("{keys}, \"model_type\": \"llama\""))).unwrap_err().to_string();
            assert!(said.contains(key) && !said.contains('\n'), "{said}");
        }
        // what says that there is no such thing is no such thing
        let none =
            r#""num_local_experts": 0, "kv_lora_rank": null, "add_cross_attention": false, "model_type": "llama""#;
        assert_eq!(read(&llama_3(none)).unwrap().unknown, Vec::<String>::new());
    }
}
