//! Value parsers: one of a few names, numbers and shares, lists and ranges of numbers (`4,8,16`, `4..8`, `4..16+4`, `4..64*2`).

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Command};
use pipesim_models::layout::{Recompute, RecomputePart};
use pipesim_schedule::nearest::either;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::str::FromStr;

/// Most numbers of an option, and of one over which a sweep goes.
const MOST: usize = 1000;
const MOST_OF_SWEEP: usize = 1_000_000;

/// Accepts one of `choices`: its name and aliases separated by `|`, its help, its value.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    choices: impl IntoIterator<Item = (&'static str, &'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let choices: Vec<_> = choices.into_iter().collect();
    let possible = |(names, help, _): &(&'static str, &'static str, T)| {
        let mut names = names.split('|');
        PossibleValue::new(names.next().unwrap_or_default()).aliases(names).help(*help)
    };
    let names: Vec<PossibleValue> = choices.iter().map(possible).collect();
    PossibleValuesParser::new(names).try_map(move |found| {
        let chosen = choices.iter().find(|(names, ..)| names.split('|').any(|name| name == found));
        chosen.map(|(.., value)| value.clone()).ok_or("not one of these")
    })
}

/// Accepts what the backward recomputes; names of parts are completed, too.
#[derive(Clone)]
pub struct RecomputeParser;

impl TypedValueParser for RecomputeParser {
    type Value = Recompute;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<Recompute, clap::Error> {
        let parse = |text: String| text.parse::<Recompute>();
        StringValueParser::new().try_map(parse).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let whole = ["none", "selective", "full"].into_iter();
        Some(Box::new(whole.chain(RecomputePart::ALL.map(|(name, _)| name)).map(PossibleValue::new)))
    }
}

/// At least one number, in the order given, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(Vec<u32>);

impl Numbers {
    /// Returns the first number, the only one for a verb that takes one.
    pub fn first(&self) -> u32 {
        self.0.first().copied().unwrap_or(1)
    }

    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    pub fn all(&self) -> &[u32] {
        &self.0
    }

    pub fn parse(text: &str, range: &RangeInclusive<u32>) -> Result<Numbers, String> {
        Numbers::parse_most(text, range, MOST)
    }

    fn parse_most(text: &str, range: &RangeInclusive<u32>, most: usize) -> Result<Numbers, String> {
        let mut seen = BTreeSet::new();
        let mut numbers = Vec::new();
        for piece in text.split(',') {
            let found = run(piece.trim(), range, most)?;
            numbers.extend(found.into_iter().filter(|number| seen.insert(*number)));
            if numbers.len() > most {
                return Err(format!("expected at most {most} numbers, found more; take larger steps, as in 4..1024*2"));
            }
        }
        Ok(Numbers(numbers))
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))
    }
}

/// Parses `4`, `4..8`, `4..16+4` or `4..64*2`; a range includes its end if a step reaches it.
fn run(text: &str, range: &RangeInclusive<u32>, most: usize) -> Result<Vec<u32>, String> {
    let all = u64::from(*range.start())..=u64::from(*range.end());
    let number = |text: &str| -> Result<u32, String> {
        const OTHERWISE: &str = "write one such as 8, or a range such as 4..16+4 or 4..64*2";
        u32::try_from(one(text, &all, OTHERWISE)?).map_err(|error| error.to_string())
    };
    let Some((from, rest)) = text.split_once("..") else { return Ok(vec![number(text)?]) };
    let (to, step) = match rest.find(['+', '*']) {
        Some(at) => (&rest[..at], Some((&rest[at..=at], &rest[at + 1..]))),
        None => (rest, None),
    };
    let (from, to) = (number(from)?, number(to)?);
    let factor = |text: &str, least: u64| {
        let found = text.trim().parse::<u64>().ok().filter(|&step| step >= least);
        found.ok_or_else(|| format!("expected a step of {least} or more in '{rest}', found '{text}'"))
    };
    let (add, times) = match step {
        None => (1, 1),
        Some(("+", text)) => (factor(text, 1)?, 1),
        Some((_, text)) => (0, factor(text, 2)?),
    };
    if from > to {
        return Err(format!("expected a range that goes up, found {from}..{to}; write {to}..{from}"));
    }
    let next = |&number: &u64| number.checked_mul(times)?.checked_add(add);
    let all = std::iter::successors(Some(u64::from(from)), next);
    let all = all.take_while(|&number| number <= u64::from(to)).take(most + 1);
    Ok(all.filter_map(|number| u32::try_from(number).ok()).collect())
}

/// Parses a whole number within `range`; `otherwise` is the advice for a text that resembles no number.
fn one(text: &str, range: &RangeInclusive<u64>, otherwise: &str) -> Result<u64, String> {
    let (text, least, most) = (text.trim(), *range.start(), *range.end());
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let found = text.parse::<u64>().ok();
        return found.filter(|found| range.contains(found)).ok_or_else(|| match found {
            Some(found) if found < least => format!("expected {least} or more, found {found}"),
            None if text.starts_with('-') => format!("expected {least} or more, found {text}"),
            _ => format!("expected at most {most}, found {text}"),
        });
    }
    let remedy = match meant(text) {
        Some(numbers) => format!("write {}", either(&numbers)),
        None if text.contains(',') || text.contains("..") => "give one number, and ask once for each".to_string(),
        None => otherwise.to_string(),
    };
    Err(format!("expected a whole number, found '{text}'; {remedy}"))
}

