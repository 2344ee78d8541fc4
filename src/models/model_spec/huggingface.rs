//! Reader of Hugging Face's `config.json`, by the table of families.

pub use super::keys::ConfigError;

use super::configuration::Configuration;
use super::families::families;
use super::json;
use super::known_keys::{not_modelled, of_others, others};
use super::similar::similar;
use super::transformer::Config;
use pipesim_schedule::nearest::{hint, nearest};
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
    let found = Configuration::of(&keys)?;
    refuse(&found)?;
    let unknown = others(&found).map(|(key, _)| key.clone());
    Ok(Described { config: found.sizes()?, unknown: unknown.chain(found.beside.clone()).collect() })
}

/// Rejects a model with parts that are not modelled, or that its family does not have, and a family that is not read.
fn refuse(found: &Configuration) -> Result<(), ConfigError> {
    let (kind, parts) = (found.named(), not_modelled(found));
    let similar = |before: &str| similar(&found.keys).map_or(String::new(), |name| format!("{before}`model` {name}"));
    if !parts.is_empty() {
        let (parts, similar) = (parts.join(", "), similar(", such as "));
        return Err(ConfigError(format!(
            "expected parts that are modelled, found {parts}, which are not modelled, in a model of type '{kind}'; take a model without{similar}"
        )));
    }
    let Some(read) = found.reader() else {
        let known: Vec<&str> = families().types().collect();
        let told = match kind {
            "" => "expected 'model_type', found none; add it".to_string(),
            kind => format!(
                "expected one of the {} values of model_type that the documentation lists, found '{kind}'{}; write a shape file of its sizes",
                known.len(),
                hint(&nearest(kind, &known))
            ),
        };
        let similar = similar(", or take a similar model, such as ");
        return Err(ConfigError(format!("{told}{similar}")));
    };
    read.check_values()?;
    if let Some(key) = of_others(found) {
        return Err(ConfigError(format!(
            "expected a model of type '{kind}' without keys of other families, found {key}; correct model_type, or leave the key out"
        )));
    }
    match found.other_class() {
        Some(class) => Err(ConfigError(format!(
            "expected 'architectures' of a model of type '{kind}', found '{class}'; correct one of them"
        ))),
        None => Ok(()),
    }
}
