//! A configuration as dotted names with values.

use crate::error::JobError;
use crate::setting::{Setting, Settings};
use crate::yaml;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Longest chain of references that is followed.
const LONGEST_CHAIN: usize = 16;
/// Longest value that a reference copies, in bytes.
const LONGEST_COPY: usize = 1000;
/// Most values of a configuration.
const MOST_VALUES: usize = 5_000;

/// Languages of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Toml,
    Yaml,
    Json,
}

impl Language {
    /// Returns the language of a file, by the ending of its name, else by its first character.
    pub(crate) fn of(name: &str, text: &str) -> Option<Language> {
        match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "toml" => Some(Language::Toml),
            "yaml" | "yml" => Some(Language::Yaml),
            "json" => Some(Language::Json),
            "sh" | "log" | "out" | "txt" | "py" | "sbatch" | "slurm" => None,
            _ => text.trim_start().starts_with('{').then_some(Language::Json),
        }
    }
}

/// A configuration as dotted names with values: `model.seq_length`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Document {
    pub(crate) name: String,
    /// Lines that a name starts, or that are a header with it.
    lines: BTreeMap<String, Vec<usize>>,
    /// Values that are no tables, by dotted name.
    pub(crate) values: Map<String, Value>,
    /// Names as the configuration writes them, where they differ.
    written: BTreeMap<String, String>,
    /// Names that defaults gave.
    defaults: Vec<String>,
}

