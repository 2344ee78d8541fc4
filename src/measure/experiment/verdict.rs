//! The verdict on a run: which of its schedules were steady enough to judge, and whether their predictions agree with the measurement.

use super::Outcome;
use pipesim_report::{off_by, percent, plus_minus, quantity};
use pipesim_schedule::statistics::{LEAST_FOR_CI95, median, median_ci95};
use serde::Serialize;

/// Largest noise, as a share, at which predictions are judged: schedules of interest differ by 5 to 10 %.
pub const MOST_NOISE: f64 = 0.05;

/// Largest noise, as a share, at which a small error counts as agreement.
const MOST_NOISE_OF_AGREEMENT: f64 = 2.0 * MOST_NOISE;

/// Times within this share of each other count as equal, however steady the machine is.
const TIE: f64 = 0.01;

/// Least number of steps with a known noise.
const FEWEST: usize = 3;

/// The verdict on a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Whether the machine was steady enough to judge every schedule by its own noise.
    pub steady: bool,
    /// The verdict as text.
    pub text: String,
    /// Median of the schedules' noise, as a share; `None` below three steps.
    pub noise: Option<f64>,
    /// Most noise with which the machine counts as steady, as a share.
    pub most_noise: f64,
    /// What is found of each schedule.
    pub schedules: Vec<ScheduleVerdict>,
    /// The schedules by predicted time, as in `a < b ≈ c`; `None` for a single schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_order: Option<String>,
    /// The same by measured time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_order: Option<String>,
}

/// What is found of a schedule's prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finding {
    /// The error is at most [`MOST_NOISE`], and the noise at most twice that.
    Agrees,
    /// The error is above the noise and [`MOST_NOISE`].
    Differs,
    /// The noise hides whether it agrees.
    Unclear,
}

/// The verdict on one schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduleVerdict {
    pub name: String,
    /// Predicted / measured - 1, of the medians.
    pub error: f64,
    /// Its own noise, as a share; `None` below three steps.
    pub noise: Option<f64>,
    /// `None` below three steps.
    pub finding: Option<Finding>,
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
    let schedules: Vec<ScheduleVerdict> = all.iter().map(Judged::verdict).collect();
    let steady =
        !all.is_empty() && schedules.iter().all(|one| one.finding.is_some_and(|found| found != Finding::Unclear));
    let judgement = match noise {
        None => "Too few steps to judge: the noise shows from 3 steps of each schedule on.".to_string(),
        Some(noise) => agreement(&schedules, noise) + &unsteady(all, &schedules),
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
    Verdict { steady, text, noise, most_noise: MOST_NOISE, schedules, predicted_order, measured_order }
}

impl Judged {
    /// Judges the schedule by its own noise.
    fn verdict(&self) -> ScheduleVerdict {
        let (error, noise) = (self.error.abs(), noise(&self.steps));
        let finding = noise.map(|noise| match () {
            () if error <= MOST_NOISE && noise <= MOST_NOISE_OF_AGREEMENT => Finding::Agrees,
            () if error > noise.max(MOST_NOISE) => Finding::Differs,
            () => Finding::Unclear,
        });
        ScheduleVerdict { name: self.name.clone(), error: self.error, noise, finding }
    }

    fn measured(&self) -> impl Iterator<Item = f64> {
        self.steps.iter().map(|[_, measured]| *measured)
    }
}

/// The text about the schedules that can be judged; empty if there are none.
fn agreement(all: &[ScheduleVerdict], noise_of_all: f64) -> String {
    let found = |finding| all.iter().filter(move |one| one.finding == Some(finding)).collect::<Vec<_>>();
    let (agreeing, differing) = (found(Finding::Agrees), found(Finding::Differs));
    let size = |one: &&&ScheduleVerdict| one.error.abs();
    let largest = |some: &[&ScheduleVerdict]| {
        let worst = some.iter().max_by(|a, b| size(a).total_cmp(&size(b)));
        worst.map_or_else(String::new, |worst| format!("{} {}", worst.name, off_by(worst.error)))
    };
    let named = |some: &[&ScheduleVerdict]| some.iter().map(|one| one.name.clone()).collect::<Vec<_>>().join(", ");
    if let [one] = all {
        let verb = match one.finding {
            Some(Finding::Agrees) => "agrees with",
            Some(Finding::Differs) => "differs from",
            _ => return String::new(),
        };
        return format!(
            "The prediction {verb} the measurement: {}, noise {}.",
            off_by(one.error),
            plus_minus(noise_of_all)
        );
    }
    let mean = |some: &[&ScheduleVerdict]| {
        percent(some.iter().map(|one| one.error.abs()).sum::<f64>() / some.len().max(1) as f64)
    };
    let errors = |some: &[&ScheduleVerdict]| {
        format!("mean error {}, largest {}, noise {}", mean(some), largest(some), plus_minus(noise_of_all))
    };
    if agreeing.len() == all.len() || differing.len() == all.len() {
        let verb = if differing.is_empty() { "agree with" } else { "differ from" };
        return format!("Predictions {verb} the measurement: {}.", errors(&[agreeing, differing].concat()));
    }
    let mut sentences = Vec::new();
    if !agreeing.is_empty() {
        let largest = largest(&agreeing);
        sentences
            .push(format!("Predictions of {} agree with the measurement: largest error {largest}.", named(&agreeing)));
    }
    let each = |one: &&ScheduleVerdict| {
        let noise = plus_minus(one.noise.unwrap_or_default());
        format!("{} differs from the measurement: {}, noise {noise}.", one.name, off_by(one.error))
    };
    sentences.extend(differing.iter().map(each));
    sentences.join(" ")
}

/// The text about the schedules that cannot be judged, with the noisiest one as an example.
fn unsteady(all: &[Judged], verdicts: &[ScheduleVerdict]) -> String {
    let unclear = all.iter().zip(verdicts).filter(|(_, verdict)| verdict.finding == Some(Finding::Unclear));
    let mut unclear: Vec<(&Judged, &ScheduleVerdict)> = unclear.collect();
    unclear.sort_by(|a, b| b.1.noise.unwrap_or_default().total_cmp(&a.1.noise.unwrap_or_default()));
    let Some((worst, verdict)) = unclear.first() else { return String::new() };
    let (low, high) = worst.measured().fold((f64::INFINITY, 0.0_f64), |(low, high), ms| (low.min(ms), high.max(ms)));
    let example = format!(
        "{} steps of {} took {} to {} (noise {}, error {})",
        worst.steps.len(),
        worst.name,
        quantity(low, "ms"),
        quantity(high, "ms"),
        plus_minus(verdict.noise.unwrap_or_default()),
        percent(worst.error.abs())
    );
    if unclear.len() == all.len() {
        return format!("This machine was too unsteady to judge: {example}.");
    }
    let names: Vec<&str> = unclear.iter().map(|(one, _)| one.name.as_str()).collect();
    let space = if unclear.len() < all.len() { " " } else { "" };
    format!("{space}It was too unsteady to judge {}: {example}.", names.join(", "))
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
