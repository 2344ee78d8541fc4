//! The sizes that the keys of a Hugging Face `config.json` give, by the family that its `model_type` names.

use super::families::{Family, families};
use super::keys::{ConfigError, is_set, number, optional};
use super::layer_kind::{LayerKind, LayerPattern, Mlp};
use super::layer_lists::{every, mixtures, steps, windows};
use super::mixture::{Experts, Latent};
use super::pattern::{blocks, layers, pattern};
use super::reader::Reader;
use super::sizes::{InvalidSizes, MOST_LAYERS};
use super::transformer::{Activation, ActivationFunction, Biases, Config, Norms, QkNorm, Rotary, RotaryScaling, Style};
use pipesim_schedule::nearest::plain;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Keys of objects that describe a text model, of models with encoders.
const TEXT: [&str; 3] = ["text_config", "llm_config", "language_config"];
/// Keys of the other objects.
const ENCODERS: [&str; 3] = ["vision_config", "audio_config", "vision_tower_config"];

/// The keys of a file, with the family that reads them.
pub(super) struct Configuration<'a> {
    /// Keys of the text model.
    pub keys: Cow<'a, Map<String, Value>>,
    /// Values of `model_type`: of the file, and of the text model.
    pub types: Vec<&'a str>,
    /// The file's other parts.
    pub beside: Vec<String>,
    /// The family, if it is known.
    pub family: Option<&'static Family>,
}

impl Configuration<'_> {
    /// Finds the text model and its family.
    ///
    /// # Errors
    /// The file does not say whether the head is tied.
    pub fn of(keys: &Map<String, Value>) -> Result<Configuration<'_>, ConfigError> {
        let table = families();
        let outer = keys.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let beside = ENCODERS.into_iter().filter(|key| keys.get(*key).is_some_and(is_set));
        let beside: Vec<String> = beside.map(|key| format!("{key} (only the text model is predicted)")).collect();
        let text = TEXT.iter().find_map(|key| keys.get(*key)?.as_object());
        let Some(text) = text else {
            let family = table.of_type(outer);
            let has_encoders = family.is_some_and(|family| family.harmless.contains("vision_config"));
            let beside = if has_encoders { beside } else { Vec::new() };
            return Ok(Configuration { keys: Cow::Borrowed(keys), types: vec![outer], beside, family });
        };
        let composite = table.composites.get(outer);
        let usual = composite.map_or("", |composite| composite.text.as_str());
        let inner = text.get("model_type").and_then(Value::as_str).unwrap_or(usual);
        let is_usual = composite.is_some_and(|composite| composite.types.iter().any(|kind| kind == inner));
        let inner = if is_usual { usual } else { inner };
        let mut all = text.clone();
        let [own, of_text] = [keys, text].map(|keys| keys.get("tie_word_embeddings").and_then(Value::as_bool));
        let tied = match composite {
            Some(composite) if composite.or_text => Some(own.unwrap_or(composite.tied) || of_text.unwrap_or(false)),
            Some(composite) => Some(own.unwrap_or(composite.tied)),
            None => own.or(of_text),
        };
        all.extend(tied.map(|tied| ("tie_word_embeddings".to_string(), Value::from(tied))));
        let family = table.of_type(inner).filter(|_| !outer.is_empty());
        if tied.is_none() && family.is_some() {
            return Err(ConfigError(format!(
                "expected 'tie_word_embeddings' of a model of type '{outer}', found none; add it"
            )));
        }
        Ok(Configuration { keys: Cow::Owned(all), types: vec![outer, inner], beside, family })
    }

    /// Returns the type that a message names.
    pub fn named(&self) -> &str {
        self.types[0]
    }

    pub fn reader(&self) -> Option<Reader<'_>> {
        Some(Reader { keys: &self.keys, family: self.family? })
    }

    /// Returns the class in `architectures` of another family.
    pub fn other_class(&self) -> Option<&str> {
        let class = self.keys.get("architectures")?.get(0)?.as_str()?;
        let is_of = |kind: &str| {
            let rest = class.to_lowercase().strip_prefix(&plain(kind)).map(str::to_string);
            rest.is_some_and(|rest| ["for", "lmhead", "model"].iter().any(|next| rest.starts_with(next)))
        };
        let known = families().named.values().flat_map(|family| &family.types);
        let named = known.map(String::as_str).find(|kind| is_of(kind))?;
        let own = self.family?;
        let is_own = self.types.contains(&named) || own.types.iter().chain(&own.classes).any(|kind| kind == named);
        (!is_own).then_some(class)
    }

    /// Reads the sizes.
    ///
    /// # Errors
    /// A size is missing or out of range, or keys contradict each other.
    pub fn sizes(&self) -> Result<Config, ConfigError> {
        let unknown = || ConfigError(format!("expected a known model_type, found '{}'", self.named()));
        let config = decoder(self.reader().ok_or_else(unknown)?)?;
        config.validate().map_err(|error| ConfigError(error.to_string()))?;
        Ok(config)
    }
}

