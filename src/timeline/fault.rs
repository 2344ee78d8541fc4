//! Which field of a damaged timeline is not as the schema says, and where it stands.

use super::{MAX_NS, MAX_UNIT_NS, SCHEMA_VERSION};
use serde_json::{Map, Value};

/// What a field holds.
enum Holds {
    /// A whole number up to this.
    Whole(u64),
    Number,
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Texts by key.
    Texts,
    /// The spans.
    Spans,
}

/// A field: its name, whether it must be there, what it holds.
type Field = (&'static str, bool, Holds);

const SIZE: u64 = u32::MAX as u64;

const HEADER: &[Field] = &[
    ("schema_version", true, Holds::Whole(SIZE)),
    ("source", true, Holds::OneOf(&["predicted", "measured"])),
    ("schedule", true, Holds::Text),
    ("devices", true, Holds::Whole(SIZE)),
    ("chunks", true, Holds::Whole(SIZE)),
    ("microbatches", true, Holds::Whole(SIZE)),
    ("time_unit", true, Holds::Text),
    ("unit_ns", true, Holds::Whole(MAX_UNIT_NS)),
    ("keep", true, Holds::Number),
    ("clock_uncertainty_ns", true, Holds::Whole(u64::MAX)),
    ("lower_bound_ns", false, Holds::Whole(u64::MAX)),
    ("lower_bound_if_split_ns", false, Holds::Whole(u64::MAX)),
    ("typical_makespan_ns", false, Holds::Whole(u64::MAX)),
    ("provenance", false, Holds::Texts),
    ("spans", true, Holds::Spans),
];

const SPAN: &[Field] = &[
    ("device", true, Holds::Whole(SIZE)),
    ("queue", true, Holds::OneOf(&["compute", "send", "receive"])),
    ("op", true, Holds::Text),
    ("partner", false, Holds::Text),
    ("peer", false, Holds::Whole(SIZE)),
    ("phase", false, Holds::Text),
    ("start_ns", true, Holds::Whole(MAX_NS)),
    ("end_ns", true, Holds::Whole(MAX_NS)),
];

/// What is looked at.
pub(super) struct Shape;

impl Shape {
    /// A list of timelines.
    pub(super) fn list(place: &str, value: &Value) -> Option<String> {
        let Value::Array(timelines) = value else { return Some(expected(place, "a list of timelines", value)) };
        timelines.iter().enumerate().find_map(|(number, one)| Shape::timeline(&format!("{place}[{number}]"), one))
    }

    /// One timeline. Its version comes first: one of another version has other fields.
    pub(super) fn timeline(place: &str, value: &Value) -> Option<String> {
        let Value::Object(fields) = value else { return Some(expected(place, "a timeline", value)) };
        version(place, fields.get("schema_version")).or_else(|| object(place, "a timeline", fields, HEADER))
    }
}

/// The version as it is named in errors.
fn supported() -> String {
    format!("schema_version {SCHEMA_VERSION}")
}

/// A version that is not this program's.
pub(super) fn version(place: &str, found: Option<&Value>) -> Option<String> {
    let place = at(place, "schema_version");
    match found {
        Some(Value::Number(found)) if found.as_u64() == Some(SCHEMA_VERSION.into()) => None,
        Some(found @ Value::Number(_)) => Some(format!(
            "{place}: expected {}, which is all that this program reads, found {found}; write the file again with this program",
            supported()
        )),
        Some(found) => Some(expected(&place, "a whole number", found)),
        None => Some(format!("{place} is missing: expected {}; write the file again with -o FILE.json", supported())),
    }
}

fn object(place: &str, what: &str, found: &Map<String, Value>, fields: &[Field]) -> Option<String> {
    let missing = fields.iter().find(|(name, required, _)| *required && !found.contains_key(*name));
    if let Some((name, ..)) = missing {
        return Some(format!("{} is missing: {what} has {}", at(place, name), names(fields, true)));
    }
    found.iter().find_map(|(name, value)| {
        let place = at(place, name);
        match fields.iter().find(|(known, ..)| known == name) {
            None => Some(format!("{place} is unknown: {what} has {}", names(fields, false))),
            Some((_, false, _)) if value.is_null() => None,
            Some((.., holds)) => holds.fault(&place, value),
        }
    })
}

fn names(fields: &[Field], required: bool) -> String {
    let names: Vec<&str> = fields.iter().filter(|field| field.1 || !required).map(|field| field.0).collect();
    names.join(", ")
}

impl Holds {
    fn fault(&self, place: &str, value: &Value) -> Option<String> {
        let expected = |what: &str| Some(expected(place, what, value));
        match self {
            Holds::Whole(most) if value.as_u64().is_some_and(|number| number <= *most) => None,
            Holds::Whole(u64::MAX) => expected("a whole number, not negative"),
            Holds::Whole(most) => expected(&format!("a whole number from 0 to {most}")),
            Holds::Number if value.is_number() => None,
            Holds::Number => expected("a number"),
            Holds::Text if value.is_string() => None,
            Holds::Text => expected("a text"),
            Holds::OneOf(names) if value.as_str().is_some_and(|text| names.contains(&text)) => None,
            Holds::OneOf(names) => expected(&format!("one of {}", names.join(", "))),
            Holds::Texts => match value {
                Value::Object(texts) => texts.iter().find_map(|(name, text)| Holds::Text.fault(&at(place, name), text)),
                _ => expected("texts by name"),
            },
            Holds::Spans => match value {
                Value::Array(spans) => spans.iter().enumerate().find_map(|(number, span)| {
                    let place = format!("{place}[{number}]");
                    match span {
                        Value::Object(fields) => object(&place, "a span", fields, SPAN),
                        _ => Some(self::expected(&place, "a span", span)),
                    }
                }),
                _ => expected("a list of spans"),
            },
        }
    }
}

/// A field of what stands at `place`.
pub(super) fn at(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_string() } else { format!("{place}.{name}") }
}

fn expected(place: &str, what: &str, found: &Value) -> String {
    const LONGEST: usize = 60;
    let place = if place.is_empty() { "the file" } else { place };
    let mut text = match found {
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "an object".to_string(),
        value => value.to_string(),
    };
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text += "...";
    }
    format!("{place}: expected {what}, found {text}")
}
