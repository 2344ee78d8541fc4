//! Reads properties of a model from a `config.json`, as its family's entry in the table says.

use super::families::{Family, Property};
use super::keys::{ConfigError, divides, is_set, number, optional, shown};
use serde_json::{Map, Value};

/// The keys of a file, and the family that names them.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub keys: &'a Map<String, Value>,
    pub family: &'a Family,
}

/// What a file says of a property.
enum Said<'a> {
    Value(&'a str, &'a Value),
    Null,
    Nothing,
}

impl<'a> Reader<'a> {
    fn property(&self, name: &str) -> Option<&'a Property> {
        self.family.properties.get(name)
    }

    /// Returns a property's first key.
    fn key(&self, name: &'a str) -> &'a str {
        self.property(name).and_then(|property| property.keys.first()).map_or(name, String::as_str)
    }

    /// Returns a value by its key, `OUTER.INNER` within an object.
    pub fn at(&self, key: &str) -> Option<&'a Value> {
        match key.split_once('.') {
            Some((outer, inner)) => self.keys.get(outer)?.get(inner),
            None => self.keys.get(key),
        }
    }

    /// Returns what the file says of a property.
    ///
    /// # Errors
    /// Two of its keys differ.
    fn said(&self, property: &'a Property) -> Result<Said<'a>, ConfigError> {
        let all: Vec<(&str, &Value)> =
            property.keys.iter().filter_map(|key| Some((key.as_str(), self.at(key)?))).collect();
        let set: Vec<&(&str, &Value)> = all.iter().filter(|(_, value)| !value.is_null()).collect();
        match set[..] {
            [] if all.is_empty() => Ok(Said::Nothing),
            [] => Ok(Said::Null),
            [&(key, value), ref others @ ..] => match others.iter().find(|(_, other)| *other != value) {
                None => Ok(Said::Value(key, value)),
                Some((other, found)) => Err(ConfigError(format!(
                    "expected '{key}' and '{other}' to be equal, found {value} and {found}; leave one of them out"
                ))),
            },
        }
    }

    /// Returns what the file says of a property, with its key.
    pub fn given(&self, name: &str) -> Result<Option<(&'a str, &'a Value)>, ConfigError> {
        match self.property(name).map_or(Ok(Said::Nothing), |property| self.said(property))? {
            Said::Value(key, value) => Ok(Some((key, value))),
            Said::Null | Said::Nothing => Ok(None),
        }
    }

    /// Returns what the file says of a property, or its value if the file does not.
    fn value(&self, name: &str) -> Result<Option<(&'a str, Value)>, ConfigError> {
        let Some(property) = self.property(name) else { return Ok(None) };
        let usual = match self.said(property)? {
            Said::Value(_, Value::String(word)) if word == "auto" => &property.default,
            Said::Value(key, value) => return Ok(Some((key, alike(value).clone()))),
            Said::Null => &property.null,
            Said::Nothing => &property.default,
        };
        let value = match usual {
            Some(toml::Value::String(text)) if text == "none" => None,
            Some(toml::Value::String(text)) => match self.formula(text)? {
                Some(size) => Some(Value::from(size)),
                None => Some(Value::from(text.as_str())),
            },
            Some(toml::Value::Integer(number)) => Some(Value::from(*number)),
            Some(toml::Value::Float(number)) => Some(Value::from(*number)),
            Some(toml::Value::Boolean(yes)) => Some(Value::from(*yes)),
            _ => None,
        };
        Ok(value.map(|value| (property.keys.first().map_or("", String::as_str), value)))
    }

    /// Calculates `SIZE`, `A / B`, `A * B` or `A + B` of other sizes or numbers; `None` for other words.
    fn formula(&self, text: &str) -> Result<Option<usize>, ConfigError> {
        let words: Vec<&str> = text.split(' ').collect();
        let size = |word: &'a str| match word.parse() {
            Ok(number) => Ok(number),
            Err(_) => self.needed(word),
        };
        let own = |word: &str| self.family.properties.get_key_value(word).map(|(name, _)| name.as_str());
        match words[..] {
            [one] => own(one).map(size).transpose(),
            [one, by @ ("/" | "*" | "+"), other] => {
                let [first, second] = [one, other].map(|word| own(word).unwrap_or_default());
                let first = if first.is_empty() { one.parse().unwrap_or(0) } else { size(first)? };
                let second = size(second)?;
                match by {
                    "/" => {
                        divides(
                            self.key(own(one).unwrap_or_default()),
                            first,
                            self.key(own(other).unwrap_or_default()),
                            second,
                        )?;
                        Ok(Some(first / second))
                    }
                    "*" => Ok(Some(first.saturating_mul(second))),
                    _ => Ok(Some(first.saturating_add(second))),
                }
            }
            _ => Ok(None),
        }
    }

    /// Reads a whole number; `None` if the model has none.
    pub fn size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        let Some((key, value)) = self.value(name)? else { return Ok(None) };
        optional(&Map::from_iter([(key.to_string(), value)]), key)
    }

    /// Reads a whole number that the model must have.
    pub fn needed(&self, name: &'a str) -> Result<usize, ConfigError> {
        self.size(name)?.ok_or_else(|| self.missing(name))
    }

    pub fn missing(&self, name: &'a str) -> ConfigError {
        ConfigError(format!("expected '{}', found none; add it", self.key(name)))
    }

    /// Reads a number above 0.
    pub fn number(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        let Some((key, value)) = self.value(name)? else { return Ok(None) };
        number(&Map::from_iter([(key.to_string(), value)]), key)
    }

    /// Reads whether a model has a property.
    pub fn flag(&self, name: &str) -> Result<bool, ConfigError> {
        match self.value(name)? {
            None => Ok(false),
            Some((_, Value::Bool(yes))) => Ok(yes),
            Some((key, found)) => {
                Err(ConfigError(format!("expected '{key}' to be true or false, found {found}; correct it")))
            }
        }
    }

    /// Reads a word; a flag is "true" or "false".
    pub fn word(&self, name: &str) -> Result<String, ConfigError> {
        Ok(self.value(name)?.map_or(String::new(), |(_, value)| match value {
            Value::String(text) => text,
            other => other.to_string(),
        }))
    }

    /// Reads a list with an entry per layer.
    ///
    /// # Errors
    /// It is no list, or has another length.
    pub fn list(&self, name: &str, layers: usize) -> Result<Option<(&'a str, &'a [Value])>, ConfigError> {
        match self.given(name)?.filter(|(_, value)| is_set(value)) {
            None => Ok(None),
            Some((key, Value::Array(list))) if list.len() == layers => Ok(Some((key, list))),
            Some((key, Value::Array(list))) => Err(ConfigError(format!(
                "expected '{key}' to have one entry per layer, {layers}, found {}; correct it or the number of layers",
                list.len()
            ))),
            Some((key, found)) => Err(ConfigError(format!("expected '{key}' to be a list, found {found}; correct it"))),
        }
    }

    /// Whether the family reads this key.
    pub fn reads(&self, key: &str) -> bool {
        let is_own = |name: &String| name == key || name.split('.').next() == Some(key);
        self.family.properties.values().any(|property| property.keys.iter().any(is_own))
    }

    /// Rejects keys with values that the family does not have, and files without a key that it needs.
    pub fn check_values(&self) -> Result<(), ConfigError> {
        if let Some(key) = self.family.required.iter().find(|key| !self.keys.contains_key(*key)) {
            return Err(ConfigError(format!("expected '{key}', found none; add it")));
        }
        for (key, expected) in &self.family.values {
            let Some(found) = self.keys.get(key).filter(|found| !found.is_null()) else { continue };
            let (is_equal, expected) = match expected {
                toml::Value::Boolean(yes) => (is_set(found) == *yes, yes.to_string()),
                toml::Value::String(text) => match self.formula(text)? {
                    Some(size) => (*alike(found) == size, size.to_string()),
                    None => (found == text.as_str(), text.clone()),
                },
                other => {
                    let number = other.as_integer().unwrap_or(0);
                    (*alike(found) == number, number.to_string())
                }
            };
            if !is_equal {
                let found = shown(found);
                return Err(ConfigError(format!("expected '{key}' {expected}, found {found}: not modelled")));
            }
        }
        Ok(())
    }
}

/// Returns the entry of a list whose entries are all equal.
fn alike(value: &Value) -> &Value {
    match value.as_array().map(Vec::as_slice) {
        Some([first, others @ ..]) if others.iter().all(|other| other == first) => first,
        _ => value,
    }
}
