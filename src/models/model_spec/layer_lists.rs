//! Which layers have windows, and which have experts, from the lists and numbers of a `config.json`.

use super::keys::{ConfigError, is_set};
use super::operation::Window;
use super::reader::Reader;
use serde_json::Value;

/// Kinds of layers in `layer_types`.
const FULL: &str = "full_attention";
const WINDOW: &str = "sliding_attention";
const CHUNKED: &str = "chunked_attention";

fn wrong<T>(text: String) -> Result<T, ConfigError> {
    Err(ConfigError(text))
}

/// Returns the window of layers, and which layers have full attention in spite of it.
///
/// # Errors
/// Keys contradict each other.
pub(super) fn windows(read: Reader<'_>, layers: usize) -> Result<(Option<Window>, Vec<bool>), ConfigError> {
    let key = read.given("window")?.map_or("sliding_window", |(key, _)| key);
    let named = named(read, layers)?;
    let has_windows = named.iter().flatten().any(|is_full| !is_full);
    let given = read.given("use_window")?;
    let is_off = given.is_some_and(|(_, value)| *value == false);
    if has_windows && is_off {
        return wrong(format!("expected 'layer_types' of {FULL} with 'use_sliding_window' false; correct one of them"));
    }
    let is_used = has_windows || read.flag("use_window")? || read.flag("chunked")?;
    let Some(tokens) = read.size("window")?.filter(|&tokens| tokens > 0 && is_used) else {
        return match has_windows || given.is_some_and(|(_, value)| *value == true) {
            true => wrong(format!("expected '{key}' of layers with windows, found none; add it or leave windows out")),
            false => Ok((None, vec![true; layers])),
        };
    };
    let is_full = match named {
        Some(named) => named,
        None => unnamed(read, layers)?,
    };
    let window = Some(Window { tokens, is_chunked: read.flag("chunked")? });
    Ok((window.filter(|_| !is_full.iter().all(|is_full| *is_full)), is_full))
}

/// Returns the n such that every n-th layer has full attention, 0: none; `None` for other patterns.
pub(super) fn every(is_full: &[bool]) -> Option<usize> {
    match is_full.iter().position(|is_full| *is_full) {
        None => Some(0),
        Some(first) => {
            let fits = |(layer, is_full): (usize, &bool)| (layer % (first + 1) == first) == *is_full;
            is_full.iter().enumerate().all(fits).then_some(first + 1)
        }
    }
}

/// Returns for each layer whether it has full attention, if the file does not name its layers.
fn unnamed(read: Reader<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    if let Some((_, Value::String(pattern))) = read.given("full_every")? {
        let letters: Vec<char> = pattern.chars().collect();
        return Ok((0..layers).map(|layer| letters.get(layer % letters.len().max(1)) != Some(&'L')).collect());
    }
    let every = read.size("full_every")?.unwrap_or(0);
    let from = read.size("window_from")?.unwrap_or(0);
    Ok((0..layers).map(|layer| (every > 0 && layer % every == every - 1) || layer < from).collect())
}

/// Returns for each layer whether it has full attention, from lists.
fn named(read: Reader<'_>, layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
    // of Llama 4, layers without rotary positions have full attention
    let unrotated = read.list("full_list", layers)?;
    let unrotated = unrotated.map(|(_, list)| list.iter().map(|rotates| !is_set(rotates)).collect::<Vec<_>>());
    let Some((_, list)) = read.list("layer_types", layers)? else { return Ok(unrotated) };
    let kinds = [FULL, if read.flag("chunked")? { CHUNKED } else { WINDOW }];
    if let Some(other) = list.iter().find(|name| !kinds.iter().any(|kind| *name == kind)) {
        return wrong(format!("expected layers among {}, found {other}: not modelled", kinds.join(", ")));
    }
    let named: Vec<bool> = list.iter().map(|name| *name == FULL).collect();
    match unrotated {
        Some(unrotated) if unrotated != named => {
            wrong("expected full attention in the layers without rotary positions, found 'layer_types' and 'no_rope_layers' that differ; correct one".to_string())
        }
        _ => Ok(Some(named)),
    }
}

/// Returns for each layer whether it has experts.
///
/// # Errors
/// Keys contradict each other.
pub(super) fn mixtures(read: Reader<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let (first, every) = (read.size("dense_first")?.unwrap_or(0), read.size("moe_every")?.unwrap_or(1).max(1));
    let last = match read.given("moe_last")? {
        Some((_, value)) if *value != -1 => read.size("moe_last")?.unwrap_or(layers),
        _ => layers,
    };
    let mut lists: Vec<(&str, Vec<bool>)> = Vec::new();
    if let Some((key, list)) = read.list("mlp_types", layers)? {
        lists.push((key, list.iter().map(|kind| kind != "dense").collect()));
    }
    if let Some((key, Value::Array(list))) = read.given("moe_list")?.filter(|(_, list)| is_set(list)) {
        lists.push((key, (0..layers).map(|layer| list.contains(&Value::from(layer))).collect()));
    }
    if let Some((_, freq)) = read.given("moe_freq")? {
        match freq {
            Value::Array(_) => {
                let list = read.list("moe_freq", layers)?;
                lists.extend(list.map(|(key, list)| (key, list.iter().map(is_set).collect())));
            }
            freq if *freq == 1 => {}
            freq => {
                return wrong(format!("expected 'moe_layer_freq' 1 or a list, found {freq}; correct it"));
            }
        }
    }
    let dense = match read.given("dense_list")? {
        Some((_, Value::Array(list))) => list.clone(),
        _ => Vec::new(),
    };
    let offset = read.size("moe_offset")?.unwrap_or(every - 1);
    let by_number = |layer: usize| (first..=last).contains(&layer) && layer % every == offset;
    let usual: Vec<bool> = (0..layers).map(|layer| by_number(layer) && !dense.contains(&Value::from(layer))).collect();
    let is_said = ["dense_first", "moe_every"].iter().any(|name| matches!(read.given(name), Ok(Some(_))));
    match lists.first() {
        Some((key, list)) if is_said && *list != usual => wrong(format!(
            "expected '{key}' as the file's numbers of layers with experts say, found others; correct one"
        )),
        Some((_, list)) => Ok(list.clone()),
        None => Ok(usual),
    }
}

/// Returns the first layers without experts, and the n such that every n-th of the others has them; `None` for other patterns.
pub(super) fn steps(has: &[bool]) -> Option<(usize, usize)> {
    let places: Vec<usize> = (0..has.len()).filter(|&layer| has[layer]).collect();
    let every = match places[..] {
        [one, other, ..] => other - one,
        _ => 1,
    };
    let first = places.first().map_or(Some(has.len()), |first| (first + 1).checked_sub(every))?;
    let fits = |layer: usize| has[layer] == (layer >= first && (layer - first) % every == every - 1);
    (0..has.len()).all(fits).then_some((first, every))
}
