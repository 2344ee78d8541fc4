//! Kinds of a model's layers, from the lists and numbers of a `config.json`.

use super::keys::{ConfigError, is_set};
use super::layer_kind::{Gate, LayerKind, LayerPattern, Mlp, SelfAttention, Sparse};
use super::mixers::{DeltaNet, Mamba1, Mamba2, Scan, ShortConvolution};
use super::operation::Window;
use super::reader::Reader;
use super::transformer::Config;
use serde_json::Value;

/// Letters of Nemotron's pattern.
const LETTERS: [(char, &str); 4] = [('M', "mamba"), ('*', "attention"), ('E', "moe"), ('-', "mlp")];

fn wrong<T>(text: String) -> Result<T, ConfigError> {
    Err(ConfigError(text))
}

/// Returns the number of layers.
///
/// # Errors
/// The file does not say it.
pub(super) fn layers(read: Reader<'_>) -> Result<usize, ConfigError> {
    if read.flag("layers_from_names")? {
        match (read.given("layer_types")?, read.given("layer_letters")?) {
            (Some((_, Value::Array(names))), _) => return Ok(names.len()),
            (None, Some((_, Value::String(letters)))) => return Ok(letters.chars().count()),
            _ => {}
        }
    }
    read.needed("layers")
}

/// Returns the kinds of layers of a family whose layers differ in more than windows and experts; `config` has the sizes of the usual ones, and
/// `has_experts` says which layers have experts.
///
/// # Errors
/// A kind that is not modelled, a size that is missing, or keys that contradict each other.
pub(super) fn pattern(
    read: Reader<'_>,
    config: &Config,
    has_experts: &[bool],
) -> Result<Option<&'static LayerPattern>, ConfigError> {
    if !read.family.properties.contains_key("mixers") {
        return Ok(None);
    }
    let names = names(read, config.layers)?;
    let mut kinds = Vec::with_capacity(config.layers);
    for (layer, name) in names.iter().enumerate() {
        let mlp = match (has_experts[layer], read.flag("experts_beside")?) {
            (true, true) => Mlp::Both(config.mlp),
            (true, false) => Mlp::Experts,
            (false, _) => Mlp::Dense(config.mlp),
        };
        kinds.push(kind(read, config, name, mlp)?);
    }
    let shared = shared_indexers(read, config.layers)?;
    for (kind, is_shared) in kinds.iter_mut().zip(shared) {
        let sparse = kind.attention.as_mut().and_then(|attention| attention.sparse.as_mut());
        sparse.into_iter().for_each(|sparse| sparse.is_shared = is_shared);
    }
    let mut predictions = Vec::new();
    if config.prediction_layers > 0 {
        for name in predicted(read)? {
            predictions.push(kind(read, config, &name, Mlp::None)?);
        }
    }
    Ok(Some(LayerPattern::of(kinds, predictions)))
}

/// Returns the names of the layers in one prediction, of families whose layers have one part each.
fn predicted(read: Reader<'_>) -> Result<Vec<String>, ConfigError> {
    match (read.given("prediction_types")?, read.given("prediction_letters")?) {
        (Some((_, Value::Array(names))), _) => Ok(names.iter().filter_map(Value::as_str).map(str::to_string).collect()),
        (None, Some((key, Value::String(letters)))) => from_letters(key, letters),
        _ => Ok(read.word("predictions")?.split_whitespace().map(str::to_string).collect()),
    }
}

fn from_letters(key: &str, letters: &str) -> Result<Vec<String>, ConfigError> {
    let name = |letter: char| LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, name)| name.to_string());
    let unknown = |letter| ConfigError(format!("expected '{key}' of M, *, E and -, found '{letter}': not modelled"));
    letters.chars().map(|letter| name(letter).ok_or_else(|| unknown(letter))).collect()
}

/// Returns the name of each layer's mixer, as its family's `mixers` lists them.
fn names(read: Reader<'_>, layers: usize) -> Result<Vec<String>, ConfigError> {
    if let Some((_, list)) = read.list("layer_types", layers)? {
        return Ok(list.iter().map(|name| name.as_str().unwrap_or_default().to_string()).collect());
    }
    if let Some((key, Value::String(letters))) = read.given("layer_letters")? {
        return from_letters(key, letters);
    }
    let (attention, other) = (read.word("mixer_main")?, read.word("mixer_other")?);
    let named = |is_other: bool| if is_other { other.clone() } else { attention.clone() };
    if let Some((_, list)) = read.list("other_list", layers)? {
        return Ok(list.iter().map(|entry| named(is_set(entry))).collect());
    }
    if let Some((_, Value::Array(places))) = read.given("main_places")? {
        let first = read.size("places_from")?.unwrap_or(0);
        return Ok((0..layers).map(|layer| named(!places.contains(&Value::from(layer + first)))).collect());
    }
    if other.is_empty() {
        return Err(read.missing("layer_types"));
    }
    let every = read.size("main_every")?.unwrap_or(0);
    let offset = read.size("main_offset")?.unwrap_or(every.saturating_sub(1));
    if every > 0 && offset >= every {
        return wrong(format!(
            "expected a first layer with attention among {every}, found number {offset}; correct one"
        ));
    }
    let from = read.size("main_from")?.unwrap_or(0);
    let too = read.size("main_at")?;
    let is_main = |layer: usize| (every > 0 && layer >= from && layer % every == offset) || Some(layer) == too;
    let mut names: Vec<String> = (0..layers).map(|layer| named(!is_main(layer))).collect();
    if read.flag("main_last")? {
        names.last_mut().into_iter().for_each(|last| last.clone_from(&attention));
    }
    Ok(names)
}

