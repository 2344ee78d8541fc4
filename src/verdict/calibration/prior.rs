//! What is known before anything is measured: from published steps.

use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Written by `pipesim-validation calibration`.
const TEXT: &str = include_str!("../../../hardware/calibration.toml");

static PUBLISHED: LazyLock<Published> = LazyLock::new(|| toml::from_str(TEXT).unwrap_or_default());

/// The file.
#[derive(Default, Deserialize)]
struct Published {
    prior: Prior,
    #[serde(default)]
    dense: Vec<LeftOutError>,
    #[serde(default)]
    mixture: Vec<LeftOutError>,
}

/// How alike the errors of layouts are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prior {
    /// Rate at which likeness fades: two layouts are alike to exp(-fading · d), where d sums the absolute differences of the shares
    /// that their parts have in the step.
    pub fading: f64,
    /// Variance of a layout's own error, relative to the variance that it has in common with layouts like it.
    pub noise: f64,
    /// Power of the process's relative standard deviation with which the logarithm of an interval narrows.
    pub narrowing: f64,
}

/// Errors of predictions of published layouts after others of their group were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeftOutError {
    /// Number of measured layouts.
    pub measured: usize,
    /// Number of groups that have more layouts.
    pub groups: usize,
    /// Mean absolute error without calibration.
    pub mean_before: f64,
    /// Mean absolute error with it.
    pub mean: f64,
    /// Median absolute error without calibration.
    pub median_before: f64,
    /// Median absolute error with it.
    pub median: f64,
    /// Share of the 90 % intervals that contain the measured time.
    pub coverage: f64,
    /// Share of the groups whose mean error grows.
    pub worse: f64,
    /// Growth of the mean error of the group in which it grows most.
    #[serde(default)]
    pub most_worse: f64,
}

impl Prior {
    /// Returns the prior from published steps.
    pub fn published() -> Prior {
        PUBLISHED.prior
    }
}

impl LeftOutError {
    /// Returns the published errors with the most measured layouts, at most `measured`, of mixtures of experts or of dense models.
    pub fn published(measured: usize, is_mixture: bool) -> Option<LeftOutError> {
        let all = if is_mixture { &PUBLISHED.mixture } else { &PUBLISHED.dense };
        all.iter().filter(|error| error.measured <= measured).max_by_key(|error| error.measured).copied()
    }
}
