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

/// Returns the window of layers, and the n such that every n-th layer has full attention.
///
/// # Errors
/// Keys contradict each other, or the pattern is another one.
pub(super) fn windows(read: Reader<'_>, layers: usize) -> Result<(Option<Window>, usize), ConfigError> {
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
            false => Ok((None, 0)),
        };
    };
    let is_full = match named {
        Some(named) => named,
        None => unnamed(read, layers)?,
    };
    let window = Some(Window { tokens, is_chunked: read.flag("chunked")? });
    match is_full.iter().position(|is_full| *is_full) {
        None => Ok((window, 0)),
        Some(_) if is_full.iter().all(|is_full| *is_full) => Ok((None, 0)),
        Some(first)
            if is_full.iter().enumerate().all(|(layer, is_full)| (layer % (first + 1) == first) == *is_full) =>
        {
            Ok((window, first + 1))
        }
        Some(_) => match read.size("window_from")? {
            Some(full) if read.given("layer_types")?.is_none() => wrong(format!(
                "expected 'max_window_layers' 0 or at least {layers}, found {full}: windows in some of the layers, as these, are not modelled"
            )),
            _ => wrong(format!("expected {FULL} in every n-th layer, found another pattern of windows: not modelled")),
        },
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

/// Returns the number of first layers without experts, and the n such that every n-th of the others has them.
///
/// # Errors
/// Keys contradict each other, or the pattern is another one.
pub(super) fn mixtures(read: Reader<'_>, layers: usize) -> Result<(usize, usize), ConfigError> {
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
                return wrong(format!("expected 'moe_layer_freq' 1, found {freq}: other patterns are not modelled"));
            }
        }
    }
    let dense = match read.given("dense_list")? {
        Some((_, Value::Array(list))) => list.clone(),
        _ => Vec::new(),
    };
    let by_number = |layer: usize| (first..=last).contains(&layer) && (layer + 1).is_multiple_of(every);
    let usual: Vec<bool> = (0..layers).map(|layer| by_number(layer) && !dense.contains(&Value::from(layer))).collect();
    let is_said = ["dense_first", "moe_every"].iter().any(|name| matches!(read.given(name), Ok(Some(_))));
    match lists.first() {
        Some((key, list)) if is_said && *list != usual => wrong(format!(
            "expected '{key}' as the file's numbers of layers with experts say, found others; correct one"
        )),
        Some((_, list)) => pattern(list),
        None => pattern(&usual),
    }
}

/// Returns the first layers without experts, and the n such that every n-th of the others has them.
fn pattern(has: &[bool]) -> Result<(usize, usize), ConfigError> {
    let places: Vec<usize> = (0..has.len()).filter(|&layer| has[layer]).collect();
    let every = match places[..] {
        [one, other, ..] => other - one,
        _ => 1,
    };
    let first = places.first().map_or(Some(has.len()), |first| (first + 1).checked_sub(every));
    let fits = |first: usize| {
        (0..has.len()).all(|layer| has[layer] == (layer >= first && (layer - first) % every == every - 1))
    };
    match first.filter(|&first| fits(first)) {
        Some(first) => Ok((first, every)),
        None => wrong(
            "expected experts in every n-th layer after the first ones, found another pattern: not modelled"
                .to_string(),
        ),
    }
}