impl Document {
    /// Returns a configuration without values.
    pub(crate) fn empty(name: &str) -> Document {
        Document { name: name.to_string(), ..Document::default() }
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is not of its language, or no table.
    pub(crate) fn parse(language: Language, name: &str, text: &str) -> Result<Document, JobError> {
        let fail = |line: usize, why: String| Err(JobError::File { place: format!("{name}:{line}"), why });
        let read = match language {
            Language::Toml => match toml::from_str::<Value>(text) {
                Ok(read) => read,
                Err(error) => {
                    let start = error.span().map_or(0, |span| span.start.min(text.len()));
                    let line = text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count() + 1;
                    let what = error.message().lines().next().unwrap_or_default();
                    return fail(line, format!("expected TOML: {what}; correct the line"));
                }
            },
            Language::Yaml => yaml::parse(name, text)?,
            Language::Json => match serde_json::from_str(text) {
                Ok(read) => read,
                // DeepSpeed's reader takes remarks and trailing commas, which YAML has, too
                Err(error) => match yaml::parse(name, text) {
                    Ok(read @ Value::Object(_)) if error.is_syntax() => read,
                    _ => return fail(error.line(), format!("expected JSON: {error}; correct the line")),
                },
            },
        };
        let Value::Object(table) = read else {
            return fail(1, "expected a table of names and values, found something else; correct it".to_string());
        };
        let mut document = Document { name: name.to_string(), lines: lines(text), ..Document::default() };
        flatten("", table, &mut document.values);
        if document.values.len() > MOST_VALUES {
            return fail(1, format!("expected at most {MOST_VALUES} values, found more; shorten it"));
        }
        document.follow_references();
        Ok(document)
    }

    /// Replaces `${other.name}` by the value of that name.
    fn follow_references(&mut self) {
        for _ in 0..LONGEST_CHAIN {
            let target = |value: &Value| {
                let name = value.as_str()?.strip_prefix("${")?.strip_suffix('}')?;
                let found = self.values.get(name.trim_start_matches('.'))?;
                // long values are not copied: a few lines could ask for gigabytes
                found.to_string().len().lt(&LONGEST_COPY).then(|| found.clone())
            };
            let found: Vec<(String, Value)> =
                self.values.iter().filter_map(|(name, value)| Some((name.clone(), target(value)?))).collect();
            if found.is_empty() {
                return;
            }
            self.values.extend(found);
        }
    }

    /// Sets a name, as an override does: the text is read as YAML.
    ///
    /// # Errors
    /// The text is no YAML.
    pub(crate) fn set(&mut self, name: &str, text: &str) -> Result<(), JobError> {
        let name = name.trim_start_matches("++").trim_start_matches('+');
        let value = yaml::parse(&format!("override of {name}"), text)?;
        let same = self.values.keys().find(|key| crate::setting::same_name(key, name)).cloned();
        self.values.insert(same.unwrap_or_else(|| name.to_string()), value);
        Ok(())
    }

    /// Takes settings and words (`NAME=VALUE`) of a command line as overrides.
    ///
    /// # Errors
    /// A value is no YAML.
    pub(crate) fn override_with(&mut self, settings: &Settings, words: &[String]) -> Result<(), JobError> {
        for setting in &settings.0 {
            let text = match setting.values.as_slice() {
                [] => "true".to_string(),
                [one] => one.clone(),
                several => {
                    let word = |word: &String| if word.contains(',') { format!("\"{word}\"") } else { word.clone() };
                    format!("[{}]", several.iter().map(word).collect::<Vec<_>>().join(", "))
                }
            };
            self.set(&setting.name, &text)?;
        }
        for word in words {
            match word.strip_prefix('~') {
                Some(removed) => {
                    self.values.remove(removed);
                }
                None => {
                    if let Some((name, text)) = word.split_once('=') {
                        self.set(name, text)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes words of a command line as overrides: `--NAME VALUE`, `--NAME=VALUE`, `--NAME` and `NAME=VALUE`.
    ///
    /// # Errors
    /// A value is no YAML.
    pub(crate) fn override_with_arguments(&mut self, arguments: &[String]) -> Result<(), JobError> {
        let (mut settings, mut words) = (Settings::default(), Vec::new());
        for word in arguments {
            match word.strip_prefix("--") {
                Some(option) => {
                    let (name, value) =
                        option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
                    let values = value.map(str::to_string).into_iter().collect();
                    settings.0.push(Setting { name: name.to_string(), values, ..Setting::default() });
                }
                None if word.contains('=') && !word.starts_with(['[', '{']) => words.push(word.clone()),
                None => match settings.0.last_mut() {
                    Some(setting) => setting.values.push(word.clone()),
                    None => words.push(word.clone()),
                },
            }
        }
        self.override_with(&settings, &words)
    }

    /// Adds the values of another configuration; those that are here stay.
    pub(crate) fn join(&mut self, other: Document) {
        for (name, value) in other.values {
            self.values.entry(name).or_insert(value);
        }
    }

    /// Gives a name's value another name, unless that has a value.
    pub(crate) fn rename(&mut self, old: &str, new: &str) {
        if let Some(value) = self.values.remove(old).filter(|_| !self.values.contains_key(new)) {
            self.values.insert(new.to_string(), value);
            self.written.insert(new.to_string(), old.to_string());
        }
    }

    /// Gives a value to a name without one.
    pub(crate) fn fill(&mut self, name: &str, value: &Value) {
        if self.get(name).is_none() {
            self.values.insert(name.to_string(), value.clone());
            self.defaults.push(name.to_string());
        }
    }

    /// Whether a name of an older version is in use.
    pub(crate) fn is_old(&self) -> bool {
        self.written.values().any(|name| name.starts_with("experimental."))
    }

    /// Returns a value that is not null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// Returns a text; lists and numbers as they are written.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(plain)
    }

    /// Whether a value switches something on.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.text(name).is_some_and(|value| !crate::setting::is_false(&value) && !value.is_empty())
    }

    /// Returns a list of texts; a text is split at commas.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        match self.get(name) {
            Some(Value::Array(list)) => list.iter().map(plain).collect(),
            Some(Value::String(text)) => {
                text.split(',').map(|one| one.trim().to_string()).filter(|one| !one.is_empty()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns a whole number of at least 1.
    ///
    /// # Errors
    /// It is something else.
    pub(crate) fn count(&self, name: &str) -> Result<Option<u32>, JobError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        match number.and_then(|number| u32::try_from(number).ok()).filter(|&number| number > 0) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(name, "a whole number of at least 1")),
        }
    }

    /// Returns the error of a value that is not what was expected.
    pub(crate) fn wrong(&self, name: &str, expected: &str) -> JobError {
        let found = self.get(name).map_or_else(|| "null".to_string(), shorten);
        let name = self.written.get(name).map_or(name, String::as_str);
        JobError::File {
            place: self.place(name),
            why: format!("expected `{name}` to be {expected}, found {found}; correct it"),
        }
    }

    /// Returns file and line of a name: its parts start lines, one after the other.
    pub(crate) fn place(&self, name: &str) -> String {
        let mut line = 0;
        for part in name.split('.') {
            let lines = self.lines.get(part).map_or(&[][..], Vec::as_slice);
            line = lines.get(lines.partition_point(|&one| one < line)).copied().unwrap_or(line);
        }
        format!("{}:{}", self.name, line + 1)
    }

    /// Returns all values but defaults as settings, named as the configuration names them, each after its name of today.
    pub(crate) fn settings(&self) -> Vec<(String, Setting)> {
        let given = self.values.iter().filter(|(name, value)| !value.is_null() && !self.defaults.contains(name));
        let setting = |(name, value): (&String, &Value)| {
            let written = self.written.get(name).unwrap_or(name).clone();
            let values = match value {
                Value::Array(list) => list.iter().map(plain).collect(),
                other => vec![plain(other)],
            };
            (name.clone(), Setting { place: self.place(&written), name: written, values, unresolved: Vec::new() })
        };
        given.map(setting).collect()
    }
}

/// Returns a value as text, without quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn shorten(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

fn flatten(start: &str, table: Map<String, Value>, values: &mut Map<String, Value>) {
    for (key, value) in table {
        let name = if start.is_empty() { key } else { format!("{start}.{key}") };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(&name, inner, values),
            value => {
                values.insert(name, value);
            }
        }
    }
}

/// Returns by name the lines that it starts, and the headers (`[a.b]`) with it.
fn lines(text: &str) -> BTreeMap<String, Vec<usize>> {
    let mut all: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let start = line.trim_start_matches([' ', '\t', '-', '"', '\'', '{']);
        let is_header = start.starts_with('[');
        for part in start.trim_start_matches('[').split(['.', ']']).take(if is_header { 8 } else { 1 }) {
            let end = part.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(part.len());
            if end > 0 {
                all.entry(part[..end].to_string()).or_default().push(number);
            }
        }
    }
    all
}
