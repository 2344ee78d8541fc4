//! 90 % intervals of iteration times, from the errors on published steps that a fit had not seen.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use toml::{Table, Value};

/// Written by `pipesim-validation left-out`.
const TEXT: &str = include_str!("../../../hardware/intervals.toml");

/// What is known to matter for the error of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalClass<'a> {
    /// Whether products have fewer than 16 bits.
    pub is_narrow: bool,
    /// Whether the model is a mixture of experts.
    pub is_mixture: bool,
    /// Name of the hardware.
    pub hardware: &'a str,
}

/// The machines that the fits have seen, by kind of model, and intervals by class.
struct Intervals {
    machines: BTreeMap<String, Vec<String>>,
    classes: BTreeMap<String, [f64; 2]>,
}

static INTERVALS: LazyLock<Intervals> = LazyLock::new(|| {
    let table = TEXT.parse::<Table>().unwrap_or_default();
    let names = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|name| name.as_str().map(str::to_string)).collect()
    };
    let pair = |value: &Value| {
        let pair: Vec<f64> = value.as_array()?.iter().filter_map(Value::as_float).collect();
        <[f64; 2]>::try_from(pair).ok()
    };
    Intervals {
        machines: table.iter().filter_map(|(key, value)| Some((key.clone(), names(value)?))).collect(),
        classes: table.iter().filter_map(|(key, value)| Some((key.clone(), pair(value)?))).collect(),
    }
});

impl IntervalClass<'_> {
    /// Returns the key in the file: `dense-16-bits`, `mixture-8-bits`, `dense-other-machine`, ...
    pub fn key(self) -> String {
        let kind = if self.is_mixture { "mixture" } else { "dense" };
        let seen = INTERVALS.machines.get(&format!("{kind}-machines"));
        let class = match seen.is_some_and(|seen| seen.iter().any(|machine| machine == self.hardware)) {
            false => "other-machine",
            true if self.is_narrow => "8-bits",
            true => "16-bits",
        };
        format!("{kind}-{class}")
    }

    /// Returns the factors of a predicted time between which 90 % of the measured times are; without limit if the file lacks the
    /// class.
    pub fn factors(self) -> [f64; 2] {
        INTERVALS.classes.get(&self.key()).copied().unwrap_or([0.0, f64::MAX])
    }
}
