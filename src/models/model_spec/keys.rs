//! Reading sizes and flags from the keys of a JSON object.

use super::mixture::Latent;
use serde_json::{Map, Value};

/// Why a file describes no supported model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(super) String);

/// Reads a whole number.
pub(super) fn size(keys: &Map<String, Value>, key: &str, kind: &str) -> Result<usize, ConfigError> {
    let missing =
        || ConfigError(format!("expected '{key}', found none; a model of this type has {}", kind.replace(' ', ", ")));
    optional(keys, key)?.ok_or_else(missing)
}

/// Largest size that is read: no model has more of anything, and products of two fit.
const LARGEST: usize = 1 << 31;

/// Reads a whole number; `None` if the key is missing or null.
pub(super) fn optional(keys: &Map<String, Value>, key: &str) -> Result<Option<usize>, ConfigError> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            let wrong = || ConfigError(format!("expected '{key}' to be a whole number, found {value}; correct it"));
            let number = number.ok_or_else(wrong)?;
            if number > LARGEST {
                return Err(ConfigError(format!(
                    "expected '{key}' to be at most {LARGEST}, found {number}; correct it"
                )));
            }
            Ok(Some(number))
        }
    }
}

/// Reads a whole number that has two names.
pub(super) fn agree(keys: &Map<String, Value>, one: &str, other: &str) -> Result<Option<usize>, ConfigError> {
    match (optional(keys, one)?, optional(keys, other)?) {
        (Some(first), Some(second)) if first != second => Err(ConfigError(format!(
            "expected '{one}' and '{other}' to be equal, found {first} and {second}; leave one of them out"
        ))),
        (first, second) => Ok(first.or(second)),
    }
}

/// Reads the sizes of latent attention by DeepSeek's names.
pub(super) fn latent(keys: &Map<String, Value>, kind: &str) -> Result<Latent, ConfigError> {
    let read = |key| size(keys, key, kind);
    Ok(Latent {
        query_rank: optional(keys, "q_lora_rank")?,
        key_rank: read("kv_lora_rank")?,
        plain_size: read("qk_nope_head_dim")?,
        rotary_size: read("qk_rope_head_dim")?,
        value_size: read("v_head_dim")?,
    })
}

pub(super) fn flag(keys: &Map<String, Value>, key: &str, default: bool) -> Result<bool, ConfigError> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => {
            value.as_bool().ok_or_else(|| ConfigError(format!("expected '{key}' to be true or false, found {value}")))
        }
    }
}

/// Reads a number; `None` if the key is missing or null.
pub(super) fn number(keys: &Map<String, Value>, key: &str) -> Result<Option<f64>, ConfigError> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64().filter(|number| *number > 0.0) {
            Some(number) => Ok(Some(number)),
            None => Err(ConfigError(format!("expected '{key}' to be a number above 0, found {value}; correct it"))),
        },
    }
}

pub(super) fn divides(of: &str, whole: usize, by: &str, part: usize) -> Result<(), ConfigError> {
    if part == 0 || !whole.is_multiple_of(part) {
        return Err(ConfigError(format!(
            "expected '{of}' to be a multiple of '{by}', found {whole} and {part}; correct one"
        )));
    }
    Ok(())
}

/// Returns whether `key` is one of `keys`, which are separated by spaces.
pub(super) fn lists(keys: &str, key: &str) -> bool {
    keys.split(' ').any(|known| known == key)
}

/// Returns whether a value enables a feature: it is not null, false, 0 or empty.
pub(super) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(yes) => *yes,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// A value, unless it is long.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "an object".to_string(),
        value => value.to_string(),
    }
}
