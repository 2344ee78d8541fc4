//! What the keys of a `config.json` that a family does not read mean: nothing, other values of the same function, or parts.

use super::keys::{is_set, lists};
use serde_json::{Map, Value};

type Keys = Map<String, Value>;

/// Keys that change neither sizes nor what is trained, separated by spaces: names, token ids, generation, storage, and how the same
/// numbers are computed.
const HARMLESS: &str = "\
    architectures auto_map bad_words_ids begin_suppress_tokens cache_implementation chunk_size_feed_forward diversity_penalty \
    do_sample dtype early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task \
    gradient_checkpointing id2label ignore_index initializer_factor initializer_range is_decoder label2id length_penalty mamba_ssm_cache_dtype mamba_ssm_dtype max_length \
    max_position_embeddings max_sequence_length min_length model_max_length model_type no_repeat_ngram_size num_beam_groups \
    num_beams num_logits_to_keep num_return_sequences original_max_position_embeddings output_attentions output_hidden_states \
    output_scores prefix pretraining_tp problem_type quantization_config remove_invalid_values reorder_and_upcast_attn \
    repetition_penalty return_dict return_dict_in_generate suppress_tokens task_specific_params temperature tf_legacy_loss \
    tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache";

/// Beginnings and endings of harmless keys. Dropout changes what is trained, and a training says that it has none.
const HARMLESS_STARTS: [&str; 2] = ["_", "summary_"];
const HARMLESS_ENDS: [&str; 3] = ["_token_id", "_pdrop", "_dropout"];

/// Whether a value changes nothing.
type IsPlain = fn(&Value) -> bool;

/// Keys that change what is trained, but no size and no product, with a test for the values that change nothing and their name.
const VALUES: [(&str, IsPlain, &str); 13] = [
    ("scale_attn_weights", |value| *value == true, "true"),
    ("scale_attn_by_inverse_layer_idx", is_off, "false"),
    ("attn_logit_softcapping", is_off, "null"),
    ("final_logit_softcapping", is_off, "null"),
    ("query_pre_attn_scalar", is_off, "null"),
    ("attention_multiplier", is_off, "null"),
    ("clip_qkv", is_off, "null"),
    ("embedding_multiplier", is_one, "1"),
    ("residual_multiplier", is_one, "1"),
    ("logits_scaling", is_one, "1"),
    ("logit_scale", is_one, "1"),
    ("partial_rotary_factor", is_one, "1"),
    ("is_causal", |value| *value == true || value.is_null(), "true"),
];

fn is_off(value: &Value) -> bool {
    !is_set(value)
}

fn is_one(value: &Value) -> bool {
    value.is_null() || value.as_f64() == Some(1.0)
}

/// Says which key of a file asks for other values than its family's plain layers have; `None` if none does.
pub fn other_values(keys: &Map<String, Value>) -> Option<String> {
    let found = |(key, is_plain, plain): &(&str, IsPlain, &str)| {
        let found = keys.get(*key).filter(|value| !is_plain(value))?;
        Some(format!("expected '{key}' to be {plain}, found {found}"))
    };
    VALUES.iter().find_map(found)
}

/// Returns whether a key changes neither the number of parameters nor the products and attention.
fn is_harmless(key: &str) -> bool {
    lists(HARMLESS, key)
        || VALUES.iter().any(|(known, _, _)| *known == key)
        || HARMLESS_STARTS.iter().any(|start| key.starts_with(start))
        || HARMLESS_ENDS.iter().any(|end| key.ends_with(end))
}

/// Returns the keys that are set, not in `read` and not harmless.
pub(super) fn others(keys: &Keys, read: impl Fn(&str) -> bool) -> impl Iterator<Item = (&String, &Value)> {
    keys.iter().filter(move |(key, value)| is_set(value) && !read(key) && !is_harmless(key))
}

const MAMBA: &str = "Mamba layers";
const CONVOLUTIONS: &str = "convolutions";
const DIFFERENT: &str = "layers that differ from each other";

