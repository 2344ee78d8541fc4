//! A schedule's name with its own options: `interleaved-1f1b:v=4`.

use super::{Error, usage};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// A name, a path or `auto`, with or without options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name or path.
    pub base: String,
    pub options: BTreeMap<String, String>,
}

fn option(text: &str) -> Option<(&str, &str)> {
    let (key, value) = text.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_name = key.starts_with(letter) && key.chars().all(|c| letter(c) || c.is_ascii_digit());
    (is_name && !value.is_empty()).then_some((key, value))
}

/// Returns whether a text is the path of a schedule file.
fn is_path(text: &str) -> bool {
    let ending = Path::new(text).extension();
    ending.is_some_and(|ending| ["star", "csv"].iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Returns the position of the `:` between base and options.
fn colon(text: &str) -> Option<usize> {
    if is_path(text) {
        return None;
    }
    text.match_indices(':').map(|(at, _)| at).find(|&at| option(&text[at + 1..]).is_some())
}

impl Variant {
    /// Parses `NAME` or `NAME:key=value,key=value`; the name may be a path.
    ///
    /// # Errors
    /// Anything else after the `:`, or a duplicate option.
    pub fn parse(text: &str) -> Result<Variant, Error> {
        let fail = |what: &str| {
            Err(usage(format!(
                "expected a schedule's name with options, as in interleaved-1f1b:v=4, found '{text}': {what}"
            )))
        };
        if text.trim().is_empty() {
            return fail("give a name, and no comma after the last");
        }
        let mut options = BTreeMap::new();
        let Some(at) = colon(text) else {
            if text.contains(':') && !text.contains('/') && !is_path(text) {
                return fail("write KEY=VALUE after the colon");
            }
            return Ok(Variant { base: text.to_string(), options });
        };
        for piece in text[at + 1..].split(',') {
            let Some((key, value)) = option(piece) else { return fail("write KEY=VALUE between the commas") };
            if options.insert(key.to_string(), value.to_string()).is_some() {
                return fail(&format!("{key} is given twice; give it once"));
            }
        }
        Ok(Variant { base: text[..at].to_string(), options })
    }

    /// Splits a list of variants: `1f1b,interleaved-1f1b:v=4,group=8,zb-v`. An option after options belongs to the variant
    /// before it.
    pub fn list(text: &str) -> Vec<String> {
        let mut list: Vec<String> = Vec::new();
        for piece in text.split(',') {
            match list.last_mut() {
                Some(last) if option(piece).is_some() && !is_path(piece) && colon(last).is_some() => {
                    *last += &format!(",{piece}");
                }
                _ => list.push(piece.to_string()),
            }
        }
        list
    }

    /// Returns whether it is `auto`, the best of all schedules.
    pub fn is_auto(&self) -> bool {
        self.base.eq_ignore_ascii_case("auto")
    }

    /// Returns whether it is one of PyTorch's CSV files.
    pub fn is_csv(&self) -> bool {
        Path::new(&self.base).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"))
    }

    /// Returns the displayed name of the schedule `name` that `auto` chose.
    pub(super) fn choosing(&self, name: &str) -> String {
        format!("{} ({name})", self.named("auto"))
    }

    pub(super) fn named(&self, name: &str) -> String {
        let options: Vec<String> = self.options.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if options.is_empty() { name.to_string() } else { format!("{name}:{}", options.join(",")) }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.named(&self.base))
    }
}

/// Parses a maximum number of activation units.
///
/// # Errors
/// The text is not a number in range.
pub fn memory_cap(text: &str) -> Result<f64, Error> {
    let expected = match text.parse::<f64>() {
        Ok(units) if (0.001..=1e9).contains(&units) => return Ok(units),
        _ if text.ends_with(['B', 'b']) => {
            "expected activation units, as in 8; bytes need a model on hardware: `memory-cap` 80GiB"
        }
        _ => "expected activation units from 0.001 up, as in 8 or 2.5",
    };
    Err(usage(expected))
}
