//! A measured step against its prediction: is it as fast as it should be, and if not, what would explain it?

mod change;
mod changes;
mod counted;
mod evidence;
mod measured;
mod published;
mod ranking;
mod sentence;
mod speed;

pub use change::{Asked, Change};
pub use counted::FlopCount;
pub use evidence::Evidence;
pub use measured::{Measured, MeasuredError, Peak, Unit};
pub use published::share_below;
pub use ranking::Candidate;
pub use speed::Speed;

use pipesim_answer::question::Question;
use pipesim_answer::resolve::{Error, Host};
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_jobs::Measurement;
use pipesim_models::hardware::IntervalClass;
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
    /// The published runs it is compared with: model, precision, whether the GPU is among them.
    pub class: String,
    /// Share of those runs, left out of the fit, whose ratio is below this one.
    pub share_below: Option<f64>,
    /// How fast the measured step is.
    pub speed: Speed,
    /// The log that it is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Measurement>,
    /// What would explain the difference, the most likely first; none for less than 3 % of the prediction.
    pub candidates: Vec<Candidate>,
}

/// Least difference that is explained, relative to the prediction: one slow GPU costs about 5 %.
const EXPLAINED: f64 = 0.03;
/// Share of the published runs on each side of those that turned out as expected.
const OUTER: f64 = 0.1;

/// Judges a measured step of a question about one schedule, called `name`, on one layout, whose prediction is `estimate`. `log` is what
/// else is known of the run.
///
/// # Errors
/// A question about something else, or a measurement that the hardware cannot have.
pub fn judge(
    question: &Question,
    name: &str,
    estimate: &StepEstimate,
    measured: &Measured,
    log: Option<&Measurement>,
    host: &'static dyn Host,
) -> Result<Verdict, Error> {
    let asked = Asked::new(question, name, host)?;
    let usage = |error: MeasuredError| Error::Usage(format!("`measured`: {error}"));
    let expected = asked.analytic.layout.tokens() / u64::from(asked.analytic.layout.sequence.max(1));
    if let Some(found) = log.and_then(|log| log.global_batch).map(u64::from).filter(|found| *found != expected) {
        return Err(usage(MeasuredError::OtherBatch { expected, found }));
    }
    let seconds = measured.seconds(&asked.analytic).map_err(usage)?;
    let middle = |index: usize| seconds.get(index).copied().unwrap_or_default();
    let measured_s = (middle(seconds.len() / 2) + middle((seconds.len() - 1) / 2)) / 2.0;
    let class = IntervalClass {
        is_narrow: asked.analytic.layout.precision.is_narrow(),
        is_mixture: asked.analytic.model.experts.is_some(),
        hardware: &asked.analytic.machine.hardware.name,
    };
    let (ratio, [low, high]) = (measured_s / estimate.iteration_s, class.factors());
    let share_below = share_below(&class.key(), ratio);
    let outcome = match share_below.unwrap_or(0.5) {
        share if ratio > high || share > 1.0 - OUTER && ratio > 1.0 => Outcome::Slower,
        share if ratio < low || share < OUTER && ratio < 1.0 => Outcome::Faster,
        _ => Outcome::AsExpected,
    };
    let explained = (ratio - 1.0).abs() >= EXPLAINED;
    let candidates = explained.then(|| ranking::ranked(&asked, estimate, measured_s, (high / low).ln(), log));
    let mut verdict = Verdict {
        sentence: String::new(),
        outcome,
        measured: measured.clone(),
        measured_s,
        measured_range_s: (seconds.len() > 1).then(|| [middle(0), middle(seconds.len() - 1)]),
        predicted_s: estimate.iteration_s,
        ratio,
        share_below,
        class: class.key(),
        speed: Speed::new(&asked.analytic, measured_s, log.and_then(|log| log.printed_tflops)),
        log: log.cloned(),
        candidates: candidates.unwrap_or_default(),
    };
    verdict.sentence = sentence::of(&verdict);
    Ok(verdict)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.sentence, self.speed)
    }
}
