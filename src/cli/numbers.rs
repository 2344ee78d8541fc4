//! Whole numbers on the command line, one or several: `4`, `4,8,16`, `4..8`, `4..16+4`, `4..64*2`.

use clap::builder::{StringValueParser, TypedValueParser};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

/// Most numbers of one list.
const MOST: usize = 1000;

/// Numbers in the order in which they were given, each once; one at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(Vec<u32>);

impl Numbers {
    /// The first; the only one, where a verb takes one.
    pub fn first(&self) -> u32 {
        self.0.first().copied().unwrap_or(1)
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// All.
    pub fn all(&self) -> &[u32] {
        &self.0
    }

    /// Reads numbers within `range`.
    ///
    /// # Errors
    /// Anything else.
    pub fn read(text: &str, range: &RangeInclusive<u32>) -> Result<Numbers, String> {
        let mut seen = BTreeSet::new();
        let mut numbers = Vec::new();
        for piece in text.split(',') {
            let found = run(piece.trim(), range)?;
            numbers.extend(found.into_iter().filter(|number| seen.insert(*number)));
            if numbers.len() > MOST {
                return Err(format!("expected at most {MOST} numbers, found more; take larger steps, as in 4..1024*2"));
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

/// The numbers of `4`, `4..8`, `4..16+4` or `4..64*2`; the last is among them where a step meets it.
fn run(text: &str, range: &RangeInclusive<u32>) -> Result<Vec<u32>, String> {
    let number = |text: &str| {
        let found = text.trim().parse::<u64>();
        let found =
            found.map_err(|_| format!("expected a number, or a range such as 4..16+4 or 4..64*2, found '{text}'"))?;
        let number = u32::try_from(found).ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("{found} is not in {}..={}", range.start(), range.end()))
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
    let all = all.take_while(|&number| number <= u64::from(to)).take(MOST + 1);
    Ok(all.filter_map(|number| u32::try_from(number).ok()).collect())
}

/// Takes numbers within `range`.
pub fn numbers(range: RangeInclusive<u32>) -> impl TypedValueParser<Value = Numbers> {
    StringValueParser::new().try_map(move |text| Numbers::read(&text, &range))
}

/// A share of one as `1%` or `0.01`, above 0 and below 1.
pub fn share(text: &str) -> Result<f64, String> {
    let expected = || format!("expected a share above 0 and below 1, as 1% or 0.01, found '{text}'");
    let (number, of) = text.trim().strip_suffix('%').map_or((text.trim(), 1.0), |percent| (percent.trim_end(), 100.0));
    let share = number.parse::<f64>().map_err(|_| expected())? / of;
    if share > 0.0 && share < 1.0 { Ok(share) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        let read = |text: &str| Numbers::read(text, &(1..=1000)).map(|numbers| numbers.0);
        assert_eq!(read("4"), Ok(vec![4]));
        assert_eq!(read("4,8,16"), Ok(vec![4, 8, 16]));
        assert_eq!(read("4..64*2"), Ok(vec![4, 8, 16, 32, 64]));
        assert_eq!(read("4..16+4"), Ok(vec![4, 8, 12, 16]));
        assert_eq!(read("4..8"), Ok(vec![4, 5, 6, 7, 8]));
        assert_eq!(read("3..20*3, 9, 1"), Ok(vec![3, 9, 1]));
        for (text, part) in [
            ("", "expected a number"),
            ("4,", "expected a number"),
            ("four", "expected a number"),
            ("0", "0 is not in 1..=1000"),
            ("1001", "not in"),
            ("99999999999", "not in"),
            ("-1", "expected a number"),
            ("8..4", "write 4..8"),
            ("4..", "expected a number"),
            ("4..8*1", "a step of 2 or more"),
            ("4..8+0", "a step of 1 or more"),
            ("4..8+x", "a step of 1 or more"),
        ] {
            assert!(read(text).is_err_and(|why| why.contains(part)), "{text}: {:?}", read(text));
        }
        assert!(Numbers::read("1..2000", &(1..=4000)).is_err_and(|why| why.contains("at most 1000")));
    }
}