/// Returns the whole numbers that `8k`, `1e3`, `4_096`, `1.5` or `0x10` may mean.
fn meant(text: &str) -> Option<Vec<String>> {
    let whole = |number: f64| (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then(|| format!("{number:.0}"));
    if let Some(hex) = text.strip_prefix("0x") {
        return Some(vec![u64::from_str_radix(hex, 16).ok()?.to_string()]);
    }
    let groups: Vec<&str> = text.split([',', '_', '\'', ' ']).collect();
    let is_group = |group: &&str| group.len() == 3 && group.bytes().all(|byte| byte.is_ascii_digit());
    if let [first, rest @ ..] = groups.as_slice()
        && (1..=3).contains(&first.len())
        && !rest.is_empty()
        && rest.iter().all(is_group)
    {
        return Some(vec![groups.concat().parse::<u64>().ok()?.to_string()]);
    }
    let (number, power) = [("k", 1), ("m", 2), ("g", 3), ("b", 3)]
        .into_iter()
        .find_map(|(letter, power)| {
            let text = text.to_lowercase();
            let number = text.strip_suffix('i').unwrap_or(&text).strip_suffix(letter)?;
            Some((number.trim().to_string(), power))
        })
        .unwrap_or((text.to_string(), 0));
    if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None; // inf and nan parse as numbers
    }
    let number = number.parse::<f64>().ok()?;
    if power > 0 {
        return [1024_f64, 1000.0].into_iter().map(|base| whole(number * base.powi(power))).collect();
    }
    let near = if number.fract() == 0.0 { vec![number] } else { vec![number.floor(), number.ceil()] };
    near.into_iter().map(whole).collect()
}

pub fn whole<T>(range: impl RangeBounds<u64>) -> impl TypedValueParser<Value = T>
where
    T: TryFrom<u64> + Clone + Send + Sync + 'static,
{
    let most = u64::MAX >> (64 - 8 * size_of::<T>()); // all bits of `T` set
    let least = match range.start_bound() {
        Bound::Included(&least) => least,
        Bound::Excluded(&below) => below + 1,
        Bound::Unbounded => 0,
    };
    let most = match range.end_bound() {
        Bound::Included(&last) => last.min(most),
        Bound::Excluded(&above) => (above - 1).min(most),
        Bound::Unbounded => most,
    };
    let otherwise = format!("write one such as {}", 8.clamp(least, most));
    StringValueParser::new().try_map(move |text| {
        let found = one(&text, &(least..=most), &otherwise)?;
        T::try_from(found).map_err(|_| format!("expected at most {most}, found {found}"))
    })
}

/// Accepts whole numbers within `range`.
pub fn numbers(range: RangeInclusive<u32>) -> impl TypedValueParser<Value = Numbers> {
    StringValueParser::new().try_map(move |text| Numbers::parse(&text, &range))
}

/// Accepts as many whole numbers within `range` as a sweep goes over.
pub fn numbers_of_sweep(range: RangeInclusive<u32>) -> impl TypedValueParser<Value = Numbers> {
    StringValueParser::new().try_map(move |text| Numbers::parse_most(&text, &range, MOST_OF_SWEEP))
}

pub fn real<T: FromStr + Into<f64> + Copy>(text: &str) -> Result<T, String> {
    let value: T = text.parse().map_err(|_| {
        let digits = text.trim_end_matches(|c: char| c.is_alphabetic() || c == ' ');
        let remedy = match digits.parse::<f64>() {
            Ok(_) => format!("write {digits}, without a unit"),
            Err(_) => "write one such as 0.5 or 3e-4".to_string(),
        };
        format!("expected a number, found '{text}'; {remedy}")
    })?;
    if value.into().is_finite() { Ok(value) } else { Err(format!("expected a finite number, found '{text}'")) }
}

/// Parses a number of tokens: `300B`, `15T`, `1.5e13`.
pub fn tokens(text: &str) -> Result<u64, String> {
    let expected = || format!("expected a number of tokens, found '{text}'; write one such as 300B or 15T");
    let powers = [("K", 1e3), ("M", 1e6), ("B", 1e9), ("G", 1e9), ("T", 1e12)];
    let upper = text.trim().to_ascii_uppercase();
    let found = powers.iter().find_map(|(letter, power)| Some((upper.strip_suffix(letter)?, *power)));
    let (number, power) = found.unwrap_or((&upper, 1.0));
    let tokens = number.trim().parse::<f64>().map_err(|_| expected())? * power;
    if (1.0..=1e18).contains(&tokens) { Ok(tokens.round() as u64) } else { Err(expected()) }
}

/// Parses a share above 0 and below 1: `1%` or `0.01`.
pub fn share(text: &str) -> Result<f64, String> {
    let expected = || format!("expected a share above 0 and below 1, as 1% or 0.01, found '{text}'");
    let (number, of) = text.trim().strip_suffix('%').map_or((text.trim(), 1.0), |percent| (percent.trim_end(), 100.0));
    let share = number.parse::<f64>().map_err(|_| expected())? / of;
    if share > 0.0 && share < 1.0 { Ok(share) } else { Err(expected()) }
}

/// Returns whether a value is the path of a table instead of a name.
pub fn is_toml(value: &str) -> bool {
    value.ends_with(".toml") || value.contains('/')
}

/// Accepts one of `names`, or the path of a .toml file.
pub fn name_or_toml(names: &[&'static str]) -> impl TypedValueParser<Value = String> + use<> {
    NameOrToml(PossibleValuesParser::new(names.iter().map(|name| PossibleValue::new(*name))))
}

#[derive(Clone)]
struct NameOrToml(PossibleValuesParser);

impl TypedValueParser for NameOrToml {
    type Value = String;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        match value.to_str() {
            Some(path) if is_toml(path) => Ok(path.to_string()),
            _ => self.0.parse_ref(command, argument, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}
