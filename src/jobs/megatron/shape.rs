//! The model's further keys, as a shape file (docs/src/models.md) has them.

use super::options::Options;
use super::pattern;
use crate::error::JobError;
use crate::reading::Reading;
use serde_json::{Map, Value};

/// Programs that train models of another kind than a decoder, and the key by which a shape file would be refused.
const OTHER_MODELS: [(&str, &str); 8] = [
    ("pretrain_bert", "encoder"),
    ("pretrain_t5", "encoder"),
    ("pretrain_ict", "encoder"),
    ("pretrain_retro", "cross_attention"),
    ("pretrain_vision", "vision"),
    ("pretrain_vlm", "vision"),
    ("pretrain_mamba", "mamba"),
    ("pretrain_diffusion", "vision"),
];

/// Options of models that a shape file cannot describe, and the key by which it is refused.
const OTHER_PARTS: [(&str, &str); 11] = [
    ("hybrid-layer-pattern", "hybrid"),
    ("hybrid-override-pattern", "hybrid"),
    ("is-hybrid-model", "hybrid"),
    ("hybrid-attention-ratio", "hybrid"),
    ("experimental-attention-variant", "linear_attention"),
    ("linear-attention-freq", "linear_attention"),
    ("heterogeneous-layers-config-path", "hybrid_layers"),
    ("heterogeneous-layers-config-encoded-json", "hybrid_layers"),
    ("enable-mhc-connections", "hyper_connections"),
    ("enable-hyper-connections", "hyper_connections"),
    ("decoder-num-layers", "encoder"),
];

/// Returns the keys of a shape file that a reading has not. A model that cannot be described gets a key that is refused.
///
/// # Errors
/// A value that is no number.
pub(super) fn keys(options: &Options<'_>, read: &Reading, program: &str) -> Result<Map<String, Value>, JobError> {
    let mut keys = Map::new();
    let mut set = |key: &str, value: Value| keys.insert(key.to_string(), value);
    let is_gpt = options.text("normalization").unwrap_or("LayerNorm") == "LayerNorm";
    set("arch", if is_gpt { "gpt" } else { "llama" }.into());
    set("bias", (!options.flag("disable-bias-linear")).into());
    if options.flag("add-qkv-bias") {
        set("qkv_bias", true.into());
    }
    set("act", activation(options).into());
    set("pos", positions(options).into());
    let latent = options.flag("multi-latent-attention");
    if options.flag("qk-layernorm") && !latent {
        set("qk_norm", true.into());
    }
    let usual = read.hidden.zip(read.heads.filter(|&heads| heads > 0)).map(|(hidden, heads)| hidden / heads);
    if let Some(size) = options.number("kv-channels")?.filter(|&size| !latent && Some(size) != usual) {
        set("head_dim", size.into());
    }
    for (name, key) in OTHER_PARTS {
        if options.flag(name) && options.0.value(name) != Some("0.0") {
            set(key, true.into());
        }
    }
    if let Some((_, key)) = OTHER_MODELS.iter().find(|(name, _)| program.contains(name)) {
        set(key, true.into());
    }
    if latent {
        keys.extend(latent_attention(options)?);
    }
    keys.extend(window(options)?);
    keys.extend(mixture(options, read)?);
    Ok(keys)
}

