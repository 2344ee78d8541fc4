//! What a judgement says.

use super::measured::Measured;
use super::part::Part;
use super::ranking::Candidate;
use super::speed::Speed;
use pipesim_jobs::Measurement;
use serde::Serialize;
use std::fmt;

/// How a measured step turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Among the middle 80 % of published runs.
    AsExpected,
    /// Slower than 90 % of them.
    Slower,
    /// Faster than 90 % of them.
    Faster,
}

/// A measured step against its prediction; the key `verdict` of `predict --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The verdict in one sentence.
    pub sentence: String,
    /// How it turned out.
    pub outcome: Outcome,
    /// What was measured.
    pub measured: Measured,
    /// Its median, in seconds per step.
    pub measured_s: f64,
    /// The least and the most of several values, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_range_s: Option<[f64; 2]>,
    /// The prediction, in seconds.
    pub predicted_s: f64,
    /// Measured / predicted.
    pub ratio: f64,
    /// The published runs it is compared with: kind of model, precision, whether they are like it.
    pub class: String,
    /// In what no published run is like it; the verdict says less then.
    pub outside: Vec<String>,
    /// Share of those runs, left out of the fit, whose ratio is below this one.
    pub share_below: Option<f64>,
    /// How fast the measured step is.
    pub speed: Speed,
    /// The log that it is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Measurement>,
    /// Its parts by the log's timers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// What would explain the difference, the most likely first; none for less than 3 % of the prediction.
    pub candidates: Vec<Candidate>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.sentence, self.speed)
    }
}