/// Returns for each layer whether it uses the indexer of an earlier one.
fn shared_indexers(read: Reader<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    if let Some((_, list)) = read.list("indexer_list", layers)? {
        return Ok(list.iter().map(|kind| kind == "shared").collect());
    }
    if let Some((_, Value::String(letters))) = read.given("indexer_letters")? {
        return Ok((0..layers).map(|layer| letters.chars().nth(layer) == Some('S')).collect());
    }
    let (every, offset) = (read.size("indexer_every")?.unwrap_or(1).max(1), read.size("indexer_offset")?.unwrap_or(0));
    Ok((0..layers).map(|layer| !(layer + 1).saturating_sub(offset).is_multiple_of(every)).collect())
}

/// Returns the kind of layer with a mixer of this name.
fn kind(read: Reader<'_>, config: &Config, name: &str, mlp: Mlp) -> Result<LayerKind, ConfigError> {
    let known = read.word("mixers")?;
    let known: Vec<(&str, &str)> = known.split_whitespace().filter_map(|pair| pair.split_once(':')).collect();
    let Some((_, mixer)) = known.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        return wrong(format!("expected layers among {}, found \"{name}\": not modelled", known.join(", ")));
    };
    let mlp = if read.flag("one_part")? { Mlp::None } else { mlp };
    let of = |attention, scan| LayerKind { attention, scan, mlp };
    let scan = |scan| Ok(of(None, Some(scan)));
    match *mixer {
        "attention" => Ok(of(Some(full(read, config)?), None)),
        "window" => Ok(of(Some(window(read, config)?), None)),
        "sparse" => Ok(of(Some(SelfAttention { sparse: Some(sparse(read)?), ..full(read, config)? }), None)),
        "both" => Ok(of(Some(full(read, config)?), Some(Scan::Mamba(mamba(read)?)))),
        "delta" => scan(Scan::Delta(delta(read)?)),
        "kda" => scan(Scan::Delta(kimi_delta(read)?)),
        "mamba" => scan(Scan::Mamba(mamba(read)?)),
        "mamba1" => scan(Scan::Mamba1(mamba1(read)?)),
        "convolution" => {
            let (width, taps, has_bias) = (config.channels, read.needed("conv_taps")?, read.flag("conv_bias")?);
            scan(Scan::Convolution(ShortConvolution { width, taps, has_bias }))
        }
        "experts" => Ok(LayerKind { attention: None, scan: None, mlp: Mlp::Experts }),
        _ => Ok(LayerKind { attention: None, scan: None, mlp: Mlp::Dense(config.mlp) }),
    }
}

fn gate(read: Reader<'_>) -> Result<Gate, ConfigError> {
    Ok(match read.word("gate")?.as_str() {
        "channels" | "true" => Gate::Channels,
        "heads" => Gate::Heads,
        _ => Gate::None,
    })
}

/// Returns the attention of layers without a window.
fn full(read: Reader<'_>, config: &Config) -> Result<SelfAttention, ConfigError> {
    let usual = config.attention(None);
    let keys_are_values = read.flag("keys_are_values")?;
    let size = read.size("full_head_dim")?.unwrap_or(usual.size);
    let groups = read
        .size("full_kv_heads")?
        .filter(|_| keys_are_values || !read.flag("full_kv_heads_if_values").unwrap_or(false));
    Ok(SelfAttention {
        groups: groups.unwrap_or(usual.groups),
        size,
        value: if usual.is_latent { usual.value } else { read.size("head_value_dim")?.unwrap_or(size) },
        keys_are_values,
        has_sinks: read.flag("full_sinks")?,
        gate: gate(read)?,
        ..usual
    })
}

/// Returns the attention of layers with a window.
fn window(read: Reader<'_>, config: &Config) -> Result<SelfAttention, ConfigError> {
    let usual = config.attention(None);
    let tokens = read.needed("window")? + read.size("window_more")?.unwrap_or(0);
    let size = read.size("window_head_dim")?.unwrap_or(usual.size);
    Ok(SelfAttention {
        heads: read.size("window_heads")?.unwrap_or(usual.heads),
        groups: read.size("window_kv_heads")?.unwrap_or(usual.groups),
        size,
        value: read.size("window_value_dim")?.or(read.size("head_value_dim")?).unwrap_or(size),
        window: Some(Window { tokens, is_chunked: false }),
        has_sinks: read.flag("window_sinks")?,
        gate: gate(read)?,
        ..usual
    })
}

