//! Hardware and stack files, read and written: bases are followed, unknown keys and numbers out of range rejected.

use super::machine::Field;
use super::{FILES, Hardware, STACKS, Stack, names};
use crate::nearest::{hint, nearest, plain, same_numbers};
use crate::sanitize::sanitize;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use toml::{Table, Value};

/// Why a table cannot be read; the message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

impl Error {
    /// Makes an error with this message.
    pub fn new(what: String) -> Error {
        Error(what)
    }
}

/// Returns the text of a file, by the path in `base`.
pub type Files<'a> = &'a dyn Fn(&str) -> Result<String, Error>;

/// Returns a replacement for a number, by file or stack and key.
pub type Overrides<'a> = &'a dyn Fn(&str, &str) -> Option<f64>;

/// Returns the embedded hardware with this name.
///
/// # Errors
/// There is none.
pub fn hardware(name: &str) -> Result<Hardware, Error> {
    hardware_with(name, &|_, _| None)
}

/// Returns the embedded hardware with some numbers replaced: `overrides(table, field)` is asked for each, where a table is the hardware
/// or one that it is based on.
///
/// # Errors
/// No such hardware.
pub fn hardware_with(name: &str, overrides: Overrides<'_>) -> Result<Hardware, Error> {
    let name = names().find(|known| plain(known) == plain(name)).unwrap_or(name);
    let table = embedded(name).filter(|_| name != "gpu").ok_or_else(|| unknown(name))?;
    hardware_of(name, table.clone()?, &|name| Err(unknown(name)), overrides)
}

/// Reads the hardware file at `path` with this `text`. `files` reads other files that it names as base.
///
/// # Errors
/// Invalid TOML, an unknown key or base, a cycle of bases, or numbers that are missing or out of range.
pub fn hardware_file(path: &str, text: &str, files: Files<'_>) -> Result<Hardware, Error> {
    hardware_of(path, parse(path, text)?, files, &|_, _| None)
}

fn unknown(name: &str) -> Error {
    let known: Vec<&str> = names().collect();
    let like =
        |name| -> Vec<&str> { nearest(name, &known).into_iter().filter(|found| same_numbers(name, found)).collect() };
    let found = like(name);
    // h100-pcie, rtx-a100: find the part that names the chip
    let of_a_part = || name.split(|c: char| !c.is_alphanumeric()).map(like).find(|found| !found.is_empty());
    let found = if found.is_empty() { of_a_part().unwrap_or_default() } else { found };
    Error(format!(
        "no hardware is called '{}'{}; known: {}; or give a .toml file of your own that begins with base = \"h100-sxm\"",
        sanitize(name),
        hint(&found),
        known.join(", ")
    ))
}

type Parsed = Result<Table, Error>;

/// Returns the table of an embedded file, parsed once.
fn embedded(name: &str) -> Option<&'static Parsed> {
    static TABLES: LazyLock<Vec<Parsed>> =
        LazyLock::new(|| FILES.iter().map(|(name, text)| parse(name, text)).collect());
    TABLES.get(FILES.iter().position(|(known, _)| *known == name)?)
}

/// Follows bases from the first file; the first file with a number sets it.
fn hardware_of(name: &str, first: Table, files: Files<'_>, overrides: Overrides<'_>) -> Result<Hardware, Error> {
    let mut chain: Vec<String> = Vec::new();
    let mut numbers = BTreeMap::new();
    let mut next = Some((name.to_string(), first));
    while let Some((path, table)) = next.take() {
        if chain.contains(&path) {
            chain.push(path);
            let circle = chain.iter().map(|path| sanitize(path).to_string()).collect::<Vec<_>>().join(" → ");
            return Err(Error(format!(
                "expected bases to end, found a circle: {circle}; give one of them all numbers"
            )));
        }
        let base = match table.get("base") {
            None => None,
            Some(Value::String(base)) => Some(base.clone()),
            Some(other) => {
                return Err(Error(format!(
                    "{}: expected base to be a name in quotes, found {}",
                    sanitize(&path),
                    other.type_str()
                )));
            }
        };
        for (key, value) in table.iter().filter(|(key, _)| *key != "base") {
            let number = number(&path, key, value, Hardware::FIELDS)?;
            let number = overrides(&path, key).unwrap_or(number);
            numbers.entry(key.clone()).or_insert(number);
        }
        chain.push(path);
        next = match base {
            None => None,
            Some(base) => Some(match embedded(&base) {
                Some(table) => (base, table.clone()?),
                None if base.ends_with(".toml") => (base.clone(), parse(&base, &files(&base)?)?),
                None => return Err(unknown(&base)),
            }),
        };
    }
    Hardware::from_fields(name, |key| {
        let missing = || {
            Error(format!(
                "{}: expected a number for {key}, found none; give it, or a base that has it: base = \"h100-sxm\"",
                sanitize(name)
            ))
        };
        numbers.get(key).copied().ok_or_else(missing)
    })
}

