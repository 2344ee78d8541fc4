//! Options as text, in the forms that frameworks read.

use super::file::Form;
use pipesim_schedule::sanitize::shell_quoted;
use serde_json::{Map, Value as Json};

/// Name and value of each option; null: the name alone.
pub(crate) type Options = [(String, Json)];

/// Writes options.
pub(crate) fn print(form: Form, options: &Options) -> String {
    match form {
        Form::Arguments => words(options, |name, value| match value {
            Json::Null => name.to_string(),
            Json::Array(list) => {
                [name.to_string()].into_iter().chain(list.iter().map(quoted)).collect::<Vec<_>>().join(" ")
            }
            value => format!("{name} {}", quoted(value)),
        }),
        Form::Overrides => words(options, |name, value| format!("{name}={}", quoted(&on_if_alone(value)))),
        Form::Toml => toml(options),
        Form::Json => serde_json::to_string_pretty(&nested(options)).unwrap_or_default(),
        Form::Yaml => {
            let mut text = String::new();
            yaml(&nested(options), 0, &mut text);
            text.trim_end().to_string()
        }
    }
}

/// Returns a value as one word, without quotes.
pub(crate) fn word(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Array(list) => format!("[{}]", list.iter().map(word).collect::<Vec<_>>().join(",")),
        value => value.to_string(),
    }
}

fn quoted(value: &Json) -> String {
    shell_quoted(&word(value))
}

fn words(options: &Options, one: impl Fn(&str, &Json) -> String) -> String {
    options.iter().map(|(name, value)| one(name, value)).collect::<Vec<_>>().join(" ")
}

fn on_if_alone(value: &Json) -> Json {
    if value.is_null() { Json::Bool(true) } else { value.clone() }
}

/// Returns the options as objects, nested by the dots in names.
fn nested(options: &Options) -> Json {
    let mut root = Json::Object(Map::new());
    for (name, value) in options {
        let inner = name.split('.').fold(&mut root, |at, part| {
            if !at.is_object() {
                *at = Json::Object(Map::new());
            }
            &mut at[part]
        });
        *inner = on_if_alone(value);
    }
    root
}

/// Writes tables; names without dots come first.
fn toml(options: &Options) -> String {
    let split = |name: &str| {
        name.rsplit_once('.')
            .map_or_else(|| (String::new(), name.to_string()), |(table, key)| (table.to_string(), key.to_string()))
    };
    let mut tables: Vec<(String, Vec<String>)> = vec![(String::new(), Vec::new())];
    for (name, value) in options {
        let (table, key) = split(name);
        let place = tables.iter().position(|(known, _)| *known == table).unwrap_or_else(|| {
            tables.push((table, Vec::new()));
            tables.len() - 1
        });
        // JSON's texts, numbers and lists are TOML, too
        tables[place].1.push(format!("{key} = {}", spaced(&on_if_alone(value))));
    }
    let one = |(table, lines): (String, Vec<String>)| {
        let head = if table.is_empty() { String::new() } else { format!("[{table}]\n") };
        head + &lines.join("\n")
    };
    tables.into_iter().filter(|(_, lines)| !lines.is_empty()).map(one).collect::<Vec<_>>().join("\n\n")
}

/// Writes JSON on one line, with a space after each comma.
fn spaced(value: &Json) -> String {
    match value {
        Json::Array(list) => format!("[{}]", list.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        value => value.to_string(),
    }
}

/// Writes objects as indented keys; other values as JSON, which YAML contains.
fn yaml(value: &Json, indent: usize, text: &mut String) {
    let Json::Object(map) = value else { return };
    for (key, value) in map {
        let space = " ".repeat(indent);
        if value.is_object() {
            *text += &format!("{space}{key}:\n");
            yaml(value, indent + 2, text);
        } else {
            *text += &format!("{space}{key}: {}\n", spaced(value));
        }
    }
}
