//! The verdict on a run: whether the machine was steady enough to judge predictions, and whether they agree with the measurement.

use super::Outcome;
use pipesim_report::{off_by, percent, plus_minus, quantity};
use pipesim_schedule::statistics::{LEAST_FOR_CI95, median, median_ci95};
use serde::Serialize;

/// Largest noise, as a share, at which predictions are judged: schedules of interest differ by 5 to 10 %.
pub const MOST_NOISE: f64 = 0.05;

/// Times within this share of each other count as equal, however steady the machine is.
const TIE: f64 = 0.01;

/// Least number of steps with a known noise.
const FEWEST: usize = 3;

/// The verdict on a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Whether the machine was steady enough to judge: `noise` is known and at most `most_noise`.
    pub steady: bool,
    /// The verdict as text.
    pub text: String,
    /// Median of the schedules' noise, as a share; `None` below three steps.
    pub noise: Option<f64>,
    /// Most noise with which the machine counts as steady, as a share.
    pub most_noise: f64,
    /// The schedules by predicted time, as in `a < b ≈ c`; `None` for a single schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_order: Option<String>,
    /// The same by measured time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_order: Option<String>,
}

/// The figures of one schedule that are judged.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Name in texts.
    pub name: String,
    /// Predicted / measured - 1, of the medians.
    pub error: f64,
    /// The predicted makespan, in ms.
    pub predicted_ms: f64,
    /// Predicted and measured makespan of each step, in ms.
    pub steps: Vec<[f64; 2]>,
}

/// Returns the noise of `steps`, pairs of predicted and measured times: half the 95 % interval of predicted / measured (below six
/// steps half its range), as a share of its median. `None` below three steps.
pub fn noise(steps: &[[f64; 2]]) -> Option<f64> {
    half_interval(
        &steps.iter().map(|[predicted, measured]| predicted / measured.max(f64::MIN_POSITIVE)).collect::<Vec<_>>(),
    )
}

fn half_interval(ratios: &[f64]) -> Option<f64> {
    let [low, high] = median_ci95(ratios);
    (ratios.len() >= FEWEST).then(|| (high - low) / 2.0 / median(ratios).max(f64::MIN_POSITIVE))
}

impl Verdict {
    /// Judges runs that were measured together, step by step in turn; `None` if there are none.
    pub(super) fn of(outcomes: &[Outcome]) -> Option<Verdict> {
        let several_links = outcomes.windows(2).any(|pair| pair[0].link != pair[1].link);
        let judged = |outcome: &Outcome| Judged {
            name: match several_links {
                true => format!("{} ({})", outcome.schedule, outcome.link),
                false => outcome.schedule.clone(),
            },
            error: outcome.error.makespan,
            predicted_ms: outcome.predicted.metrics.makespan,
            steps: outcome.step_makespans_ms.clone(),
        };
        let judged: Vec<Judged> = outcomes.iter().map(judged).collect();
        (!judged.is_empty()).then(|| judge(&judged))
    }
}

/// Judges schedules that were measured together; without any, there are too few steps.
pub fn judge(all: &[Judged]) -> Verdict {
    let known: Option<Vec<f64>> = all.iter().map(|one| noise(&one.steps)).collect();
    let noise = known.map(|known| median(&known));
    let [predicted_order, measured_order] = match all {
        [_] => [None, None],
        _ => [
            Some(order(all, |one| one.predicted_ms, |_, _| TIE)),
            noise.map(|_| order(all, |one| median(&one.measured().collect::<Vec<_>>()), measured_tie)),
        ],
    };
    let steady = noise.is_some_and(|noise| noise <= MOST_NOISE);
    let judgement = match noise {
        None => "Too few steps to judge: the noise shows from 3 steps of each schedule on.".to_string(),
        Some(noise) if steady => agreement(all, noise),
        Some(noise) => unsteady(all, noise),
    };
    let orders = predicted_order.as_ref().map(|predicted| match &measured_order {
        Some(measured) if measured == predicted => format!(" Predicted order: {predicted}; measured: the same."),
        Some(measured) => format!(" Predicted order: {predicted}; measured: {measured}."),
        None => format!(" Predicted order: {predicted}."),
    });
    let steps = all.iter().map(|one| one.steps.len()).min().unwrap_or(0);
    let advice = match noise {
        None => format!(" Ask for {LEAST_FOR_CI95} steps or more."),
        Some(_) if steady => String::new(),
        Some(_) => format!(" Try an idle machine or {} steps.", 4 * steps),
    };
    let text = [judgement, orders.unwrap_or_default(), advice].concat();
    Verdict { steady, text, noise, most_noise: MOST_NOISE, predicted_order, measured_order }
}

