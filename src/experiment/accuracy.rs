//! How far predictions are from measurements: calibrated on one schedule at one number of micro-batches, all others predicted for
//! several, all measured.

use super::finding::Place;
use super::{Calibration, Error, Finding, Measured, Observer, Outcome, Training, calibrate_on, measure, provenance};
use crate::delivery::Delivery;
use crate::report::{Report, Table};
use crate::resolve::{self, Selection, unknown_costs};
use crate::sim::Setup;
use crate::statistics::quantile;

/// What is to be measured. Micro-batches keep their size.
#[derive(Clone, Debug)]
pub struct Accuracy {
    /// Names or paths of the schedules to predict.
    pub schedules: Vec<String>,
    /// At which numbers of micro-batches.
    pub microbatches: Vec<u32>,
    /// The schedule that calibrates.
    pub calibrate_on: String,
    /// For how many devices all this is, and the number of micro-batches of what calibrates.
    pub selection: Selection,
    /// Measured steps of each.
    pub steps: u32,
    /// Steps before them.
    pub warmup: u32,
}

impl Accuracy {
    /// Measures with `training`, whose messages go by `link`.
    pub fn measure(&self, training: &Training, link: &'static str, observer: Observer<'_>) -> Result<Finding, Error> {
        let calibration = (&self.calibrate_on, self.selection.microbatches);
        let wanted = self.microbatches.iter().flat_map(|&m| self.schedules.iter().map(move |name| (name, m)));
        let mut runs = Vec::new();
        for (name, microbatches) in std::iter::once(calibration).chain(wanted) {
            let selection = Selection { microbatches, ..self.selection.clone() };
            let graph = selection.graph::<resolve::Error>(name, &unknown_costs)?.graph;
            training.stages(&graph).map_err(|error| error.of(name))?;
            runs.push(Measured::new(training, graph, Delivery::OneSided)?);
        }
        let failure = measure(training, &mut runs, (self.warmup, self.steps), observer)?;
        let calibration = runs.remove(0);
        let costs = calibrate_on(training, &calibration)?;
        let report = Report { provenance: provenance::of(training), ..self.header(training) };
        let mut finding =
            Finding { report, calibration: Some(Calibration::of(&calibration)), failure, ..Finding::default() };
        for run in &runs {
            let (table, steps) = training.tables(&costs, &run.graph)?;
            let setup = Setup { steps, ..Setup::default() };
            finding.judge(run, &table, &setup, Place::of(training, link));
        }
        for (entry, outcome) in finding.report.entries.iter_mut().zip(&finding.outcomes) {
            entry.name = format!("{} m={}", outcome.schedule, outcome.microbatches);
        }
        let summary = summary(&finding.outcomes, &calibration.graph.schedule().name, calibration.drift());
        finding.report.extra_tables = vec![rows(&finding.outcomes), summary];
        finding.costs = Some(costs);
        Ok(finding)
    }

    fn header(&self, training: &Training) -> Report {
        let Selection { devices, microbatches, .. } = self.selection;
        let config = training.config();
        Report {
            title: format!("Accuracy: {devices} devices, calibrated on {} at m = {microbatches}", self.calibrate_on),
            subtitle: format!(
                "GPT-2 with {} blocks, {} channels; micro-batches of 1 x {} tokens; {} steps each, interleaved; {}",
                config.layers,
                config.channels,
                training.micro_batch.tokens,
                self.steps,
                training.devices_in_words()
            ),
            ..Report::default()
        }
    }
}

/// The errors of all but what was calibrated on, summed up.
fn summary(outcomes: &[Outcome], calibrated_on: &str, drift: f64) -> Table {
    let unseen: Vec<&Outcome> = outcomes.iter().filter(|o| o.schedule != calibrated_on).collect();
    let errors: Vec<f64> = unseen.iter().map(|o| 100.0 * o.error.median_makespan).collect();
    let absolute: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let bubbles: Vec<f64> = unseen.iter().map(|o| o.error.bubble.abs()).collect();
    let replays: Vec<f64> = outcomes.iter().map(|o| 100.0 * o.error.self_replay.abs()).collect();
    let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let (right, pairs) = ranking(outcomes);
    let row = |what: &str, value: String| vec![what.to_string(), value];
    Table {
        caption: format!("Summary: schedules other than {}, which was calibrated on", calibrated_on),
        header: ["what", "value"].map(str::to_string).to_vec(),
        rows: vec![
            row("mean absolute makespan error", format!("{:.2} %", mean(&absolute))),
            row(
                "its middle half (quartiles)",
                format!("{:.2} to {:.2} %", quantile(&absolute, 0.25), quantile(&absolute, 0.75)),
            ),
            row("largest makespan error", format!("{:.2} %", largest(&absolute))),
            row("mean signed makespan error", format!("{:+.2} %", mean(&errors))),
            row("mean absolute bubble error", format!("{:.2} points", mean(&bubbles))),
            row("mean self-replay error, all", format!("{:.2} %", mean(&replays))),
            row(
                "pairs of schedules ordered right, of those further apart than their intervals",
                format!("{right} of {pairs}"),
            ),
            row("drift of the machine over the run", format!("{:+.2} %", 100.0 * drift)),
        ],
    }
}

/// Of all pairs at one m whose confidence intervals do not overlap: how many the prediction orders as measured.
fn ranking(outcomes: &[Outcome]) -> (usize, usize) {
    let (mut right, mut pairs) = (0, 0);
    for (i, a) in outcomes.iter().enumerate() {
        for b in outcomes[i + 1..].iter().filter(|b| b.microbatches == a.microbatches) {
            let ([a_low, a_high], [b_low, b_high]) = (a.iteration_ms.ci95, b.iteration_ms.ci95);
            if a_high < b_low || b_high < a_low {
                pairs += 1;
                let predicted = a.predicted.metrics.makespan < b.predicted.metrics.makespan;
                right += usize::from(predicted == (a.iteration_ms.median < b.iteration_ms.median));
            }
        }
    }
    (right, pairs)
}

fn rows(outcomes: &[Outcome]) -> Table {
    let header = [
        "schedule",
        "m",
        "median measured ms",
        "95 % interval of the iteration",
        "predicted ms",
        "error",
        "bubble measured",
        "bubble error",
        "op start p95",
        "self-replay",
    ];
    Table {
        caption: "Makespan, predicted and measured (the median step)".to_string(),
        header: header.map(str::to_string).to_vec(),
        rows: outcomes
            .iter()
            .map(|o| {
                let [low, high] = o.iteration_ms.ci95;
                vec![
                    o.schedule.clone(),
                    o.microbatches.to_string(),
                    format!("{:.1}", o.predicted.metrics.makespan / (1.0 + o.error.median_makespan)),
                    format!("{low:.1} to {high:.1}"),
                    format!("{:.1}", o.predicted.metrics.makespan),
                    format!("{:+.2} %", 100.0 * o.error.median_makespan),
                    format!("{:.2} %", 100.0 * o.measured.metrics.bubble),
                    format!("{:+.2} points", o.error.bubble),
                    format!("{:.2} %", 100.0 * o.error.op_start_p95),
                    format!("{:+.2} %", 100.0 * o.error.self_replay),
                ]
            })
            .collect(),
    }
}
