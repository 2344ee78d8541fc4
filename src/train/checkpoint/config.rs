//! The `config.json` of a saved model, as `transformers` reads it.

use anyhow::{Result, ensure};
use pipesim_models::model_spec::transformer::{ActivationFunction, Config, RotaryScaling, Style};
use serde_json::{Map, Value, json};

/// Describes a model as Hugging Face's `config.json`. Keys of `original`, the file that the model came from, are kept where they do
/// not contradict it.
///
/// # Errors
/// Hugging Face's GPT-2 and Llama cannot describe such a model.
pub fn config_json(config: &Config, original: &Map<String, Value>) -> Result<Map<String, Value>> {
    let own = match config.style {
        Style::Gpt => gpt2(config),
        Style::Llama => llama(config, original),
    };
    let mut keys = original.clone();
    keys.remove("torch_dtype");
    keys.remove("n_ctx"); // older name of n_positions
    if let Value::Object(own) = own {
        keys.extend(own);
    }
    let text = serde_json::to_string(&keys)?;
    let read = pipesim_models::model_spec::huggingface::read(&text)?;
    ensure!(
        Config { vocabulary_multiple: config.vocabulary_multiple, ..read.config } == *config,
        "expected a model that Hugging Face's config.json can describe, found one that differs: use another model"
    );
    Ok(keys)
}

fn gpt2(config: &Config) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_embd": config.channels,
        "n_inner": config.mlp,
        "n_positions": config.positions,
        "vocab_size": config.vocabulary,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        // training has no dropout
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": end_of_text(config),
        "eos_token_id": end_of_text(config),
        "dtype": "float32",
    })
}

/// The last id of GPT-2's vocabulary, and of the bytes'.
fn end_of_text(config: &Config) -> usize {
    config.vocabulary.saturating_sub(1)
}

fn llama(config: &Config, original: &Map<String, Value>) -> Value {
    let kind = original.get("model_type").and_then(Value::as_str);
    let kind = kind.unwrap_or(if config.biases.qkv && !config.biases.projection { "qwen2" } else { "llama" });
    let architecture = match kind {
        "mistral" => "MistralForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        _ => "LlamaForCausalLM",
    };
    let mut keys = json!({
        "architectures": [architecture],
        "model_type": kind,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.head_size,
        "hidden_size": config.channels,
        "intermediate_size": config.mlp,
        "vocab_size": config.vocabulary,
        "hidden_act": match config.function { ActivationFunction::GeluTanh => "gelu_pytorch_tanh", _ => "silu" },
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.biases.qkv && config.biases.projection,
        "mlp_bias": config.biases.mlp,
        "attention_dropout": 0.0,
        "dtype": "float32",
    });
    // Later versions of transformers write rope_parameters, which is kept as it was.
    if let (Some(rotary), false) = (config.rotary, original.contains_key("rope_parameters")) {
        keys["rope_theta"] = json!(rotary.theta);
        keys["rope_scaling"] = match rotary.scaling {
            RotaryScaling::Llama3 { factor, low, high, original_positions } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original_positions as u64,
            }),
            RotaryScaling::None | RotaryScaling::Other => Value::Null,
        };
    }
    keys
}
