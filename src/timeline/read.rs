//! Reading timelines from files that anybody may have written, cut off or edited.

use super::Timeline;
use super::fault::{self, Shape};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::BTreeMap;

/// Why a text is no timeline; what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TimelineError(pub(super) String);

/// What a file of timelines is at its outermost.
#[derive(Deserialize)]
struct List {
    timelines: Vec<Timeline>,
}

impl Timeline {
    /// Reads a timeline.
    ///
    /// # Errors
    /// Not JSON, another schema, another version, or spans that contradict the header; the text says where and what to do.
    pub fn from_json(text: &str) -> Result<Timeline, TimelineError> {
        let timeline: Timeline = serde_json::from_str(text).map_err(|e| not_so(text, "", Shape::timeline, &e))?;
        timeline.validate("")?;
        Ok(timeline)
    }

    /// Reads a file of timelines: one, or a list as [`Timeline::list_to_json`] writes it.
    ///
    /// # Errors
    /// As [`Timeline::from_json`].
    pub fn list_from_json(text: &str) -> Result<Vec<Timeline>, TimelineError> {
        let outer = serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text);
        let outer = outer.map_err(|e| no_object(text, &e))?;
        if !outer.contains_key("timelines") {
            if let Some(what) = MISTAKEN.iter().find(|(key, _)| outer.contains_key(*key)) {
                return Err(TimelineError(format!("expected timelines, found {}", what.1)));
            }
            return Ok(vec![Timeline::from_json(text)?]);
        }
        check_version(text)?;
        let list = serde_json::from_str::<List>(text);
        let List { timelines } = list.map_err(|e| not_so(text, "timelines", Shape::list, &e))?;
        if timelines.is_empty() {
            return Err(TimelineError(
                "expected timelines, found an empty list of them; write one with -o FILE.json".into(),
            ));
        }
        for (number, timeline) in timelines.iter().enumerate() {
            timeline.validate(&format!("timelines[{number}]"))?;
        }
        Ok(timelines)
    }
}

/// Other files that this program writes: a key that only they have, and what they are.
const MISTAKEN: [(&str, &str); 5] = [
    ("predictions", "the figures that predict prints, which have no spans; write timelines with predict -o FILE.json"),
    ("runs", "the figures that run prints, which have no spans; write timelines with run -o FILE.json"),
    ("explanations", "what explain prints, which has no spans; write timelines with explain -o FILE.json"),
    ("schedules", "a report's figures, which have no spans; give the folder that it is in"),
    ("parts", "measured costs; give them to predict --profile, and compare what that writes with -o FILE.json"),
];

/// The version of the list itself.
fn check_version(text: &str) -> Result<(), TimelineError> {
    #[derive(Deserialize)]
    struct Version {
        #[serde(default)]
        schema_version: Option<Value>,
    }
    let found = serde_json::from_str::<Version>(text).ok().and_then(|version| version.schema_version);
    fault::version("", found.as_ref()).map_or(Ok(()), |fault| Err(TimelineError(fault)))
}

/// A text that is no JSON, or no object of it.
fn no_object(text: &str, error: &serde_json::Error) -> TimelineError {
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

/// What is wrong with a text that is JSON, but no timeline: the first field that is not as the schema says.
fn not_so(
    text: &str,
    place: &str,
    shape: fn(&str, &Value) -> Option<String>,
    error: &serde_json::Error,
) -> TimelineError {
    match serde_json::from_str::<Value>(text) {
        Err(error) => no_object(text, &error),
        Ok(value) => {
            let value = if place.is_empty() { &value } else { &value[place] };
            let fault = shape(place, value).unwrap_or_else(|| error.to_string());
            TimelineError(format!("{fault}; correct it, or write the file again with -o FILE.json"))
        }
    }
}