impl Judged {
    fn measured(&self) -> impl Iterator<Item = f64> {
        self.steps.iter().map(|[_, measured]| *measured)
    }
}

/// The text for a steady machine: predictions agree if none is off by more than both its noise and [`MOST_NOISE`].
fn agreement(all: &[Judged], noise_of_all: f64) -> String {
    let agrees = |one: &Judged| one.error.abs() <= noise(&one.steps).unwrap_or(0.0).max(MOST_NOISE);
    let noise = plus_minus(noise_of_all);
    let worst = all.iter().max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()));
    let Some(worst) = worst else { return String::new() };
    let off = off_by(worst.error);
    if let [one] = all {
        let verb = if agrees(one) { "agrees with" } else { "differs from" };
        return format!("The prediction {verb} the measurement: {off}, noise {noise}.");
    }
    let mean = all.iter().map(|one| one.error.abs()).sum::<f64>() / all.len() as f64;
    let verb = if all.iter().all(agrees) { "agree with" } else { "differ from" };
    let (mean, name) = (percent(mean), &worst.name);
    format!("Predictions {verb} the measurement: mean error {mean}, largest {name} {off}, noise {noise}.")
}

/// The text for an unsteady machine, with the noisiest schedule as an example.
fn unsteady(all: &[Judged], noise_of_all: f64) -> String {
    let by_noise = |a: &&Judged, b: &&Judged| noise(&a.steps).unwrap_or(0.0).total_cmp(&noise(&b.steps).unwrap_or(0.0));
    let Some(worst) = all.iter().max_by(by_noise) else { return String::new() };
    let (low, high) = worst.measured().fold((f64::INFINITY, 0.0_f64), |(low, high), ms| (low.min(ms), high.max(ms)));
    let (name, steps, found, most) = (&worst.name, worst.steps.len(), plus_minus(noise_of_all), plus_minus(MOST_NOISE));
    let (low, high) = (quantity(low, "ms"), quantity(high, "ms"));
    format!(
        "This machine was too unsteady to judge: {steps} steps of {name} took {low} to {high} (noise of all schedules \
         {found}, at most {most} can be judged)."
    )
}

/// Least relative difference of two schedules' measured times that counts: 1 %, or the noise between their steps, which were taken
/// in turn.
fn measured_tie(a: &Judged, b: &Judged) -> f64 {
    let ratios: Vec<f64> = a.measured().zip(b.measured()).map(|(a, b)| b / a.max(f64::MIN_POSITIVE)).collect();
    half_interval(&ratios).unwrap_or(0.0).max(TIE)
}

/// Lists names from the shortest to the longest time; `≈` joins neighbours within `tie` of each other.
fn order(all: &[Judged], ms: impl Fn(&Judged) -> f64, tie: fn(&Judged, &Judged) -> f64) -> String {
    let mut sorted: Vec<(&Judged, f64)> = all.iter().map(|one| (one, ms(one))).collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1)); // stable: ties stay in the order asked for
    let mut text = String::new();
    for (number, (one, ms)) in sorted.iter().enumerate() {
        if let Some((before, shorter)) = number.checked_sub(1).map(|before| sorted[before]) {
            text += if ms / shorter.max(f64::MIN_POSITIVE) - 1.0 <= tie(before, one) { " ≈ " } else { " < " };
        }
        text += &one.name;
    }
    text
}
