//! What the keys of a `config.json` that a family does not read mean: nothing, other values of the same function, or parts.

use super::configuration::Configuration;
use super::families::{NotModelled, families};
use super::keys::{is_set, shown};
use serde_json::{Map, Value};

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
    families().harmless.contains(key)
        || VALUES.iter().any(|(known, _, _)| *known == key)
        || HARMLESS_STARTS.iter().any(|start| key.starts_with(start))
        || HARMLESS_ENDS.iter().any(|end| key.ends_with(end))
}

/// Returns the keys that are set, not read and not harmless.
pub(super) fn others<'a>(found: &'a Configuration<'_>) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let family = found.reader();
    let is_read = move |key: &str| {
        family.is_some_and(|read| {
            read.reads(key) || read.family.harmless.contains(key) || read.family.values.contains_key(key)
        })
    };
    found.keys.iter().filter(move |(key, value)| is_set(value) && !is_read(key) && !is_harmless(key))
}

/// Returns the parts that a model has and no family here, by its types, its keys, and the names of its layers.
pub(super) fn not_modelled(found: &Configuration<'_>) -> Vec<String> {
    let all: Vec<(&String, &Value)> = others(found).collect();
    let names =
        ["layer_types", "layers_block_type"].iter().filter_map(|key| found.keys.get(*key)?.as_array()).flatten();
    let mixers = found.reader().and_then(|read| read.word("mixers").ok()).unwrap_or_default();
    let is_own = |name: &str| mixers.split(' ').any(|pair| pair.split(':').next() == Some(name));
    let names: Vec<&str> = names.filter_map(Value::as_str).filter(|name| !is_own(name)).collect();
    let is_type = |part: &NotModelled| part.types.iter().any(|kind| found.types.contains(&kind.as_str()));
    let is_known_type = families().not_modelled.iter().any(is_type);
    let mut parts: Vec<String> = Vec::new();
    for part in &families().not_modelled {
        let key = part.keys.iter().find_map(|key| all.iter().find(|(found, _)| *found == key));
        // some types have names of layers in other senses
        let layer = part.layers.iter().find(|name| !is_known_type && names.contains(&name.as_str()));
        let shown = key.map(|(key, value)| match value {
            Value::Array(_) | Value::Object(_) => format!("'{key}'"),
            _ => format!("'{key}': {}", shown(value)),
        });
        match shown.or(layer.map(|name| format!("'{name}'"))) {
            Some(why) => parts.push(format!("{} ({why})", part.what)),
            None if is_type(part) => parts.push(part.what.clone()),
            None => {}
        }
    }
    parts
}

/// Properties that change no size.
const NO_SIZES: [&str; 3] = ["eps", "act", "theta"];

/// Returns a key that sizes of other families have, and this one does not.
pub(super) fn of_others(found: &Configuration<'_>) -> Option<String> {
    let is_size = |key: &str| {
        families().named.values().filter(|family| !family.types.is_empty()).any(|family| {
            let sizes = family.properties.iter().filter(|(name, _)| !NO_SIZES.contains(&name.as_str()));
            sizes.flat_map(|(_, property)| &property.keys).any(|known| known == key) || family.values.contains_key(key)
        })
    };
    let (key, value) = others(found).find(|(key, _)| is_size(key))?;
    Some(format!("'{key}': {}", shown(value)))
}
