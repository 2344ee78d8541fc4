//! JSON as Python writes it: with `Infinity`, `-Infinity` and `NaN`, which Hugging Face's files contain.

use super::keys::ConfigError;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Python's numbers that JSON does not have, and strings of the same length in their place, so that columns stay right. The strings
/// begin with a character that no key or value has.
const NOT_FINITE: [(&str, &str); 3] =
    [("-Infinity", "\"\u{7f}-Infin\""), ("Infinity", "\"\u{7f}Infin\""), ("NaN", "\"\u{7f}\"")];

/// What [`Unique`] expects.
const OBJECT: &str = "a JSON object";

/// Reads an object; `what` says what is expected. Numbers that are not finite become strings with their names, which no reader of
/// a number accepts.
///
/// # Errors
/// The text is not JSON, or not an object, or has a key twice with different values.
pub(super) fn object(text: &str, what: &str) -> Result<Map<String, Value>, ConfigError> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        return Err(ConfigError(format!("expected {what}, found an empty file; download it again")));
    }
    let text = quoted(text);
    let mut reader = serde_json::Deserializer::from_str(&text);
    let keys = reader.deserialize_any(Unique).and_then(|keys| reader.end().map(|()| keys));
    keys.map_err(|error| {
        let found = error.to_string();
        ConfigError(match () {
            () if !error.is_data() => format!("expected {what}, found invalid JSON ({found})"),
            () if found.contains(OBJECT) => format!("expected {what}, an object, found another JSON value"),
            () => format!("expected {what}, {found}"),
        })
    })
}

/// Puts [`NOT_FINITE`] numbers outside strings in quotes.
fn quoted(text: &str) -> String {
    let mut found = String::with_capacity(text.len());
    let (mut rest, mut is_inside, mut is_escaped) = (text, false, false);
    while let Some(next) = rest.chars().next() {
        let number = NOT_FINITE.iter().find(|(name, _)| !is_inside && rest.starts_with(name));
        if let Some((name, string)) = number {
            found.push_str(string);
            rest = &rest[name.len()..];
            continue;
        }
        is_inside ^= next == '"' && !is_escaped;
        is_escaped = is_inside && next == '\\' && !is_escaped;
        found.push(next);
        rest = &rest[next.len_utf8()..];
    }
    found
}

/// Writes the names of [`NOT_FINITE`] numbers in place of the strings that represent them.
fn named(value: Value) -> Value {
    match value {
        Value::String(text) => {
            let name = NOT_FINITE.iter().find(|(_, string)| string.trim_matches('"') == text).map(|(name, _)| *name);
            Value::from(name.map_or(text, str::to_string))
        }
        Value::Array(list) => list.into_iter().map(named).collect(),
        Value::Object(keys) => keys.into_iter().map(|(key, value)| (key, named(value))).collect(),
        other => other,
    }
}

/// Reads an object, and rejects one that has a key twice with different values.
struct Unique;

impl<'de> Visitor<'de> for Unique {
    type Value = Map<String, Value>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(OBJECT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map<String, Value>, A::Error> {
        let mut keys = Map::new();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            if keys.get(&key).is_some_and(|other| *other != value) {
                return Err(A::Error::custom(format!(
                    "each key once, found '{key}' with two values; leave one of them out"
                )));
            }
            keys.insert(key, named(value));
        }
        Ok(keys)
    }
}
