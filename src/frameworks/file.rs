//! Files of `frameworks/`: a version of a framework, alone or as changes to another file.

use super::error::Error;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Name and text of each embedded file.
pub(crate) const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/frameworks.rs"));

/// How options are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    /// `--name value`, of a command line.
    #[default]
    Arguments,
    /// `name=value`, Hydra's overrides.
    Overrides,
    /// Tables and keys.
    Toml,
    /// Objects, nested by dots in names.
    Json,
    /// The same, indented.
    Yaml,
}

/// A file, bases followed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FrameworkFile {
    pub framework: String,
    pub title: String,
    pub version: String,
    /// Date of the version, as in 2026-08-22.
    pub released: String,
    /// Repository and commit of the sources.
    pub source: String,
    #[serde(default)]
    pub form: Form,
    /// Name for `plan --to`; `None`: no options are known.
    pub target: Option<String>,
    /// pipesim's delivery of its pipeline.
    pub delivery: Option<String>,
    /// Format of schedule files that it loads.
    pub csv: Option<String>,
    /// The stacks that run it.
    #[serde(default)]
    pub stacks: Vec<String>,
    /// Layers of each stage if nothing else is asked for, where the framework splits them in its own way.
    pub split: Option<String>,
    /// Its name of each schedule.
    #[serde(default)]
    pub schedules: BTreeMap<String, String>,
    /// What has a schedule that it lacks.
    #[serde(default)]
    pub needs: BTreeMap<String, String>,
    /// Defaults that matter.
    #[serde(default)]
    pub defaults: BTreeMap<String, String>,
    #[serde(default)]
    pub rules: Vec<RuleEntry>,
    #[serde(default)]
    pub options: Vec<OptionEntry>,
    #[serde(default)]
    pub environment: Vec<EnvironmentEntry>,
    #[serde(default)]
    pub notes: Vec<NoteEntry>,
}

fn always() -> String {
    "True".to_string()
}

/// Why a layout is refused or differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectionKind {
    /// An error before or in the first step.
    Refused,
    /// The framework cannot express it.
    Missing,
    /// It runs, but something else than what was asked for.
    Silent,
    /// It runs only with an option that users must add.
    Needs,
}

/// What must hold.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleEntry {
    pub name: String,
    #[serde(default = "always")]
    pub when: String,
    pub expect: String,
    pub error: String,
    pub kind: ObjectionKind,
    #[serde(default)]
    pub remedy: String,
    pub source: String,
}

/// An option to print.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OptionEntry {
    pub name: String,
    #[serde(default = "always")]
    pub when: String,
    pub value: Option<String>,
    #[serde(default, rename = "source")]
    pub _source: String,
}

/// A variable of the environment that must be set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EnvironmentEntry {
    pub name: String,
    #[serde(default = "always")]
    pub when: String,
    pub value: String,
    #[serde(default, rename = "source")]
    pub _source: String,
}

/// What options cannot express.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoteEntry {
    /// By which other files replace or remove it.
    #[serde(default, rename = "name")]
    pub _name: String,
    #[serde(default = "always")]
    pub when: String,
    pub text: String,
    #[serde(default, rename = "source")]
    pub _source: String,
}

impl FrameworkFile {
    /// Reads a file with its bases, which `others` returns by name.
    pub fn read(name: &str, text: &str, others: &dyn Fn(&str) -> Option<String>) -> Result<FrameworkFile, Error> {
        let wrong = |why: String| Error::File { file: name.to_string(), why };
        let table = merged(name, text, others, 8)?;
        let why = |error: toml::de::Error| wrong(error.message().replace('\n', " "));
        let file: FrameworkFile = table.try_into().map_err(why)?;
        let mut names: Vec<&str> = file.rules.iter().map(|rule| rule.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(wrong(format!("two rules are called {}", pair[0]))),
            None => Ok(file),
        }
    }
}

/// What lists of frameworks need of a file: its first lines, so that the rest is read only if it is needed.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Head {
    pub framework: String,
    pub version: String,
    pub released: String,
    pub target: Option<String>,
}

impl Head {
    /// Reads the keys before the first table, those of bases included.
    pub fn read(name: &str, text: &str, others: &dyn Fn(&str) -> Option<String>) -> Result<Head, Error> {
        let wrong =
            |error: toml::de::Error| Error::File { file: name.to_string(), why: error.message().replace('\n', " ") };
        let head = |text: &str| {
            text.lines().take_while(|line| !line.starts_with('[')).map(|line| format!("{line}\n")).collect::<String>()
        };
        let mut keys: Table = head(text).parse().map_err(wrong)?;
        let mut bases = 0;
        while let Some(base) =
            keys.remove("base").as_ref().and_then(Value::as_str).and_then(others).filter(|_| bases < 8)
        {
            let below: Table = head(&base).parse().map_err(wrong)?;
            below.into_iter().for_each(|(key, value)| {
                keys.entry(key).or_insert(value);
            });
            bases += 1;
        }
        keys.try_into().map_err(wrong)
    }
}

/// Returns a file's table on top of its base: tables are joined, entries of lists replace those of the same name where these are.
fn merged(name: &str, text: &str, others: &dyn Fn(&str) -> Option<String>, depth: usize) -> Result<Table, Error> {
    let wrong = |why: String| Error::File { file: name.to_string(), why };
    let mut own: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.to_string()))?;
    let removed = own.remove("remove");
    let Some(base) = own.remove("base") else { return Ok(own) };
    let base = base.as_str().unwrap_or_default().to_string();
    let below = others(&base).filter(|_| depth > 0).ok_or_else(|| wrong(format!("no file is called {base}")))?;
    let mut table = merged(&base, &below, others, depth - 1)?;
    let removed: Vec<String> = removed
        .map(Value::try_into)
        .transpose()
        .map_err(|_| wrong("remove is a list of names".to_string()))?
        .unwrap_or_default();
    let mut unused = removed.clone();
    for list in table.iter_mut().filter_map(|(_, value)| value.as_array_mut()) {
        list.retain(|entry| {
            let is_removed = entry_name(entry).is_some_and(|name| removed.iter().any(|gone| gone == name));
            unused.retain(|gone| entry_name(entry) != Some(gone.as_str()));
            !is_removed
        });
    }
    if let Some(name) = unused.first() {
        return Err(wrong(format!("{base} has no {name} to remove")));
    }
    for (key, value) in own {
        match (table.get_mut(&key), value) {
            (Some(Value::Array(list)), Value::Array(entries)) => entries.into_iter().for_each(|entry| put(list, entry)),
            (Some(Value::Table(known)), Value::Table(entries)) => known.extend(entries),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
    Ok(table)
}

fn entry_name(entry: &Value) -> Option<&str> {
    entry.get("name")?.as_str()
}

/// Replaces the entries of the same name, or adds one at the end.
fn put(list: &mut Vec<Value>, entry: Value) {
    let same = |known: &Value| entry_name(&entry).is_some() && entry_name(known) == entry_name(&entry);
    match list.iter().position(same) {
        Some(place) => list[place] = entry,
        None => list.push(entry),
    }
}
