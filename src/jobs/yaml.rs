//! YAML as JSON values.

use crate::error::JobError;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use yaml_rust2::Yaml;
use yaml_rust2::parser::{Event, Parser, Tag};
use yaml_rust2::scanner::TScalarStyle;

/// Deepest nesting that is read.
const DEEPEST: usize = 64;
/// Most values of a document, after aliases are replaced by what they stand for.
const MOST_VALUES: usize = 200_000;

/// Reads the first document of a text; an empty one is null.
///
/// # Errors
/// It is no YAML, or has keys that are no texts.
pub fn parse(name: &str, text: &str) -> Result<Value, JobError> {
    let wrong = |line: usize, why: String| JobError::File { place: format!("{name}:{line}"), why };
    let mut parser = Parser::new_from_str(text);
    let mut document = Document::default();
    // Events are taken one at a time: the crate's own loader recurses, and copies what an alias stands for without a limit.
    loop {
        let (event, marker) = parser.next_token().map_err(|error| {
            wrong(error.marker().line(), format!("expected YAML: {}; correct the line", error.info()))
        })?;
        let line = marker.line();
        match event {
            Event::DocumentEnd | Event::StreamEnd => return Ok(document.root.unwrap_or_default()),
            event => document.take(event).map_err(|why| wrong(line, why))?,
        }
    }
}

/// A list or a mapping that is not complete.
struct Open {
    value: Value,
    /// Key of a mapping whose value comes next.
    key: Option<String>,
    anchor: usize,
    /// Values within.
    size: usize,
}

#[derive(Default)]
struct Document {
    open: Vec<Open>,
    /// By anchor: value and number of values.
    anchors: BTreeMap<usize, (Value, usize)>,
    root: Option<Value>,
    values: usize,
}

impl Document {
    fn take(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => self.put(scalar(text, style, tag.as_ref()), 1, anchor),
            Event::SequenceStart(anchor, _) => self.begin(Value::Array(Vec::new()), anchor),
            Event::MappingStart(anchor, _) => self.begin(Value::Object(Map::new()), anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.put(open.value, open.size + 1, open.anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let size = self.anchors.get(&anchor).map_or(1, |(_, size)| *size);
                self.count(size)?;
                let value = self.anchors.get(&anchor).map(|(value, _)| value.clone());
                self.put(value.unwrap_or_default(), size, 0)
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, more: usize) -> Result<(), String> {
        self.values = self.values.saturating_add(more);
        match self.values > MOST_VALUES {
            true => Err(format!("expected at most {MOST_VALUES} values, found more; shorten it")),
            false => Ok(()),
        }
    }

    fn begin(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        self.count(1)?;
        if self.open.len() + 1 >= DEEPEST {
            return Err(format!("expected at most {DEEPEST} levels, found more; shorten it"));
        }
        self.open.push(Open { value, key: None, anchor, size: 0 });
        Ok(())
    }

    fn put(&mut self, value: Value, size: usize, anchor: usize) -> Result<(), String> {
        if size == 1 {
            self.count(1)?;
        }
        if anchor > 0 {
            self.count(size)?; // the copy that aliases take
            self.anchors.insert(anchor, (value.clone(), size));
        }
        let Some(open) = self.open.last_mut() else {
            self.root.get_or_insert(value);
            return Ok(());
        };
        open.size += size;
        match (&mut open.value, open.key.take()) {
            (Value::Array(list), _) => list.push(value),
            (Value::Object(map), Some(key)) if key == "<<" => merge(map, value),
            (Value::Object(map), Some(key)) => {
                map.insert(key, value);
            }
            (_, _) => {
                open.key = Some(match value {
                    Value::String(text) => text,
                    Value::Array(_) | Value::Object(_) => {
                        return Err("expected keys that are texts, found a list or a mapping; correct it".to_string());
                    }
                    other => other.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// Adds the keys of a mapping, or of a list of them, that another one lacks.
fn merge(map: &mut Map<String, Value>, value: Value) {
    match value {
        Value::Object(other) => {
            for (key, value) in other {
                map.entry(key).or_insert(value);
            }
        }
        Value::Array(list) => list.into_iter().for_each(|one| merge(map, one)),
        _ => {}
    }
}

fn scalar(text: String, style: TScalarStyle, tag: Option<&Tag>) -> Value {
    if style != TScalarStyle::Plain || tag.is_some_and(|tag| tag.suffix == "str") {
        return Value::String(text);
    }
    match Yaml::from_str(&text) {
        Yaml::Null => Value::Null,
        Yaml::Boolean(yes) => Value::Bool(yes),
        Yaml::Integer(number) => Value::from(number),
        Yaml::Real(_) => {
            text.parse().ok().and_then(serde_json::Number::from_f64).map_or(Value::String(text), Value::Number)
        }
        _ => match text.as_str() {
            "Null" | "NULL" => Value::Null,
            "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Value::Bool(true),
            "no" | "No" | "NO" | "off" | "Off" | "OFF" => Value::Bool(false),
            _ => match text.replace('_', "").parse::<i64>() {
                Ok(number) if !text.starts_with('_') => Value::from(number), // 1_000 is a number in YAML 1.1
                _ => Value::String(text),
            },
        },
    }
}
