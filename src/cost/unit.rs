//! Units of time that costs are given in.

use super::{CostError, Decimal};

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum TimeUnit {
    Nanosecond,
    Microsecond,
    Millisecond,
    Second,
}

/// What is written after a number; the longer before those that they end with.
const WRITTEN: [(&str, TimeUnit); 6] = [
    ("ns", TimeUnit::Nanosecond),
    ("us", TimeUnit::Microsecond),
    ("µs", TimeUnit::Microsecond),
    ("μs", TimeUnit::Microsecond),
    ("ms", TimeUnit::Millisecond),
    ("s", TimeUnit::Second),
];

impl TimeUnit {
    /// The unit of a timeline or cost table; `None` for the plain numbers of `unit`.
    pub fn named(name: &str) -> Option<TimeUnit> {
        WRITTEN.into_iter().find(|(written, _)| *written == name).map(|(_, unit)| unit)
    }

    /// Its name: `ns`, `us`, `ms` or `s`.
    pub fn name(self) -> &'static str {
        ["ns", "us", "ms", "s"][self as usize]
    }

    /// Its nanoseconds.
    pub fn ns(self) -> u64 {
        1000_u64.pow(self as u32)
    }

    /// Its milliseconds.
    pub fn ms(self) -> f64 {
        self.ns() as f64 / 1e6
    }

    /// A number, and the unit after it where there is one.
    ///
    /// # Errors
    /// No number.
    pub fn read(text: &str) -> Result<(Decimal, Option<TimeUnit>), CostError> {
        let found = WRITTEN.into_iter().find_map(|(written, unit)| Some((text.strip_suffix(written)?, unit)));
        match found {
            Some((number, unit)) => Ok((number.trim_end().parse()?, Some(unit))),
            None => Ok((text.parse()?, None)),
        }
    }

    /// So many of `smaller`, in this unit.
    pub(super) fn of(self, number: Decimal, smaller: TimeUnit) -> Decimal {
        number.over_ten_to(3 * (self as u32 - smaller as u32))
    }
}
