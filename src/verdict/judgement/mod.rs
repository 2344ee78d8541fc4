//! A measured step against its prediction: is it as fast as it should be, and if not, what would explain it?

mod change;
mod changes;
mod counted;
mod evidence;
mod measured;
mod part;
mod published;
mod ranking;
mod seconds;
mod sentence;
mod speed;
mod verdict;

pub use change::{Asked, Change};
pub use counted::FlopCount;
pub use evidence::Evidence;
pub use measured::{Measured, MeasuredError, Peak, Unit};
pub use part::Part;
pub use published::share_below;
pub use ranking::Candidate;
pub use speed::Speed;
pub use verdict::{Outcome, Verdict};

use pipesim_answer::question::Question;
use pipesim_answer::resolve::{Error, Host, usage};
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_jobs::Measurement;
use pipesim_schedule::sanitize::shell_quoted;

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
    let wrong = |error: MeasuredError| usage(format!("`measured`: {error}"));
    let expected = asked.analytic.layout.tokens() / u64::from(asked.analytic.layout.sequence.max(1));
    if let Some(found) = log.and_then(|log| log.global_batch).map(u64::from).filter(|found| *found != expected) {
        return Err(wrong(MeasuredError::OtherBatch { expected, found }));
    }
    let seconds = measured.seconds(&asked.analytic).map_err(wrong)?;
    let middle = |index: usize| seconds.get(index).copied().unwrap_or_default();
    let measured_s = (middle(seconds.len() / 2) + middle((seconds.len() - 1) / 2)) / 2.0;
    let class = estimate.class;
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
        outside: estimate.outside.clone(),
        speed: Speed::new(&asked.analytic, measured_s, log.and_then(|log| log.printed_tflops)),
        log: log.cloned(),
        parts: log.map(|log| Part::all(&estimate.time_s, log)).unwrap_or_default(),
        candidates: candidates.unwrap_or_default(),
    };
    if log.is_some() {
        let log = format!(" {}", shell_quoted(&measured.text));
        verdict.candidates.iter_mut().for_each(|one| one.next = one.next.replace(" LOG", &log));
    }
    verdict.sentence = sentence::of(&verdict);
    Ok(verdict)
}
