//! Texts of YAML as options.

use super::options::missing;
use crate::error::Missing;
use crate::setting::Setting;
use crate::shell::words;
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the number of the first line that has a text.
pub(super) fn line(text: &str, part: &str) -> usize {
    text.lines().position(|line| line.contains(part)).map_or(1, |line| line + 1)
}

/// Returns the option that a key with its value is; `None` if it is switched off.
pub(super) fn setting(
    name: &str,
    value: &Value,
    environment: &BTreeMap<String, String>,
    place: String,
) -> Option<Setting> {
    let mut unresolved = Vec::new();
    let mut expand = |value: &Value| expanded(&text(value), environment, &mut unresolved);
    let values: Vec<String> = match value {
        Value::Null | Value::Bool(false) => return None,
        Value::Bool(true) => Vec::new(),
        Value::Array(list) => list.iter().map(&mut expand).collect(),
        // a script compares its text with false and true, and gives it to a shell, which splits it and removes quotes
        Value::String(_) => match &*expand(value) {
            "false" => return None,
            "true" => Vec::new(),
            text if text.contains(['"', '\'']) => words(text).unwrap_or_else(|_| vec![text.to_string()]),
            text => text.split_whitespace().map(str::to_string).collect(),
        },
        other => vec![expand(other)],
    };
    let name = name.trim_start_matches('-').to_string();
    Some(Setting { name, values, place, unresolved })
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Replaces `${NAME}` and `${NAME:default}`; names without a value are added to `unresolved`.
pub(super) fn expanded(text: &str, environment: &BTreeMap<String, String>, unresolved: &mut Vec<String>) -> String {
    let mut all = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((inner, next)) = after.split_once('}') else { break };
        all.push_str(before);
        let (name, default) = inner.split_once(':').map_or((inner, None), |(name, default)| (name, Some(default)));
        let default = default.map(|default| default.strip_prefix('-').unwrap_or(default));
        match environment.get(name).map(String::as_str).or(default) {
            Some(value) => all.push_str(value),
            None => unresolved.push(name.to_string()),
        }
        rest = next;
    }
    all.push_str(rest);
    all
}

/// Returns what a text takes from elsewhere.
pub(super) fn variables(unresolved: &[String], used_by: &str) -> Vec<Missing> {
    unresolved.iter().map(|name| missing(name, used_by)).collect()
}
