//! Reading timelines from files of unknown origin, which may be truncated or edited.

use super::{SCHEMA_VERSION, Timeline};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use std::collections::BTreeMap;

/// Why a text is not a timeline, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TimelineError(pub(super) String);

/// A file of several timelines.
#[derive(Deserialize)]
struct TimelineList {
    #[serde(default)]
    schema_version: Option<Value>,
    timelines: Vec<Timeline>,
}

impl Timeline {
    /// Reads a timeline.
    ///
    /// # Errors
    /// Not JSON, another schema or version, or spans that contradict the header. The text says where, and what to do.
    pub fn from_json(text: &str) -> Result<Timeline, TimelineError> {
        let timeline: Timeline = parse(text)?;
        timeline.validate("")?;
        Ok(timeline)
    }

    /// Checks that header and spans are consistent, as in a file.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self) -> Result<(), TimelineError> {
        self.validate("")
    }

    /// Reads a file of timelines: one, or a list as [`Timeline::list_to_json`] writes it.
    ///
    /// # Errors
    /// As [`Timeline::from_json`].
    pub fn list_from_json(text: &str) -> Result<Vec<Timeline>, TimelineError> {
        let outer = serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text);
        let outer = outer.map_err(|e| not_an_object(text, &e))?;
        if !outer.contains_key("timelines") {
            return Ok(vec![Timeline::from_json(text)?]);
        }
        let TimelineList { schema_version, timelines } = parse(text)?;
        check_version("", schema_version.as_ref())?;
        if timelines.is_empty() {
            let text = "expected timelines, found an empty list of them; write one with -o FILE.json";
            return Err(TimelineError(text.to_string()));
        }
        for (number, timeline) in timelines.iter().enumerate() {
            timeline.validate(&format!("timelines[{number}]"))?;
        }
        Ok(timelines)
    }
}

/// Parses `text`; only if that fails, parses it again to find out where it is wrong.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, TimelineError> {
    serde_json::from_str(text).map_err(|error| match serde_json::from_str::<Value>(text) {
        Err(error) => not_an_object(text, &error),
        Ok(value) => not_a_timeline::<T>(value, &error),
    })
}

/// Says what is wrong with a text that is not JSON, or not an object.
fn not_an_object(text: &str, error: &serde_json::Error) -> TimelineError {
    let place = format!("line {}, column {}", error.line(), error.column());
    TimelineError(if text.trim().is_empty() {
        "expected a pipesim timeline, found an empty file; write one with -o FILE.json".to_string()
    } else if error.is_eof() {
        format!("the file is cut off: its JSON is not closed at its end, {place}; copy or write it again")
    } else if error.is_syntax() {
        format!("expected JSON, found something else ({error}); copy the file or write it again with -o FILE.json")
    } else {
        let found = text.trim_start().chars().next().map_or("nothing", |first| match first {
            '[' => "a list",
            '"' => "a text",
            _ => "a single value",
        });
        format!(
            "expected a pipesim timeline, an object with schema_version and spans, found {found}; write one with -o FILE.json"
        )
    })
}

/// Says what is wrong with an object that is not a timeline or a list of them. Versions come first: other versions have other
/// fields.
fn not_a_timeline<T: DeserializeOwned>(value: Value, error: &serde_json::Error) -> TimelineError {
    let list = value["timelines"].as_array().map(Vec::as_slice).unwrap_or_default();
    let inner = list.iter().enumerate().map(|(number, one)| (format!("timelines[{number}]"), one));
    for (place, one) in std::iter::once((String::new(), &value)).chain(inner) {
        if let Err(fault) = check_version(&place, one.get("schema_version")) {
            return fault;
        }
    }
    let fault = match serde_path_to_error::deserialize::<_, T>(value) {
        Ok(_) => error.to_string(), // a key that occurs twice
        Err(found) => {
            let (path, what) = (found.path().to_string(), found.inner().to_string());
            let found = what.strip_prefix("invalid type: ").or(what.strip_prefix("invalid value: "));
            match found.and_then(|found| found.rsplit_once(", expected ")) {
                Some((found, "u32" | "u64")) => format!("{path}: expected a whole number, found {found}"),
                Some((found, "f64")) => format!("{path}: expected a number, found {found}"),
                Some((found, expected)) => format!("{path}: expected {expected}, found {found}"),
                None => format!("{path}: {what}"),
            }
        }
    };
    TimelineError(format!("{fault}; correct it, or write the file again with -o FILE.json"))
}

pub(super) fn check_version(place: &str, found: Option<&Value>) -> Result<(), TimelineError> {
    let place = field(place, "schema_version");
    let found = match found {
        Some(Value::Number(found)) if found.as_u64() == Some(SCHEMA_VERSION.into()) => return Ok(()),
        Some(found) => {
            format!("{place}: expected schema_version {SCHEMA_VERSION}, which this program reads, found {found}")
        }
        None => format!("{place} is missing: expected schema_version {SCHEMA_VERSION}"),
    };
    Err(TimelineError(format!("{found}; write the file again with this program and -o FILE.json")))
}

/// Returns the path of a field of the object at `place`.
pub(super) fn field(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_string() } else { format!("{place}.{name}") }
}