fn sparse(read: Reader<'_>) -> Result<Sparse, ConfigError> {
    Ok(Sparse {
        chosen: read.needed("index_topk")?.saturating_mul(read.size("index_block")?.unwrap_or(1)),
        heads: read.needed("index_heads")?,
        size: read.needed("index_dim")?,
        is_shared: false,
    })
}

fn delta(read: Reader<'_>) -> Result<DeltaNet, ConfigError> {
    Ok(DeltaNet {
        key_heads: read.needed("delta_key_heads")?,
        value_heads: read.needed("delta_value_heads")?,
        key_size: read.needed("delta_key_dim")?,
        value_size: read.needed("delta_value_dim")?,
        taps: read.needed("delta_taps")?,
        is_by_channel: false,
        gate_rank: None,
    })
}

/// Kimi's has as many heads of keys as of values, of the same size, over which its decay and its gate are made.
fn kimi_delta(read: Reader<'_>) -> Result<DeltaNet, ConfigError> {
    let (heads, size) = (read.needed("kda_heads")?, read.needed("kda_dim")?);
    Ok(DeltaNet {
        key_heads: heads,
        value_heads: heads,
        key_size: size,
        value_size: size,
        taps: read.needed("kda_taps")?,
        is_by_channel: true,
        gate_rank: if read.flag("kda_full_gate")? { None } else { Some(size) },
    })
}

fn mamba(read: Reader<'_>) -> Result<Mamba2, ConfigError> {
    let (heads, head_size) = (read.needed("mamba_heads")?, read.needed("mamba_head_dim")?);
    match read.size("mamba_width")? {
        Some(width) if width != heads.saturating_mul(head_size) => {
            return wrong(format!(
                "expected {heads} heads of {head_size} channels in Mamba layers of {width}, as many together; correct one of the three"
            ));
        }
        _ => {}
    }
    let out = if read.family.properties.contains_key("mamba_out_bias") { "mamba_out_bias" } else { "mamba_bias" };
    Ok(Mamba2 {
        heads,
        head_size,
        groups: read.needed("mamba_groups")?,
        state: read.needed("mamba_state")?,
        taps: read.needed("mamba_taps")?,
        chunk: read.needed("mamba_chunk")?,
        has_norm: read.flag("mamba_norm")?,
        has_conv_bias: read.flag("mamba_conv_bias")?,
        biases: [read.flag("mamba_bias")?, read.flag(out)?],
    })
}

fn mamba1(read: Reader<'_>) -> Result<Mamba1, ConfigError> {
    Ok(Mamba1 {
        width: read.needed("mamba_width")?,
        state: read.needed("mamba_state")?,
        rank: read.needed("mamba_rank")?,
        taps: read.needed("mamba_taps")?,
        has_norms: read.flag("mamba_norm")?,
        has_conv_bias: read.flag("mamba_conv_bias")?,
        has_bias: read.flag("mamba_bias")?,
    })
}

/// Returns the layers of models whose search chose attention and MLP of each (Nemotron-NAS): `block_configs` says the heads per key head
/// and the width of the MLP as a multiple of the hidden size, of which two thirds are taken up to a multiple of 256, or that there is none.
///
/// # Errors
/// A block of another kind.
pub(super) fn blocks(read: Reader<'_>, config: &Config) -> Result<Option<&'static LayerPattern>, ConfigError> {
    let Some((key, list)) = read.list("blocks", config.layers)? else { return Ok(None) };
    let mut kinds = Vec::new();
    for (layer, block) in list.iter().enumerate() {
        let missing = |what| {
            ConfigError(format!("expected '{key}' to say {what} of layer {layer}, found another block: not modelled"))
        };
        let is_none = |part: &str| block[part]["no_op"] == true;
        let others = ["replace_with_linear", "sparsify", "window_length", "num_sink_tokens"];
        if ["attention", "ffn"].iter().any(|part| others.iter().any(|other| is_set(&block[*part][*other]))) {
            return Err(missing("attention and MLP"));
        }
        let attention = match is_none("attention") {
            true => None,
            false => {
                let each = block["attention"]["n_heads_in_group"].as_u64().filter(|&each| each > 0);
                let groups = config.heads / each.ok_or_else(|| missing("the heads per key head"))? as usize;
                Some(SelfAttention { groups, ..config.attention(None) })
            }
        };
        let mlp = match is_none("ffn") {
            true => Mlp::None,
            false => {
                let times = block["ffn"]["ffn_mult"].as_f64().filter(|times| (0.0..1e3).contains(times));
                let whole = (2.0 * times.ok_or_else(|| missing("the width of the MLP"))? * config.channels as f64 / 3.0)
                    as usize;
                Mlp::Dense(whole.next_multiple_of(256))
            }
        };
        kinds.push(LayerKind { attention, scan: None, mlp });
    }
    Ok(Some(LayerPattern::of(kinds, Vec::new())))
}