/// Returns the training software with this name.
///
/// # Errors
/// There is none.
pub fn stack(name: &str) -> Result<Stack, Error> {
    stack_with(name, &|_, _| None)
}

/// Returns the training software with some numbers replaced: `overrides(table, field)` is asked for each, where a table is the software or
/// `common`.
///
/// # Errors
/// No such software.
pub fn stack_with(name: &str, overrides: Overrides<'_>) -> Result<Stack, Error> {
    static TABLES: LazyLock<Parsed> = LazyLock::new(|| parse("stacks", STACKS));
    let all = TABLES.as_ref().map_err(Error::clone)?;
    let table = |name: &str| all.get(name).and_then(Value::as_table);
    let (Some(common), Some(own)) = (table("common"), table(name)) else {
        let names = all.keys().filter(|name| *name != "common").cloned().collect::<Vec<_>>().join(", ");
        return Err(Error(format!("expected --stack to be one of {names}, found '{}'", sanitize(name))));
    };
    for key in own.keys() {
        number("stacks", key, &own[key], Stack::FIELDS)?;
    }
    Stack::from_fields(name, |key| {
        let (scope, value) = match own.get(key) {
            Some(value) => (name, Some(value)),
            None => ("common", common.get(key)),
        };
        let value = value.ok_or_else(|| Error(format!("stack {name}: expected a number for {key}, found none")))?;
        let number = number("stacks", key, value, Stack::FIELDS)?;
        Ok(overrides(scope, key).unwrap_or(number))
    })
}

fn parse(path: &str, text: &str) -> Result<Table, Error> {
    text.parse::<Table>().map_err(|error| {
        let place = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let why = error.message().replace('\n', " ");
        Error(format!(
            "{}: expected TOML, a key = number a line, found otherwise on line {place}: {why}",
            sanitize(path)
        ))
    })
}

/// Formats a number without many digits.
fn brief(number: f64) -> String {
    if number.abs() < 1e6 { number.to_string() } else { format!("{number:e}") }
}

fn number(path: &str, key: &str, value: &Value, fields: &[Field]) -> Result<f64, Error> {
    let path = sanitize(path);
    let Some(field) = fields.iter().find(|field| field.name == key) else {
        let known = fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
        return Err(Error(format!("{path}: expected keys among base, {known}, found '{}'", sanitize(key))));
    };
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        other => {
            return Err(Error(format!(
                "{path}: expected {key} to be a number ({}), found {}",
                field.what,
                other.type_str()
            )));
        }
    };
    let wrong = |expected: &str| {
        let found = brief(number);
        Err(Error(format!("{path}: expected {key} to be {expected} ({}), found {found}", field.what)))
    };
    match number {
        _ if number > field.most && number.is_finite() => wrong(&format!("at most {}", brief(field.most))),
        _ if field.is_count && !(number >= 1.0 && number.fract() == 0.0) => wrong("a whole number, at least 1"),
        _ if number.is_finite() && (number > 0.0 || field.may_be_zero && number == 0.0) => Ok(number),
        _ if field.may_be_zero => wrong("at least 0"),
        _ => wrong("above 0"),
    }
}

/// Returns a hardware file with these numbers on top of `base`; `head` are comment lines on their source.
#[cfg(feature = "training")]
pub fn toml(base: &str, head: &[String], numbers: &[(&'static str, f64)]) -> String {
    let mut text = String::new();
    head.iter().for_each(|line| text += &format!("# {}\n", line.replace(['\n', '\r'], " ")));
    text += &format!("base = \"{base}\"\n\n");
    for (name, number) in numbers {
        let what = Hardware::FIELDS.iter().find(|field| field.name == *name).map_or("", |field| field.what);
        text += &format!("{:<31} # {what}\n", format!("{name} = {}", digits(*number)));
    }
    text
}

/// Formats with four significant digits.
#[cfg(feature = "training")]
fn digits(number: f64) -> String {
    let whole = format!("{number:.3e}").parse::<f64>().unwrap_or(number);
    format!("{whole}")
}
