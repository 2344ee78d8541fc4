//! Hugging Face's `config.json`: the keys of GPT-2's and Llama's kind.

use super::transformer::{Activation, Config, Style};
use serde_json::{Map, Value};

/// Why such a file describes no model here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// Keys of GPT-2's kind.
const GPT2: &str = "n_layer, n_head, n_embd, n_inner, vocab_size, n_positions, tie_word_embeddings";
/// Keys of Llama's kind.
const LLAMA: &str = "num_hidden_layers, num_attention_heads, num_key_value_heads, hidden_size, intermediate_size, head_dim, vocab_size, tie_word_embeddings";

/// Model types whose keys and blocks are Llama's.
const LIKE_LLAMA: [&str; 2] = ["llama", "mistral"];

/// The model that the text of a `config.json` describes.
///
/// # Errors
/// No JSON, an unknown `model_type`, a size that is missing, no whole number, or absurd.
pub fn read(text: &str) -> Result<Config, Unreadable> {
    let value: Value = serde_json::from_str(text).map_err(|error| match text.trim().is_empty() {
        true => Unreadable("expected Hugging Face's config.json, found an empty file; download it again".to_string()),
        false => Unreadable(format!("expected Hugging Face's config.json, found no JSON ({error})")),
    })?;
    let Value::Object(keys) = value else {
        return Err(Unreadable("expected Hugging Face's config.json, an object, found another value".to_string()));
    };
    let kind = keys.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let config = match kind {
        "gpt2" => gpt2(&keys)?,
        "" if keys.contains_key("n_embd") => gpt2(&keys)?,
        "" if keys.contains_key("hidden_size") => llama(&keys)?,
        kind if LIKE_LLAMA.contains(&kind) => llama(&keys)?,
        kind => {
            return Err(Unreadable(format!(
                "expected model_type gpt2 or {}, found '{kind}'; give the sizes under one of these: gpt2 has {GPT2}; llama has {LLAMA}",
                LIKE_LLAMA.join(", ")
            )));
        }
    };
    config.validate().map_err(|error| Unreadable(error.to_string()))?;
    Ok(config)
}

/// A whole number.
fn size(keys: &Map<String, Value>, key: &str, kind: &str) -> Result<usize, Unreadable> {
    optional(keys, key)?
        .ok_or_else(|| Unreadable(format!("expected '{key}', found none; a model of this kind has {kind}")))
}

/// A whole number, or none where it is missing or null.
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

fn llama(keys: &Map<String, Value>) -> Result<Config, Unreadable> {
    let size = |key| size(keys, key, LLAMA);
    let (heads, channels) = (size("num_attention_heads")?, size("hidden_size")?);
    let head_size = match optional(keys, "head_dim")? {
        Some(size) => size,
        None => {
            divides("hidden_size", channels, "num_attention_heads", heads)?;
            channels / heads
        }
    };
    Ok(Config {
        style: Style::Llama,
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
        assert_eq!(read(llama).unwrap().anatomy().parameters(), 70_553_706_496);
        let gpt2 = r#"{"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}"#;
        assert_eq!(read(gpt2).unwrap().anatomy().parameters(), 124_439_808);
    }

    #[test]
    fn other_files_are_refused_in_one_line() {
        let said = |text: &str| read(text).unwrap_err().to_string();
        assert!(said("[]").contains("an object"));
        assert!(said("{").contains("no JSON"));
        assert!(said(r#"{"model_type": "mamba"}"#).contains("num_key_value_heads"));
        assert!(said(r#"{"model_type": "llama", "hidden_size": -1}"#).contains("'num_attention_heads', found none"));
        let text = r#"{"model_type": "gpt2", "n_layer": 2, "n_head": 5, "n_embd": 768, "vocab_size": 10}"#;
        assert!(said(text).contains("multiple"));
        let text = r#"{"model_type": "gpt2", "n_layer": 1.5, "n_head": 12, "n_embd": 768, "vocab_size": 10}"#;
        assert!(said(text).contains("'n_layer' to be a whole number, found 1.5"));
        let text = r#"{"model_type": "gpt2", "n_layer": 0, "n_head": 12, "n_embd": 768, "vocab_size": 10}"#;
        assert!(said(text).contains("layers"));
    }
}
