//! Megatron's options by name, as its parser takes them.

use crate::error::{JobError, Missing};
use crate::setting::{Setting, Settings};

/// Megatron's options by name.
pub(super) struct Options<'a>(pub &'a Settings);

/// Says that an option's value is not what Megatron's parser takes.
pub(super) fn wrong(setting: &Setting, expected: &str) -> JobError {
    let found = setting.values.join(" ");
    let why = format!("expected {expected} with --{}, found '{found}'; correct it", setting.name);
    JobError::File { place: setting.place.clone(), why }
}

/// Whether a value is Python's for none.
pub(super) fn is_none(value: &str) -> bool {
    matches!(value, "" | "None" | "null" | "none" | "~")
}

impl Options<'_> {
    /// Whether a flag is given.
    pub fn flag(&self, name: &str) -> bool {
        self.0.has(name)
    }

    /// Returns the value of an option; `None` if it is not given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.value(name).filter(|value| !is_none(value))
    }

    /// Returns all values of an option.
    pub fn list(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(|setting| setting.values.as_slice()).filter(|values| !values.is_empty())
    }

    /// Returns the whole number that an option has.
    ///
    /// # Errors
    /// Its value is none.
    pub fn number(&self, name: &str) -> Result<Option<u32>, JobError> {
        let Some(setting) = self.0.get(name) else { return Ok(None) };
        match setting.values.first().map(String::as_str) {
            Some(value) if is_none(value) => Ok(None),
            Some(value) => {
                let number = value.trim().replace('_', "").parse();
                number.map(Some).map_err(|_| wrong(setting, "a whole number"))
            }
            None => Err(wrong(setting, "a whole number")),
        }
    }

    /// Returns the number that an option has, or its default; 0 is refused.
    ///
    /// # Errors
    /// Its value is no number above 0.
    pub fn size(&self, name: &str, default: u32) -> Result<u32, JobError> {
        match self.number(name)? {
            Some(0) => {
                Err(self.0.get(name).map_or(JobError::Missing(Vec::new()), |one| wrong(one, "a number above 0")))
            }
            found => Ok(found.unwrap_or(default)),
        }
    }
}

/// Returns what the options take from elsewhere, among those that `is_read` says matter.
pub(super) fn unresolved(settings: &Settings, is_read: impl Fn(&Setting) -> bool) -> Vec<Missing> {
    let mut all = Vec::new();
    for setting in settings.0.iter().filter(|setting| !setting.unresolved.is_empty() && is_read(setting)) {
        if settings.get(&setting.name).is_some_and(|last| last != setting) {
            continue;
        }
        let used_by = format!("--{}", setting.name.replace('_', "-"));
        all.extend(setting.unresolved.iter().map(|name| missing(name, &used_by)));
    }
    all.sort();
    all.dedup();
    all
}

/// Returns a variable, or a positional parameter, that is set elsewhere.
pub(super) fn missing(name: &str, used_by: &str) -> Missing {
    let name = name.trim_start_matches('$').trim_matches(['{', '}']);
    match name.parse() {
        Ok(number) => Missing::Parameter { number, used_by: used_by.to_string() },
        Err(_) => Missing::Variable { name: name.to_string(), used_by: used_by.to_string() },
    }
}
