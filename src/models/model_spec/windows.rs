//! Attention windows of a `config.json`: of all layers, or of all but every n-th.

use super::keys::{ConfigError, flag, is_set, optional};
use super::operation::Window;
use serde_json::{Map, Value};

type Keys = Map<String, Value>;

/// Kinds of layers in `layer_types`.
const FULL: &str = "full_attention";
const WINDOW: &str = "sliding_attention";
const CHUNKED: &str = "chunked_attention";

/// Default windows of families, in tokens.
const USUAL: [(&str, usize); 4] = [("gemma2", 4096), ("gpt_oss", 128), ("llama4", 8192), ("llama4_text", 8192)];

fn wrong<T>(text: String) -> Result<T, ConfigError> {
    Err(ConfigError(text))
}

/// Returns the window of layers, and the n such that every n-th layer has full attention. Qwen's files name a window even if it is
/// not used; Gemma 2 and gpt-oss alternate.
pub(super) fn windows(keys: &Keys, kind: &str, layers: usize) -> Result<(Option<Window>, usize), ConfigError> {
    let is_chunked = kind.starts_with("llama4");
    let names = names(keys, is_chunked, layers)?;
    let key = if is_chunked { "attention_chunk_size" } else { "sliding_window" };
    let usual = USUAL.iter().find(|(family, _)| *family == kind && !keys.contains_key(key)).map(|(_, tokens)| *tokens);
    let tokens = optional(keys, key)?.or(usual).filter(|&tokens| tokens > 0);
    let has_windows = names.iter().any(|is_full| !is_full);
    let is_asked_for = has_windows || flag(keys, "use_sliding_window", false)?;
    if has_windows && !flag(keys, "use_sliding_window", true)? {
        return wrong(format!("expected 'layer_types' of {FULL} with 'use_sliding_window' false; correct one of them"));
    }
    let is_used = is_asked_for || flag(keys, "use_sliding_window", !kind.starts_with("qwen"))?;
    let Some(tokens) = tokens.filter(|_| is_used) else {
        return match is_asked_for {
            true => wrong(format!("expected '{key}' of layers with windows, found none; add it or leave windows out")),
            false => Ok((None, 0)),
        };
    };
    let window = Some(Window { tokens, is_chunked });
    match names.iter().position(|is_full| *is_full) {
        None if names.is_empty() => unnamed(keys, kind, layers, window),
        None => Ok((window, 0)),
        Some(_) if !has_windows => Ok((None, 0)),
        Some(first) if names.iter().enumerate().all(|(layer, is_full)| (layer % (first + 1) == first) == *is_full) => {
            Ok((window, first + 1))
        }
        Some(_) => {
            wrong(format!("expected {FULL} in every n-th layer, found another pattern of windows: not modelled"))
        }
    }
}

/// Returns the windows of a file that does not name its layers.
fn unnamed(
    keys: &Keys,
    kind: &str,
    layers: usize,
    window: Option<Window>,
) -> Result<(Option<Window>, usize), ConfigError> {
    match kind {
        "gemma2" | "gpt_oss" => Ok((window, 2)),
        "llama4" | "llama4_text" => Ok((window, optional(keys, "no_rope_layer_interval")?.unwrap_or(4))),
        // the first `max_window_layers` have full attention
        _ if kind.starts_with("qwen") => match optional(keys, "max_window_layers")?.unwrap_or(28) {
            0 => Ok((window, 0)),
            full if full >= layers => Ok((None, 0)),
            full => wrong(format!(
                "expected 'max_window_layers' 0 or at least {layers}, found {full}: windows in some of the layers, as these, are not modelled"
            )),
        },
        _ => Ok((window, 0)),
    }
}

/// Returns for each layer whether it has full attention; none if the file does not say.
fn names(keys: &Keys, is_chunked: bool, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let list = |key: &str| match keys.get(key).filter(|value| is_set(value)) {
        None => Ok(None),
        Some(Value::Array(list)) if list.len() == layers => Ok(Some(list)),
        Some(Value::Array(list)) => wrong(format!(
            "expected '{key}' to have one entry per layer, {layers}, found {}; correct it or the number of layers",
            list.len()
        )),
        Some(found) => wrong(format!("expected '{key}' to be a list, found {found}; correct it")),
    };
    // of Llama 4, layers without rotary positions have full attention
    let unrotated = if is_chunked { list("no_rope_layers")? } else { None };
    let unrotated = unrotated.map(|list| list.iter().map(|rotates| !is_set(rotates)).collect::<Vec<_>>());
    let Some(list) = list("layer_types")? else { return Ok(unrotated.unwrap_or_default()) };
    let kinds = [FULL, if is_chunked { CHUNKED } else { WINDOW }];
    if let Some(other) = list.iter().find(|name| !kinds.iter().any(|kind| *name == kind)) {
        return wrong(format!("expected layers among {}, found {other}: not modelled", kinds.join(", ")));
    }
    let named: Vec<bool> = list.iter().map(|name| *name == FULL).collect();
    match unrotated {
        Some(unrotated) if unrotated != named => {
            wrong("expected full attention in the layers without rotary positions, found 'layer_types' and 'no_rope_layers' that differ; correct one".to_string())
        }
        _ => Ok(named),
    }
}
