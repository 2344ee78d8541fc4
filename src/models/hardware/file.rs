//! Hardware and stack files, read and written: bases are followed, unknown keys and numbers out of range rejected.

use super::machine::Field;
use super::products::product;
use super::{FILES, Hardware, STACK_FILES, Stack};
use pipesim_schedule::nearest::{hint, nearest, plain, same_chip, same_numbers};
use pipesim_schedule::sanitize::sanitize;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use toml::{Table, Value};

/// Why a table cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each text names its fields
pub enum Error {
    /// A file that cannot be read, in the words of [`Files`].
    #[error("{0}")]
    File(String),
    #[error("no {kind} is called '{}'{instead}", sanitize(name))]
    Name { kind: &'static str, name: String, instead: String },
    #[error("expected bases to end, found a circle: {}; give one of them all numbers", sanitize(circle))]
    Circle { circle: String },
    #[error("{}: expected base to be a name in quotes, found {found}", sanitize(path))]
    Base { path: String, found: &'static str },
    #[error("{}: expected TOML, a key = number a line, found otherwise on line {line}: {why}", sanitize(path))]
    Toml { path: String, line: usize, why: String },
    #[error("{}: expected keys among base, {known}, found '{}'", sanitize(path), sanitize(found))]
    Key { path: String, known: String, found: String },
    #[error("{}: expected {key} to be {expected}, found {}", sanitize(path), sanitize(found))]
    Value { path: String, key: &'static str, expected: String, found: String },
    #[error(
        "{}: expected a value for {key}, found none; give it, or a base that has it: base = \"{base}\"",
        sanitize(path)
    )]
    Missing { path: String, key: String, base: &'static str },
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
    let chain = Chain::named(&HARDWARE, name, overrides)?;
    hardware_of(chain)
}

/// Reads the hardware file at `path` with this `text`. `files` reads other files that it names as base.
///
/// # Errors
/// Invalid TOML, an unknown key or base, a cycle of bases, or numbers that are missing or out of range.
pub fn hardware_file(path: &str, text: &str, files: Files<'_>) -> Result<Hardware, Error> {
    let chain = Chain::of(&HARDWARE, path, parse(path, text)?, files, &|_, _| None, None)?;
    hardware_of(chain)
}

/// What says nothing about the GPU itself.
const NODE: [&str; 8] = [
    "memory_gib",
    "gpus_per_node",
    "network_gbps_per_gpu",
    "network_efficiency",
    "host_gbytes_per_s",
    "host_efficiency",
    "gpus_per_host_link",
    "dollars_per_gpu_hour",
];

fn hardware_of(chain: Chain) -> Result<Hardware, Error> {
    let mut hardware = Hardware::from_fields(&chain.name, |key| chain.number(key))?;
    hardware.chip = chain.own.unwrap_or(chain.name);
    Ok(hardware)
}

/// Returns the embedded training software with this name.
///
/// # Errors
/// There is none.
pub fn stack(name: &str) -> Result<Stack, Error> {
    stack_with(name, &|_, _| None)
}

/// Returns the training software with some numbers replaced: `overrides(table, field)` is asked for each, where a table is the software
/// or one that it is based on.
///
/// # Errors
/// No such software.
pub fn stack_with(name: &str, overrides: Overrides<'_>) -> Result<Stack, Error> {
    stack_of(Chain::named(&SOFTWARE, name, overrides)?)
}

/// Reads the file of training software at `path` with this `text`, as [`hardware_file`] does.
///
/// # Errors
/// As [`hardware_file`], or a schedule that is not among the `known` ones.
pub fn stack_file(path: &str, text: &str, files: Files<'_>, known: &[&str]) -> Result<Stack, Error> {
    stack_of(Chain::of(&SOFTWARE, path, parse(path, text)?, files, &|_, _| None, Some(known))?)
}

fn stack_of(chain: Chain) -> Result<Stack, Error> {
    let mut stack = Stack::from_fields(&chain.name, |key| chain.number(key))?;
    stack.schedules = chain.schedules;
    stack.framework = chain.framework;
    Ok(stack)
}

/// Kind of table: hardware or software.
struct EmbeddedTables {
    /// Kind, in errors.
    kind: &'static str,
    /// A name to suggest.
    example: &'static str,
    /// Embedded tables; the first holds common numbers and is none by itself.
    files: &'static [(&'static str, &'static str)],
    parsed: fn() -> &'static [Parsed],
    fields: &'static [Field],
}

static HARDWARE: EmbeddedTables = EmbeddedTables {
    kind: "hardware",
    example: "h100-sxm",
    files: FILES,
    parsed: || {
        static PARSED: LazyLock<Vec<Parsed>> = LazyLock::new(|| parse_all(FILES));
        &PARSED
    },
    fields: Hardware::FIELDS,
};

static SOFTWARE: EmbeddedTables = EmbeddedTables {
    kind: "training software",
    example: "megatron-core",
    files: STACK_FILES,
    parsed: || {
        static PARSED: LazyLock<Vec<Parsed>> = LazyLock::new(|| parse_all(STACK_FILES));
        &PARSED
    },
    fields: Stack::FIELDS,
};

type Parsed = Result<Table, Error>;

fn parse_all(files: &[(&str, &str)]) -> Vec<Parsed> {
    files.iter().map(|(name, text)| parse(name, text)).collect()
}

impl EmbeddedTables {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.files.iter().skip(1).map(|(name, _)| *name)
    }

    /// Returns an embedded table, parsed once.
    fn embedded(&self, name: &str) -> Option<&'static Parsed> {
        let place = self.files.iter().position(|(known, _)| *known == name)?;
        (self.parsed)().get(place)
    }