fn activation(options: &Options<'_>) -> &'static str {
    match () {
        () if options.flag("swiglu") => "swiglu",
        () if options.flag("quick-geglu") => "geglu",
        () if options.flag("squared-relu") => "squared_relu",
        () => "gelu",
    }
}

fn positions(options: &Options<'_>) -> &'static str {
    match options.text("position-embedding-type").unwrap_or("learned_absolute") {
        _ if options.flag("use-rotary-position-embeddings") => "rope",
        "rope" | "yarn" | "mrope" => "rope",
        "alibi" => "alibi",
        "learned_absolute" => "learned",
        _ => "none",
    }
}

fn latent_attention(options: &Options<'_>) -> Result<Map<String, Value>, JobError> {
    let mut keys = Map::from_iter([("attention".to_string(), "mla".into())]);
    for (name, key, default) in [
        ("q-lora-rank", "q_lora_rank", None),
        ("kv-lora-rank", "kv_lora_rank", Some(32)),
        ("qk-head-dim", "qk_nope_head_dim", Some(128)),
        ("qk-pos-emb-head-dim", "qk_rope_head_dim", Some(64)),
        ("v-head-dim", "v_head_dim", Some(128)),
    ] {
        // patches call some of them as Hugging Face does
        let of_patch = options.number(&key.replace('_', "-"))?;
        if let Some(size) = options.number(name)?.or(of_patch).or(default) {
            keys.insert(key.to_string(), size.into());
        }
    }
    Ok(keys)
}

/// Returns the window of attention: `128,0` or `(128, 0)` are the tokens before and after.
fn window(options: &Options<'_>) -> Result<Map<String, Value>, JobError> {
    let text = options.list("window-size").map(|values| values.join(",")).unwrap_or_default();
    let before = text.split(|c: char| !c.is_ascii_digit()).find_map(|part| part.parse::<u32>().ok());
    let Some(tokens) = before.filter(|&tokens| tokens > 0 && !text.contains("-1")) else { return Ok(Map::new()) };
    let mut keys = Map::from_iter([("sliding_window".to_string(), tokens.into())]);
    let every = match kinds(options, "window-attn-skip-freq") {
        Kinds::Every(every) => every,
        Kinds::Of(list) => {
            if list.windows(2).all(|pair| pair[0] != pair[1]) {
                2
            } else {
                u32::MAX
            }
        }
    };
    if every > 1 {
        keys.insert("sliding_every".to_string(), every.into());
    }
    Ok(keys)
}

fn mixture(options: &Options<'_>, read: &Reading) -> Result<Map<String, Value>, JobError> {
    let mut keys = Map::new();
    if read.experts.is_none() {
        return Ok(keys);
    }
    for (name, key) in [
        ("moe-shared-expert-intermediate-size", "shared_ffn"),
        ("moe-router-num-groups", "router_groups"),
        ("moe-router-group-topk", "router_group_top_k"),
    ] {
        if let Some(size) = options.number(name)?.filter(|&size| size > 0) {
            keys.insert(key.to_string(), size.into());
        }
    }
    let (dense, every) = match kinds(options, "moe-layer-freq") {
        Kinds::Of(layers) => dense_and_every(&layers),
        Kinds::Every(every) => (0, Some(every)),
    };
    match every {
        Some(every) => {
            let of_list = [("dense_first", dense, 0), ("moe_every", every, 1)].into_iter();
            keys.extend(
                of_list.filter(|(_, size, usual)| size != usual).map(|(key, size, _)| (key.into(), size.into())),
            );
        }
        None => drop(keys.insert("hybrid_layers".to_string(), true.into())),
    }
    Ok(keys)
}

/// Which layers are of a kind.
enum Kinds {
    /// One of each so many; 1: all, or none is said.
    Every(u32),
    /// 1 or 0 of each layer.
    Of(Vec<u32>),
}

fn kinds(options: &Options<'_>, name: &str) -> Kinds {
    let values = options.list(name).unwrap_or_default();
    let each: Option<Vec<u32>> = values.iter().map(|value| value.parse().ok()).collect();
    match (values, each) {
        (_, Some(each)) if each.len() > 1 => Kinds::Of(each),
        ([text], _) => pattern::layers(text).map_or(Kinds::Every(text.parse().unwrap_or(1)), Kinds::Of),
        _ => Kinds::Every(1),
    }
}

/// Returns the dense layers at the start, and the period of layers with experts thereafter; `None` if there is no period.
fn dense_and_every(layers: &[u32]) -> (u32, Option<u32>) {
    let dense = layers.iter().take_while(|&&is_mixture| is_mixture == 0).count();
    let places: Vec<usize> = (dense..layers.len()).filter(|&layer| layers[layer] != 0).collect();
    let Some(&[first, second]) = places.get(..2) else { return (dense as u32, (places.len() == 1).then_some(1)) };
    let every = second - first;
    if places.windows(2).any(|pair| pair[1] - pair[0] != every) || layers.len() - places[places.len() - 1] > every {
        return (dense as u32, None);
    }
    // of equal periods, the dense layers of the first one are at the start, too
    let start = if dense + 1 == every { 0 } else { dense };
    (start as u32, Some(every as u32))
}
