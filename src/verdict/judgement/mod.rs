//! A measured step against its prediction: is it as fast as it should be, and if not, what would explain it?

mod change;
mod changes;
mod counted;
mod evidence;
mod measured;
mod published;
mod ranking;
mod sentence;

pub use change::{Asked, Change};
pub use counted::FlopCount;
pub use evidence::Evidence;
pub use measured::{Measured, MeasuredError, Peak, Unit};
pub use published::share_below;
pub use ranking::Candidate;

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
    /// Inside the 90 % interval of published runs.
    AsExpected,
    /// Above it.
    Slower,
    /// Below it.
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
    /// What would explain the difference, the most likely first.
    pub candidates: Vec<Candidate>,
}

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
    let seconds = measured.seconds(&asked.analytic).map_err(|error| Error::Usage(format!("`measured`: {error}")))?;
    let middle = |index: usize| seconds.get(index).copied().unwrap_or_default();
    let measured_s = (middle(seconds.len() / 2) + middle((seconds.len() - 1) / 2)) / 2.0;
    let class = IntervalClass {
        is_narrow: asked.analytic.layout.precision.is_narrow(),
        is_mixture: asked.analytic.model.experts.is_some(),
        hardware: &asked.analytic.machine.hardware.name,
    };
    let (ratio, [low, high]) = (measured_s / estimate.iteration_s, class.factors());
    let outcome = match ratio {
        _ if ratio > high => Outcome::Slower,
        _ if ratio < low => Outcome::Faster,
        _ => Outcome::AsExpected,
    };
    let candidates = ranking::ranked(&asked, estimate, measured_s, (high / low).ln(), log);
    let mut verdict = Verdict {
        sentence: String::new(),
        outcome,
        measured: measured.clone(),
        measured_s,
        measured_range_s: (seconds.len() > 1).then(|| [middle(0), middle(seconds.len() - 1)]),
        predicted_s: estimate.iteration_s,
        ratio,
        share_below: share_below(&class.key(), ratio),
        class: class.key(),
        candidates,
    };
    verdict.sentence = sentence::of(&verdict);
    Ok(verdict)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}