    /// Returns the only table whose name begins with a chip's name and a hyphen: h200-sxm of h200.
    fn begun(&self, name: &str) -> Option<&'static str> {
        let is_chip = name.contains(|c: char| c.is_ascii_digit()) && self.embedded(name).is_none();
        let begins = |known: &&str| {
            known.len() > name.len() && known.is_char_boundary(name.len()) && {
                let (start, rest) = known.split_at(name.len());
                start.eq_ignore_ascii_case(name) && rest.starts_with('-')
            }
        };
        let mut found = self.names().filter(begins);
        found.next().filter(|_| is_chip && found.next().is_none())
    }

    fn unknown(&self, name: &str) -> Error {
        let known: Vec<&str> = self.names().collect();
        let wrong = |instead| Error::Name { kind: self.kind, name: name.to_string(), instead };
        if let Some((product, base)) = product(name).filter(|_| self.fields == Hardware::FIELDS) {
            let base = base.map_or_else(
                || format!("none is like it; write a .toml file that begins with base = \"{}\" and has its numbers; known: {}", self.example, known.join(", ")),
                |base| format!("the most similar is {base}; take that, or write a .toml file with base = \"{base}\" and the numbers that differ"),
            );
            return wrong(format!(": {product} has no table, and {base}"));
        }
        let fits = |name: &str, found: &&str| {
            same_numbers(name, found) && (self.fields != Hardware::FIELDS || same_chip(name, found))
        };
        let like =
            |name| -> Vec<&str> { nearest(name, &known).into_iter().filter(|found| fits(name, found)).collect() };
        let found = like(name);
        // h100-dgx, rtx-a100: find the part that names the chip
        let of_a_part = || name.split(|c: char| !c.is_alphanumeric()).map(like).find(|found| !found.is_empty());
        let found = if found.is_empty() { of_a_part().unwrap_or_default() } else { found };
        wrong(format!(
            "{}; known: {}; or give a .toml file of your own that begins with base = \"{}\"",
            hint(&found),
            known.join(", "),
            self.example
        ))
    }
}

/// The numbers of a table and of all that it is based on.
struct Chain {
    name: String,
    example: &'static str,
    numbers: BTreeMap<String, f64>,
    /// Hardware: the first table with a number of the GPU itself.
    own: Option<String>,
    /// Software: the schedules that it implements.
    schedules: Option<Vec<String>>,
    /// Software: the framework.
    framework: Option<String>,
}

impl Chain {
    fn named(tables: &'static EmbeddedTables, name: &str, overrides: Overrides<'_>) -> Result<Chain, Error> {
        let name = tables.names().find(|known| plain(known) == plain(name)).unwrap_or(name);
        let name = tables.begun(name).unwrap_or(name);
        let table = tables.embedded(name).filter(|_| name != tables.files[0].0).ok_or_else(|| tables.unknown(name))?;
        Chain::of(tables, name, table.clone()?, &|name| Err(tables.unknown(name)), overrides, None)
    }

    /// Follows bases from the first table; the first one with a number sets it. `known` are the schedules that may be named, if not all.
    fn of(
        tables: &'static EmbeddedTables,
        name: &str,
        first: Table,
        files: Files<'_>,
        overrides: Overrides<'_>,
        known: Option<&[&str]>,
    ) -> Result<Chain, Error> {
        let mut paths: Vec<String> = Vec::new();
        let mut chain = Chain {
            name: name.to_string(),
            example: tables.example,
            numbers: BTreeMap::new(),
            own: None,
            schedules: None,
            framework: None,
        };
        let mut next = Some((name.to_string(), first));
        while let Some((path, table)) = next.take() {
            if paths.contains(&path) {
                paths.push(path);
                return Err(Error::Circle { circle: paths.join(" → ") });
            }
            chain.read(tables, &path, &table, overrides, known)?;
            next = match base(&path, &table)? {
                None => None,
                Some(base) => Some(match tables.embedded(&base) {
                    Some(table) => (base, table.clone()?),
                    None if base.ends_with(".toml") => (base.clone(), parse(&base, &files(&base)?)?),
                    None => return Err(tables.unknown(&base)),
                }),
            };
            paths.push(path);
        }
        Ok(chain)
    }

