//! Experiments of Primus: a model by name, with what the experiment changes.

use super::assemble::job;
use super::dialect::Dialect;
use super::names;
use super::texts::{expanded, line, variables};
use crate::error::{JobError, Missing};
use crate::job::Job;
use crate::setting::{Setting, Settings};
use crate::source::{SourceFile, Sources};
use crate::yaml::parse;
use serde_json::{Map, Value};

/// Folder of its models in a checkout of Primus.
const MODELS: &str = "primus/configs/models/megatron";
/// Deepest chain of files that extend each other.
const DEEPEST: usize = 16;

/// Reads an experiment of Primus; `None` if it is something else.
///
/// # Errors
/// A file that it extends is missing, or as [`super::read`].
pub(super) fn read(document: &Value, sources: &Sources) -> Result<Option<Job>, JobError> {
    let trainers = ["pre_trainer", "sft_trainer", "post_trainer"];
    let modules = document.get("modules");
    let Some(trainer) = modules.and_then(|modules| trainers.iter().find_map(|name| modules.get(name))) else {
        return Ok(None);
    };
    if trainer.get("framework").and_then(Value::as_str).is_some_and(|name| name != "megatron") {
        return Ok(None);
    }
    let mut missing = Vec::new();
    let mut text = |value: &str, used_by: &str| {
        let mut unresolved = Vec::new();
        let text = expanded(value, &sources.environment, &mut unresolved);
        missing.extend(variables(&unresolved, used_by));
        text
    };
    let mut keys = Map::new();
    let model = trainer.get("model").and_then(Value::as_str).map(|model| text(model, "model"));
    if !missing.is_empty() {
        return Err(JobError::Missing(missing));
    }
    if let Some(model) = &model {
        add(&mut keys, model, sources, DEEPEST)?;
    }
    let overrides = trainer.get("overrides").and_then(Value::as_object).cloned().unwrap_or_default();
    keys.extend(overrides);
    let settings = options(&keys, sources);
    let read = job(Dialect::Primus, "pretrain_gpt.py", &settings, sources.gpus)?;
    Ok(Some(read))
}

/// Adds the keys of a model's file after those of the files that it extends.
fn add(keys: &mut Map<String, Value>, name: &str, sources: &Sources, deepest: usize) -> Result<(), JobError> {
    let path = if name.contains('/') { name.to_string() } else { format!("{MODELS}/{name}") };
    let Some(file) = sources.files.iter().skip(1).find(|file| is_named(file, name)) else {
        return Err(JobError::Missing(vec![Missing::File { path }]));
    };
    let Value::Object(own) = parse(&file.name, &file.text)? else { return Ok(()) };
    let bases = match own.get("extends").or(own.get("bases")) {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(name)) => vec![name.as_str()],
        _ => Vec::new(),
    };
    for base in bases {
        let left = deepest.checked_sub(1).ok_or_else(|| JobError::File {
            place: file.name.clone(),
            why: format!("expected at most {DEEPEST} files that extend each other, found more; correct `extends`"),
        })?;
        add(keys, base, sources, left)?;
    }
    keys.extend(own.into_iter().filter(|(key, _)| key != "extends" && key != "bases"));
    Ok(())
}

fn is_named(file: &SourceFile, name: &str) -> bool {
    let last = |path: &str| path.rsplit('/').next().unwrap_or("").to_string();
    last(&file.name) == last(name)
}

/// Returns the keys as options, after those of Primus's own defaults.
fn options(keys: &Map<String, Value>, sources: &Sources) -> Settings {
    let first = sources.files.first();
    let is_silent = |setting: &Setting| !keys.contains_key(&setting.name.replace('-', "_"));
    let mut all = Settings(names::defaults("primus").into_iter().filter(is_silent).collect());
    for (name, value) in keys {
        let used = first.filter(|file| file.text.contains(name)).or(first);
        let place = used.map(|file| format!("{}:{}", file.name, line(&file.text, name))).unwrap_or_default();
        all.0.extend(option(name, value, sources, place));
    }
    all
}

fn option(name: &str, value: &Value, sources: &Sources, place: String) -> Option<Setting> {
    let mut unresolved = Vec::new();
    let text = match value {
        Value::Null => "None".to_string(),
        Value::Bool(yes) => if *yes { "True" } else { "False" }.to_string(),
        Value::String(text) => expanded(text, &sources.environment, &mut unresolved),
        Value::Array(list) => {
            let texts = list.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_string));
            texts.collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    };
    let values = text.split_whitespace().map(str::to_string).collect();
    names::of_value(&Setting { name: name.to_string(), values, place, unresolved })
}
