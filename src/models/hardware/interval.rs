//! Intervals of iteration times, from the errors on published steps that a fit had not seen.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use toml::{Table, Value};

/// Written by `pipesim-validation left-out`.
const TEXT: &str = include_str!("../../../hardware/intervals.toml");

/// What is known to matter for the error of a prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntervalClass {
    /// Whether products have fewer than 16 bits.
    pub is_narrow: bool,
    /// Whether the model is a mixture of experts.
    pub is_mixture: bool,
    /// Whether the software is of before [`IntervalClass::early_before`].
    pub is_early: bool,
    /// Number of ways in which no published run is like it.
    pub outside: usize,
}

static INTERVALS: LazyLock<Table> = LazyLock::new(|| TEXT.parse().unwrap_or_default());

/// The ends of the intervals by class.
static ENDS: LazyLock<BTreeMap<String, [f64; 2]>> = LazyLock::new(|| {
    let pair = |value: &Value| {
        let pair: Vec<f64> = value.as_array()?.iter().filter_map(Value::as_float).collect();
        <[f64; 2]>::try_from(pair).ok()
    };
    INTERVALS.iter().filter_map(|(key, value)| Some((key.clone(), pair(value)?))).collect()
});

impl IntervalClass {
    /// Returns the date before which software is early: runs of mixtures with it took up to three times as long.
    pub fn early_before() -> &'static str {
        INTERVALS.get("early-before").and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the keys in the file whose intervals it covers, its own last: `dense-16-bits`, `mixture-outside-2`, ...
    fn keys(self) -> Vec<String> {
        let kind = if self.is_mixture { "mixture" } else { "dense" };
        let bits = if self.is_narrow { "8-bits" } else { "16-bits" };
        let is_early = self.is_early && self.is_mixture;
        let early = is_early.then(|| format!("{kind}-early-{bits}"));
        let outside = (1..=self.outside.min(2)).map(|ways| format!("{kind}-outside-{ways}"));
        [format!("{kind}-{bits}")].into_iter().chain(outside).chain(early).collect()
    }

    /// Returns the key of its published errors: `dense-16-bits`, `mixture-8-bits`, `dense-outside-1`, `mixture-early-16-bits`, ...
    pub fn key(self) -> String {
        self.keys().pop().unwrap_or_default()
    }

    /// Returns the factors of a predicted time between which 90 % of the measured times are; without limit if the file lacks the
    /// class. What is less known has no narrower interval.
    pub fn factors(self) -> [f64; 2] {
        self.ends("")
    }

    /// Returns the factors between which half of the measured times are.
    pub fn middle(self) -> [f64; 2] {
        self.ends("-50")
    }

    fn ends(self, suffix: &str) -> [f64; 2] {
        let known = self.keys().into_iter().filter_map(|key| ENDS.get(&format!("{key}{suffix}")).copied());
        let wider = |a: [f64; 2], b: [f64; 2]| [a[0].min(b[0]), a[1].max(b[1])];
        let [low, high] = known.reduce(wider).unwrap_or([0.0, f64::MAX]);
        [low.min(1.0), high.max(1.0)]
    }
}