    fn read(
        &mut self,
        tables: &EmbeddedTables,
        path: &str,
        table: &Table,
        overrides: Overrides<'_>,
        known: Option<&[&str]>,
    ) -> Result<(), Error> {
        for (key, value) in table.iter().filter(|(key, _)| *key != "base") {
            if key == "schedules" && tables.fields == Stack::FIELDS {
                let found = schedules(path, value, known)?;
                self.schedules.get_or_insert(found);
                continue;
            }
            if key == "framework" && tables.fields == Stack::FIELDS {
                let Some(name) = value.as_str() else {
                    let (path, found) = (path.to_string(), value.type_str().to_string());
                    return Err(Error::Value {
                        path,
                        key: "framework",
                        expected: "a name in quotes".to_string(),
                        found,
                    });
                };
                self.framework.get_or_insert(name.to_string());
                continue;
            }
            let number = number(path, key, value, tables.fields)?;
            if !NODE.contains(&key.as_str()) {
                self.own.get_or_insert_with(|| path.to_string());
            }
            let number = overrides(path, key).unwrap_or(number);
            self.numbers.entry(key.clone()).or_insert(number);
        }
        Ok(())
    }

    fn number(&self, key: &str) -> Result<f64, Error> {
        let missing = || Error::Missing { path: self.name.clone(), key: key.to_string(), base: self.example };
        self.numbers.get(key).copied().ok_or_else(missing)
    }
}

fn base(path: &str, table: &Table) -> Result<Option<String>, Error> {
    match table.get("base") {
        None => Ok(None),
        Some(Value::String(base)) => Ok(Some(base.clone())),
        Some(other) => Err(Error::Base { path: path.to_string(), found: other.type_str() }),
    }
}

/// Returns the schedules of a list of names.
fn schedules(path: &str, value: &Value, known: Option<&[&str]>) -> Result<Vec<String>, Error> {
    let wrong = |found: &str| {
        let expected = format!("a list of names among {}", known.unwrap_or_default().join(", "));
        Err(Error::Value { path: path.to_string(), key: "schedules", expected, found: found.to_string() })
    };
    let Some(list) = value.as_array() else { return wrong(value.type_str()) };
    let mut found = Vec::new();
    for name in list {
        match name.as_str() {
            Some(name) if known.is_none_or(|known| known.contains(&name)) => found.push(name.to_string()),
            Some(name) => return wrong(&format!("'{name}'")),
            None => return wrong(name.type_str()),
        }
    }
    Ok(found)
}

fn parse(path: &str, text: &str) -> Result<Table, Error> {
    text.parse::<Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        Error::Toml { path: path.to_string(), line, why: error.message().replace('\n', " ") }
    })
}

/// Formats a number without many digits.
fn brief(number: f64) -> String {
    if number == 0.0 || (1e-6..1e6).contains(&number.abs()) { number.to_string() } else { format!("{number:e}") }
}

/// Smallest number above 0: no machine has less, and quotients of such numbers are finite.
const LEAST: f64 = 1e-12;

fn number(path: &str, key: &str, value: &Value, fields: &'static [Field]) -> Result<f64, Error> {
    let Some(field) = fields.iter().find(|field| field.name == key) else {
        let known = fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
        return Err(Error::Key { path: path.to_string(), known, found: key.to_string() });
    };
    let wrong = |expected: &str, found: String| {
        let expected = format!("{expected} ({})", field.what);
        Err(Error::Value { path: path.to_string(), key: field.name, expected, found })
    };
    if !field.words.is_empty() {
        let found = match value {
            Value::String(text) => text.clone(),
            Value::Boolean(flag) => flag.to_string(),
            Value::Integer(number) => number.to_string(),
            other => other.type_str().to_string(),
        };
        let words = || field.words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let known = field.words.iter().find(|(word, _)| *word == found);
        return known.map_or_else(|| wrong(&format!("one of {}", words()), found), |(_, number)| Ok(*number));
    }
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        other => return wrong("a number", other.type_str().to_string()),
    };
    let wrong = |expected: &str| wrong(expected, brief(number));
    match number {
        _ if number > field.most && number.is_finite() => wrong(&format!("at most {}", brief(field.most))),
        _ if field.is_count && !(number >= 1.0 && number.fract() == 0.0) => wrong("a whole number, at least 1"),
        _ if number > 0.0 && number < LEAST => {
            wrong(&format!("{}at least {LEAST:e}", if field.may_be_zero { "0, or " } else { "" }))
        }
        _ if number.is_finite() && (number > 0.0 || field.may_be_zero && number == 0.0) => Ok(number),
        _ if field.may_be_zero => wrong("at least 0"),
        _ => wrong("above 0"),
    }
}

/// Returns a hardware file with these numbers on top of `base`; `head` are comment lines on their source.
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
fn digits(number: f64) -> String {
    let whole = format!("{number:.3e}").parse::<f64>().unwrap_or(number);
    format!("{whole}")
}
