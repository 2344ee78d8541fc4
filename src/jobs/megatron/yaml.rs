//! YAML of Megatron's own tests, of the MoE model zoo and of Primus.

use super::assemble::job;
use super::dialect::Dialect;
use super::primus;
use super::texts::{line, setting};
use crate::error::JobError;
use crate::job::Job;
use crate::setting::Settings;
use crate::source::{SourceFile, Sources};
use crate::yaml::parse;
use serde_json::Value;
use std::collections::BTreeMap;

/// Reads a job from YAML of Megatron's tests (MODEL_ARGS), of the model zoo, or of Primus; `None` if it is something else.
///
/// # Errors
/// It is no YAML, a file that it extends is missing, or as [`super::read`].
pub fn read(sources: &Sources) -> Result<Option<Job>, JobError> {
    let Some(file) = sources.files.first() else { return Ok(None) };
    if !file.text.contains("MODEL_ARGS") && !file.text.contains("modules:") {
        return Ok(None);
    }
    let document = parse(&file.name, &file.text)?;
    if let Some(settings) = arguments(file, &document, &sources.environment) {
        let dialect = Dialect::of("pretrain_gpt.py", &settings);
        let program = document.get("MODEL_TYPE").and_then(Value::as_str).unwrap_or("pretrain_gpt.py");
        return job(dialect, program, &settings, sources.gpus).map(Some);
    }
    primus::read(&document, sources)
}

/// Returns the options that a script makes of the MODEL_ARGS of a YAML file, with its variables.
///
/// # Errors
/// It is no YAML.
pub fn options(file: &SourceFile, variables: &BTreeMap<String, String>) -> Result<Settings, JobError> {
    Ok(arguments(file, &parse(&file.name, &file.text)?, variables).unwrap_or_default())
}

fn arguments(file: &SourceFile, document: &Value, variables: &BTreeMap<String, String>) -> Option<Settings> {
    let place = |name: &str| format!("{}:{}", file.name, line(&file.text, name));
    let arguments = document.get("MODEL_ARGS")?.as_object()?;
    let all = arguments.iter().flat_map(|(name, value)| setting(name, value, variables, place(name)));
    Some(Settings(all.collect()))
}