/// Reads a model's sizes as its family names them.
///
/// # Errors
/// A size is missing, or keys contradict each other.
pub(super) fn decoder(read: Reader<'_>) -> Result<Config, ConfigError> {
    let (heads, channels, layers) = (read.needed("heads")?, read.needed("hidden")?, layers(read)?);
    if layers > MOST_LAYERS {
        // before anything is listed per layer
        return Err(ConfigError(InvalidSizes::Layers { most: MOST_LAYERS, found: layers }.to_string()));
    }
    let has_pattern = read.family.properties.contains_key("mixers");
    let (window, is_full) = if has_pattern { (None, vec![true; layers]) } else { windows(read, layers)? };
    let vocabulary = read.needed("vocab")?;
    if read.size("per_layer_inputs")?.is_some_and(|width| width > 0) {
        return Err(ConfigError(
            "expected 'hidden_size_per_layer_input' 0, found another: embeddings per layer are not modelled"
                .to_string(),
        ));
    }
    // as transformers checks them, with a default too small for this file
    let padding = optional(read.keys, "pad_token_id").ok().flatten();
    if read.given("vocab")?.is_none() && padding.is_some_and(|token| token >= vocabulary) {
        return Err(read.missing("vocab"));
    }
    if read.given("heads")?.is_none() && !channels.is_multiple_of(heads) {
        return Err(read.missing("heads"));
    }
    let style = if read.word("norm")? == "layer" { Style::Gpt } else { Style::Llama };
    let positions =
        read.size("positions")?.map_or(Ok(0), |rows| Ok(rows + read.size("more_positions")?.unwrap_or(0)))?;
    let config = Config {
        style,
        biases: Biases {
            norms: read.flag("norm_bias")?,
            qkv: read.flag("qkv_bias")?,
            projection: read.flag("projection_bias")?,
            mlp: read.flag("mlp_bias")?,
            head: read.flag("head_bias")?,
        },
        vocabulary_multiple: read.size("vocab_multiple")?.unwrap_or(1),
        rotary: if read.flag("rotary")? { Some(rotary(read)?) } else { None },
        groups: read.needed("kv_heads")?,
        head_size: read.needed("head_dim")?,
        mlp: mlp(read)?,
        has_residual_scores: read.size("residual_scores")?.is_some(),
        activation: if read.flag("gated")? { Activation::Gated } else { Activation::Plain },
        function: function(read)?,
        norm_epsilon: read.number("eps")?.unwrap_or(1e-6),
        tied: read.flag("tied")?,
        window,
        qk_norm: match (read.word("qk_norm")?.as_str(), read.word("qk_norm_form")?.as_str()) {
            ("true", "each") => QkNorm::Each,
            ("head" | "true", _) => QkNorm::Head,
            ("all", _) => QkNorm::All,
            _ => QkNorm::None,
        },
        norms: match (read.flag("one_norm")?, read.flag("pre_norms")?, read.flag("post_norms")?) {
            (true, ..) => Norms::One,
            (false, true, false) => Norms::Before,
            (false, false, _) => Norms::After,
            (false, true, true) => Norms::Both,
        },
        has_sinks: read.flag("sinks")?,
        prediction_layers: read.size("mtp")?.unwrap_or(0),
        experts: experts(read)?,
        ..Config::gpt(vocabulary, positions, layers, heads, channels)
    };
    let config = match read.size("kv_rank")? {
        Some(key_rank) => latent(read, key_rank, config)?,
        None => config,
    };
    let has_experts = if config.experts.is_some() { mixtures(read, layers)? } else { vec![false; layers] };
    if let Some(pattern) = pattern(read, &config, &has_experts)?.or(blocks(read, &config)?) {
        let experts = config.experts.filter(|_| pattern.kinds.iter().any(LayerKind::has_experts));
        return Ok(Config { pattern: Some(pattern), experts, ..config });
    }
    Ok(arranged(config, &is_full, &has_experts))
}

