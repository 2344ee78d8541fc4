//! Reader of Hugging Face's `config.json`: GPT-2, Llama and its relatives, and families of mixtures of experts.

pub use super::keys::ConfigError;

use super::configuration::{Configuration, TYPES};
use super::families::FAMILIES;
use super::json;
use super::known_keys::{not_modelled, of_others, others};
use super::similar::similar;
use super::transformer::Config;
use serde_json::{Map, Value};

/// A model, with the unknown keys of its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// The model.
    pub config: Config,
    /// Unknown keys, which are assumed not to change the model.
    pub unknown: Vec<String>,
}

/// Reads the keys of Hugging Face's `config.json`.
///
/// # Errors
/// The text is not JSON, or has a key twice with different values.
pub fn keys(text: &str) -> Result<Map<String, Value>, ConfigError> {
    json::object(text, "Hugging Face's config.json")
}

/// Reads the text of Hugging Face's `config.json`.
///
/// # Errors
/// The text is not JSON, the `model_type` is unknown, a key describes an unsupported feature or contradicts another one, or a size
/// is missing or out of range.
pub fn read(text: &str) -> Result<Described, ConfigError> {
    let keys = keys(text)?;
    let found = Configuration::of(&keys);
    refuse(&found)?;
    let unknown = others(&found.keys, |key| found.reads(key)).map(|(key, _)| key.clone());
    Ok(Described { config: found.sizes()?, unknown: unknown.chain(found.beside.clone()).collect() })
}

/// Rejects a model with parts that are not modelled, or that its family does not have, and a family that is not read.
fn refuse(found: &Configuration) -> Result<(), ConfigError> {
    let (keys, kind, read) = (&*found.keys, found.named, |key: &str| found.reads(key));
    let parts = not_modelled(keys, read);
    let similar = |before: &str| similar(keys).map_or(String::new(), |name| format!("{before}`model` {name}"));
    if !parts.is_empty() {
        let (parts, similar) = (parts.join(", "), similar(", such as "));
        return Err(ConfigError(format!(
            "expected parts that are modelled, found {parts}, which are not modelled, in a model of type '{kind}'; take a model without{similar}"
        )));
    }
    if !found.is_known() {
        let types: Vec<&str> =
            TYPES.into_iter().chain(FAMILIES.iter().flat_map(|family| family.kinds.iter().copied())).collect();
        let (types, similar) = (types.join(", "), similar(", or take a similar model, such as "));
        return Err(ConfigError(format!(
            "expected model_type to be one of {types}, found '{kind}'; write a shape file of its sizes{similar}"
        )));
    }
    if let Some((what, key)) = of_others(keys, read) {
        return Err(ConfigError(format!(
            "expected a model of type '{kind}' without {what}, found {key}; correct model_type, or leave the key out"
        )));
    }
    match found.other_class() {
        Some(class) => Err(ConfigError(format!(
            "expected 'architectures' of a model of type '{kind}', found '{class}'; correct one of them"
        ))),
        None => Ok(()),
    }
}
