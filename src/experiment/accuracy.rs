//! How far predictions are from measurements: calibrated on one schedule at one number of micro-batches, all others predicted for
//! several, all measured.

use super::calibrate::calibrating_graphs;
use super::finding::Place;
use super::recorded::Recorded;
use super::{
    Calibrating, Calibration, Error, Finding, Measured, Observer, Outcome, Role, Steps, Training, measure, provenance,
};
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::report::{Report, Table};
use crate::resolve::{self, Selection, unknown_costs};
use crate::sim::{Interval, Setup};
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
    /// Measures with `training`; the steps, and what ended them early or spoils them.
    pub fn measure(&self, training: &Training, observer: Observer<'_>) -> Result<(Vec<Steps>, Option<Error>), Error> {
        let session = |(graph, role)| Measured::new(training, graph, Delivery::OneSided, role);
        let mut runs = self.graphs(training)?.into_iter().map(session).collect::<Result<Vec<_>, Error>>()?;
        let failure = measure(training, &mut runs, (self.warmup, self.steps), observer)?;
        Ok((runs.into_iter().map(|run| run.steps).collect(), failure))
    }

    /// What is measured, in this order: what calibrates, then all schedules at each number of micro-batches.
    fn graphs(&self, training: &Training) -> Result<Vec<(TaskGraph, Role)>, Error> {
        let calibrating = calibrating_graphs(training, &self.calibrate_on, &self.selection)?;
        let mut graphs: Vec<_> = calibrating.into_iter().map(|graph| (graph, Role::Calibrates)).collect();
        for (name, microbatches) in
            self.microbatches.iter().flat_map(|&m| self.schedules.iter().map(move |name| (name, m)))
        {
            let selection = Selection { microbatches, ..self.selection.clone() };
            let graph = selection.graph::<resolve::Error>(name, &unknown_costs)?.graph;
            training.stages(&graph).map_err(|error| error.of(name))?;
            graphs.push((graph, Role::Judged));
        }
        Ok(graphs)
    }

    /// The steps as they are written down.
    pub fn record(training: &Training, runs: &[Steps]) -> Result<Vec<u8>, Error> {
        Recorded::new(provenance::of(training), runs).write()
    }

    /// The steps that were measured so and written down.
    pub fn recorded(&self, training: &Training, bytes: &[u8]) -> Result<Vec<Steps>, Error> {
        Recorded::read(bytes)?.steps(self.graphs(training)?)
    }

    /// Predicts what was measured, each schedule from the calibrating steps beside its own alone, and holds it against that.
    pub fn judge(&self, training: &Training, link: &'static str, runs: &[Steps]) -> Result<Finding, Error> {
        let calibrating = Calibrating::new(training, runs);
        let report = Report { provenance: provenance::of(training), ..self.header(training) };
        let calibration = Some(Calibration::of(calibrating.main()));
        let mut finding = Finding { report, calibration, ..Finding::default() };
        let costs = calibrating.costs(training)?;
        for run in runs.iter().filter(|run| !run.calibrates()) {
            let (table, steps) = training.tables(&costs, &run.graph)?;
            let setup = Setup { steps, ..Setup::default() };
            let beside = calibrating.main().beside(run);
            finding.judge(run, &table, &setup, (Place::of(training, link), &beside))?;
        }
        for (entry, outcome) in finding.report.entries.iter_mut().zip(&finding.outcomes) {
            entry.name = format!("{} m={}", outcome.schedule, outcome.microbatches);
        }
        let summary = summary(&finding.outcomes, &self.calibrate_on, calibrating.main().drift());
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
    let of = |error: fn(&Outcome) -> f64| -> Vec<f64> { unseen.iter().map(|o| error(o)).collect() };
    let errors = of(|o| 100.0 * o.error.typical_makespan);
    let sizes = |values: &[f64]| -> Vec<f64> { values.iter().map(|value| value.abs()).collect() };
    let (absolute, bubbles) = (sizes(&errors), sizes(&of(|o| o.error.typical_bubble)));
    let iterations = sizes(&of(|o| 100.0 * o.error.typical_iteration));
    let replays: Vec<f64> = outcomes.iter().map(|o| 100.0 * o.error.self_replay.abs()).collect();
    let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let order = Order::of(outcomes);
    let row = |what: &str, value: String| vec![what.to_string(), value];
    let mut rows = vec![
        row("mean absolute makespan error", format!("{:.2} %", mean(&absolute))),
        row(
            "its middle half (quartiles)",
            format!("{:.2} to {:.2} %", quantile(&absolute, 0.25), quantile(&absolute, 0.75)),
        ),
        row("largest makespan error", format!("{:.2} %", largest(&absolute))),
        row("mean signed makespan error", format!("{:+.2} %", mean(&errors))),
        row("mean absolute iteration error", format!("{:.2} %", mean(&iterations))),
        row("mean absolute bubble error", format!("{:.2} points", mean(&bubbles))),
        row("mean self-replay error, all", format!("{:.2} %", mean(&replays))),
        row(
            "pairs of schedules ordered right, of those that the steps can tell apart",
            format!("{} of {}; ties: {}", order.right, order.pairs, order.ties),
        ),
        row("drift of the machine over the run", format!("{:+.2} %", 100.0 * drift)),
    ];
    rows.extend(coverage(outcomes).map(|[of_80, of_95]| {
        let (count, share) = (outcomes.len(), |held: usize| 100.0 * held as f64 / outcomes.len() as f64);
        row(
            "measured within the 80 % and the 95 % interval, all",
            format!("{of_80} and {of_95} of {count} ({:.0} and {:.0} %)", share(of_80), share(of_95)),
        )
    }));
    let caption = format!("Summary: schedules other than {calibrated_on}, which was calibrated on");
    Table { caption, header: ["what", "value"].map(str::to_string).to_vec(), rows }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Of how many the measured makespan lay within the intervals; none where there are none.
fn coverage(outcomes: &[Outcome]) -> Option<[usize; 2]> {
    let intervals: Vec<(f64, Interval)> =
        outcomes.iter().map(|o| Some((o.typical_makespan_ms, o.predicted.interval?))).collect::<Option<_>>()?;
    let held = |of: fn(&Interval) -> [f64; 2]| {
        let within = |(time, interval): &&(f64, Interval)| (of(interval)[0]..=of(interval)[1]).contains(time);
        intervals.iter().filter(within).count()
    };
    Some([held(|interval| interval.within_80), held(|interval| interval.within_95)])
}

/// Of all pairs of schedules at one m, how many the prediction orders as measured; those whose confidence intervals overlap are ties.
struct Order {
    right: usize,
    pairs: usize,
    ties: usize,
}

impl Order {
    fn of(outcomes: &[Outcome]) -> Order {
        let mut order = Order { right: 0, pairs: 0, ties: 0 };
        for (i, a) in outcomes.iter().enumerate() {
            for b in outcomes[i + 1..].iter().filter(|b| b.microbatches == a.microbatches) {
                let ([a_low, a_high], [b_low, b_high]) = (a.iteration_ms.ci95, b.iteration_ms.ci95);
                if a_high >= b_low && b_high >= a_low {
                    order.ties += 1;
                    continue;
                }
                order.pairs += 1;
                let predicted = a.predicted.metrics.makespan < b.predicted.metrics.makespan;
                order.right += usize::from(predicted == (a.iteration_ms.median < b.iteration_ms.median));
            }
        }
        order
    }
}

fn rows(outcomes: &[Outcome]) -> Table {
    let header = [
        "schedule",
        "m",
        "measured ms",
        "predicted ms",
        "error",
        "80 % interval ms",
        "95 % interval ms",
        "held by",
        "iteration error",
        "bubble error",
        "op start p95",
    ];
    let range = |[low, high]: [f64; 2]| format!("{low:.1} to {high:.1}");
    let row = |o: &Outcome| {
        let measured = o.typical_makespan_ms;
        let interval = o.predicted.interval;
        let is_in = |[low, high]: [f64; 2]| (low..=high).contains(&measured);
        let held = |i: Interval| {
            if is_in(i.within_80) {
                "80 %"
            } else if is_in(i.within_95) {
                "95 %"
            } else {
                "none"
            }
        };
        vec![
            o.schedule.clone(),
            o.microbatches.to_string(),
            format!("{measured:.1}"),
            format!("{:.1}", measured * (1.0 + o.error.typical_makespan)),
            format!("{:+.2} %", 100.0 * o.error.typical_makespan),
            interval.map_or_else(String::new, |i| range(i.within_80)),
            interval.map_or_else(String::new, |i| range(i.within_95)),
            interval.map_or("", held).to_string(),
            format!("{:+.2} %", 100.0 * o.error.typical_iteration),
            format!("{:+.2} points", o.error.typical_bubble),
            format!("{:.2} %", 100.0 * o.error.op_start_p95),
        ]
    };
    Table {
        caption: "Makespan, predicted and measured over all steps".to_string(),
        header: header.map(str::to_string).to_vec(),
        rows: outcomes.iter().map(row).collect(),
    }
}