/// Returns the width of the MLP: LFM2 takes two thirds, times a factor, up to a multiple.
fn mlp(read: Reader<'_>) -> Result<usize, ConfigError> {
    let width = read.needed("ffn")?;
    if !read.flag("ffn_adjusts")? {
        return Ok(width);
    }
    let times = read.number("ffn_times")?.unwrap_or(1.0);
    let scaled = ((2 * width / 3) as f64 * times).min(f64::from(1 << 30)) as usize;
    Ok(scaled.next_multiple_of(read.needed("ffn_multiple")?.max(1)))
}

/// Returns the sizes with these layers: by numbers if windows and experts are in every n-th layer, and otherwise one by one.
fn arranged(config: Config, is_full: &[bool], has_experts: &[bool]) -> Config {
    let windows = config.window.map_or(Some(0), |_| every(is_full));
    let (Some(full_every), Some((dense_first, every))) = (windows, steps(has_experts)) else {
        let window = |layer: usize| config.window.filter(|_| !is_full[layer]);
        let mlp = |layer: usize| if has_experts[layer] { Mlp::Experts } else { Mlp::Dense(config.mlp) };
        let kind = |layer| LayerKind { attention: Some(config.attention(window(layer))), scan: None, mlp: mlp(layer) };
        let pattern = LayerPattern::of((0..is_full.len()).map(kind), Vec::new());
        return Config { pattern: Some(pattern), window: None, ..config };
    };
    let experts = config.experts.map(|experts| Experts { dense_first, every, ..experts });
    Config { full_every, experts, ..config }
}

fn experts(read: Reader<'_>) -> Result<Option<Experts>, ConfigError> {
    let is_off = read.family.properties.contains_key("experts_if") && !read.flag("experts_if")?;
    if is_off || !read.family.properties.contains_key("experts") || read.size("experts")? == Some(0) {
        return Ok(None);
    }
    let groups = read.size("router_groups")?.unwrap_or(1).max(1);
    let shared_width = read.size("shared_ffn")?.unwrap_or(0);
    Ok(Some(Experts {
        shared_width,
        has_shared_gate: shared_width > 0 && read.flag("shared_gate")?,
        latent: read.size("latent_rows")?,
        has_latent_norm: read.flag("latent_norm")?,
        router_groups: groups,
        group_top_k: read.size("group_top_k")?.unwrap_or(groups).max(1),
        ..Experts::new(read.needed("experts")?, read.needed("top_k")?, read.needed("moe_ffn")?)
    }))
}

fn latent(read: Reader<'_>, key_rank: usize, config: Config) -> Result<Config, ConfigError> {
    if config.groups != config.heads {
        return Err(ConfigError(format!(
            "expected as many key and value heads as heads with latent attention, found {} and {}; correct 'num_key_value_heads'",
            config.groups, config.heads
        )));
    }
    Ok(config.with_latent(Latent {
        query_rank: read.size("q_rank")?,
        key_rank,
        plain_size: read.needed("nope_dim")?,
        rotary_size: read.needed("rope_dim")?,
        value_size: read.needed("value_dim")?,
    }))
}

/// Returns the activation function. Unknown ones cost the same, but cannot be executed.
fn function(read: Reader<'_>) -> Result<ActivationFunction, ConfigError> {
    let fixed = read.word("function")?;
    let word = if fixed.is_empty() { read.word("act")? } else { fixed };
    Ok(match word.as_str() {
        "gelu_new" | "gelu_pytorch_tanh" => ActivationFunction::GeluTanh,
        "silu" | "swish" => ActivationFunction::Silu,
        "relu2" | "squared_relu" => ActivationFunction::SquaredRelu,
        _ => ActivationFunction::Other,
    })
}

/// Reads the rotary positions, at the top level or under `rope_parameters`, where later versions of `transformers` write them.
fn rotary(read: Reader<'_>) -> Result<Rotary, ConfigError> {
    let keys = read.keys;
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