/// Parts that no family has here, with parts of their keys; `^` marks a key's beginning. The most informative come first.
const NOT_MODELLED: [(&str, &str); 24] = [
    (MAMBA, "mamba ssm state_size time_step"),
    ("recurrent layers", "rwkv recurrent lstm"),
    ("linear attention (delta nets)", "^linear_ delta full_attention_interval"),
    (CONVOLUTIONS, "conv_ _conv"),
    ("compressed attention", "^compress"),
    ("sparse attention", "index_topk ^index_ indexer sparse_attention"),
    ("hyper-connections", "^hc_ hyper_connection"),
    ("cross-attention", "cross_attention"),
    ("encoders", "encoder vision_config audio_config"),
    ("latent experts", "latent_moe moe_latent routed_expert_hidden"),
    ("experts beside a dense MLP", "enable_moe_block"),
    ("experts chosen by a hash", "num_hash_layers"),
    ("attention residuals", "attn_res_"),
    ("attention with an output gate", "output_gate"),
    ("output projections of low rank", "^o_lora_rank"),
    ("keys as values", "k_eq_v"),
    ("heads that differ by layer", "global_head_dim num_global_key_value swa_head_dim swa_num swa_v_head"),
    ("heads shared between layers", "kv_shared"),
    ("embeddings per layer", "hidden_size_per_layer"),
    ("attention to later tokens", "bidirectional"),
    ("attention next to the MLP", "parallel_attn parallel_residual"),
    ("heads taken out", "pruned_heads"),
    (DIFFERENT, "block_configs block_type attn_layer per_layer_"),
    ("embeddings of another width", "embedding_size embed_proj"),
];

/// Parts that other families have.
const OF_OTHERS: [(&str, &str); 8] = [
    ("experts", "expert moe dense_replace sparse_step ffn_config"),
    ("multi-head latent attention", "lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"),
    ("multi-token prediction", "nextn mtp"),
    ("other attention windows", "window sliding local_attention attention_chunk layer_types"),
    ("other heads", "multi_query new_decoder_architecture"),
    ("norms of queries and keys", "qk_norm qk_layernorm"),
    ("other norms", "norm_reorder"),
    ("other biases or attention sinks", "bias sink"),
];

fn matches(key: &str, parts: &str) -> bool {
    parts.split(' ').any(|part| match part.strip_prefix('^') {
        Some(start) => key.starts_with(start),
        None => key.contains(part),
    })
}

/// A key with its value, unless that is long.
fn shown(key: &str, value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => format!("'{key}'"),
        value => format!("'{key}': {value}"),
    }
}

/// Returns the parts that `keys` name and no family has, each with its first key.
pub(super) fn not_modelled(keys: &Keys, read: impl Fn(&str) -> bool) -> Vec<String> {
    let all: Vec<(&String, &Value)> = others(keys, read).collect();
    let mut found = Vec::new();
    for (what, parts) in NOT_MODELLED {
        // a Mamba layer has a convolution, too, and is what differs
        if [CONVOLUTIONS, DIFFERENT].contains(&what) && !found.is_empty() {
            continue;
        }
        // in the order of the parts: the first says most
        if let Some((key, value)) = parts.split(' ').find_map(|part| all.iter().find(|(key, _)| matches(key, part))) {
            found.push(format!("{what} ({})", shown(key, value)));
        }
    }
    let width =
        keys.get_key_value("v_head_dim").filter(|(_, width)| is_set(width) && !keys.contains_key("kv_lora_rank"));
    found.extend(width.map(|(key, width)| format!("values of another width than keys ({})", shown(key, width))));
    found
}

/// Returns a part that the first of `keys` names and other families have, and that key.
pub(super) fn of_others(keys: &Keys, read: impl Fn(&str) -> bool) -> Option<(&'static str, String)> {
    others(keys, read).find_map(|(key, value)| {
        let (what, _) = OF_OTHERS.iter().find(|(_, parts)| matches(key, parts))?;
        Some((*what, shown(key, value)))
    })
}
