//! The accuracy of predictions: calibrated on one schedule at one number of micro-batches, all others predicted for several, all
//! measured.

use super::calibration_graphs::Calibrator;
use super::recorded::{Recorded, SHAPE, TRAINING};
use super::results::RunSetting;
use super::sessions::open_sessions;
use super::{Calibrating, Calibration, Error, Extent, Observer, Outcome, Results, Role, Steps, Training, measure};
use pipesim_answer::resolve::{self, Selection, unknown_costs};
use pipesim_cost::{Contention, CostFile, CostTable, StepCosts};
use pipesim_exec::StepRecord;
use pipesim_report::{Report, Table};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::statistics::{median, median_ci95};
use pipesim_sim::Setup;

/// Another training that is predicted from the same costs.
pub struct Transfer {
    /// How the training differs, as in `batch=2`.
    pub name: String,
    /// What is trained.
    pub training: Training,
    /// Numbers of devices and micro-batches.
    pub selection: Selection,
}

/// What to measure. Micro-batches keep their size.
pub struct Accuracy {
    /// Names or paths of the schedules to predict.
    pub schedules: Vec<String>,
    /// Numbers of micro-batches to predict for.
    pub microbatches: Vec<u32>,
    /// The schedule that calibrates.
    pub calibrate_on: String,
    /// The training with other micro-batch sizes to calibrate.
    pub sizes: Vec<Training>,
    /// Number of devices, and number of micro-batches of the schedule that calibrates.
    pub selection: Selection,
    /// Other trainings to predict the schedules in.
    pub transfers: Vec<Transfer>,
    /// How much to measure of each schedule.
    pub extent: Extent,
}

impl Accuracy {
    /// Measures with `training`. Returns the steps, and what ended the measurement early or spoils it.
    pub fn measure(&self, training: &Training, observer: Observer<'_>) -> Result<(Vec<Steps>, Option<Error>), Error> {
        let planned = |(graph, role)| (self.training_of(training, role), graph, role);
        let mut runs = open_sessions(self.graphs(training)?.into_iter().map(planned).collect())?;
        let failure = measure(&mut runs, self.extent, observer)?;
        Ok((runs.into_iter().map(|run| run.steps).collect(), failure))
    }

    fn training_of<'a>(&'a self, training: &'a Training, role: Role) -> &'a Training {
        match role {
            Role::Transferred(number) => &self.transfers[number].training,
            Role::CalibratesSize(number) => &self.sizes[number],
            _ => training,
        }
    }

    /// The graphs to measure, in this order: those that calibrate, all schedules at each number of micro-batches, and all schedules
    /// in each other training.
    fn graphs(&self, training: &Training) -> Result<Vec<(TaskGraph, Role)>, Error> {
        let calibrator = Calibrator { training, name: &self.calibrate_on, selection: &self.selection };
        let mut graphs = calibrator.graphs(&self.sizes)?;
        let calibrating = graphs.len();
        let mut add = |selection: &Selection, role: Role| {
            for name in &self.schedules {
                let graph = selection.graph::<resolve::Error>(name, &unknown_costs)?.graph;
                self.training_of(training, role).stages(&graph).map_err(|error| error.of(name))?;
                graphs.push((graph, role));
            }
            Ok::<(), Error>(())
        };
        for &microbatches in &self.microbatches {
            add(&Selection { microbatches, ..self.selection.clone() }, Role::Judged)?;
        }
        for (number, transfer) in self.transfers.iter().enumerate() {
            add(&transfer.selection, Role::Transferred(number))?;
        }
        let judged = graphs[calibrating..].iter().map(|(graph, _)| graph);
        let beyond = calibrator.beyond(judged)?;
        graphs.splice(calibrating..calibrating, beyond);
        Ok(graphs)
    }

    /// Returns the steps as a file.
    pub fn record(training: &Training, runs: &[Steps]) -> Result<Vec<u8>, Error> {
        let mut provenance = training.provenance();
        provenance.insert(TRAINING.to_string(), training.in_words());
        provenance.insert(SHAPE.to_string(), training.shape());
        Recorded::new(provenance, runs).write()
    }

    /// Reads steps from a file that [`Accuracy::record`] wrote.
    ///
    /// # Errors
    /// Other data, or steps of another experiment.
    pub fn recorded(&self, training: &Training, bytes: &[u8]) -> Result<Vec<Steps>, Error> {
        let recorded = Recorded::read(bytes)?;
        recorded.require_training(&training.in_words(), &training.shape())?;
        recorded.steps(self.graphs(training)?)
    }

    /// Predicts every measured schedule from the calibrating steps alone and compares the prediction with the measurement.
    pub fn judge(&self, training: &Training, runs: &[Steps]) -> Result<Results, Error> {
        let calibrating = Calibrating::new(training, runs);
        let main = calibrating.main();
        let report = Report { provenance: training.provenance(), ..self.header(training) };
        let mut results = Results { report, calibration: Some(Calibration::of(main)), ..Results::default() };
        let costs = calibrating.costs(training, &self.sizes)?;
        for run in runs.iter().filter(|run| run.role.is_judged()) {
            let (table, steps) = self.tables(&costs, training, run)?;
            let setup = Setup { steps, ..Setup::default() };
            let setting = RunSetting::of(self.training_of(training, run.role));
            results.judge(run, &table, &setup, setting, Some(main))?;
            let Some(outcome) = results.outcomes.last_mut() else { continue };
            outcome.error.makespan = outcome.makespan_error_over_steps();
            if let Role::Transferred(number) = run.role {
                outcome.transfer = Some(self.transfers[number].name.clone());
            }
        }
        for (entry, outcome) in results.report.entries.iter_mut().zip(&results.outcomes) {
            let other = outcome.transfer.as_ref().map_or_else(String::new, |name| format!(" {name}"));
            entry.name = format!("{} m={}{other}", outcome.schedule, outcome.microbatches);
        }
        let judged: Vec<_> = runs.iter().filter(|run| run.role.is_judged()).zip(&results.outcomes).collect();
        results.report.extra_tables = tables(&judged, &self.calibrate_on, main, &costs);
        results.costs = Some(costs);
        Ok(results)
    }

    /// Costs of the ops and step ops of `run`, by the `costs` of `training`.
    fn tables(&self, costs: &CostFile, training: &Training, run: &Steps) -> Result<(CostTable, StepCosts), Error> {
        match run.role {
            Role::Transferred(number) => {
                let other = &self.transfers[number].training;
                other.tables(&other.costs_from(costs), &run.graph)
            }
            _ => training.tables(costs, &run.graph),
        }
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
                self.extent.steps,
                training.devices_in_words()
            ),
            ..Report::default()
        }
    }
}

/// The measured steps of a schedule and their comparison with the prediction.
type Judged<'a> = (&'a Steps, &'a Outcome);

/// Returns one row per schedule, a summary, the transfers to other trainings, and the contention if cores are shared.
/// `calibrating` are the steps of `calibrated_on` that costs were made of.
fn tables(judged: &[Judged<'_>], calibrated_on: &str, calibrating: &Steps, costs: &CostFile) -> Vec<Table> {
    let (same, other): (Vec<_>, Vec<_>) = judged.iter().copied().partition(|(_, outcome)| outcome.transfer.is_none());
    let mut tables = vec![
        rows("Makespan, predicted and measured over all steps", &same),
        summary(&same, calibrated_on, calibrating),
    ];
    if !other.is_empty() {
        tables.push(transfers(&other));
        tables.push(rows("The same by schedule", &other));
    }
    tables.extend(costs.contention.as_ref().map(contention));
    tables
}

/// Errors of several schedules, in percent.
struct Errors {
    /// Mean of the absolute values.
    mean: f64,
    /// Largest absolute value.
    largest: f64,
    /// Mean.
    signed: f64,
}

impl Errors {
    /// The errors of `shares`; `None` of none.
    fn of(shares: impl Iterator<Item = f64>) -> Option<Errors> {
        let all: Vec<f64> = shares.map(|share| 100.0 * share).collect();
        let mean = |sum: f64| sum / all.len() as f64;
        (!all.is_empty()).then(|| Errors {
            mean: mean(all.iter().map(|error| error.abs()).sum()),
            largest: all.iter().map(|error| error.abs()).fold(0.0, f64::max),
            signed: mean(all.iter().sum()),
        })
    }
}

fn rows(caption: &str, judged: &[Judged<'_>]) -> Table {
    let has_period = judged.iter().any(|(_, o)| o.error.period.is_some());
    let mut header =
        vec!["schedule", "m", "measured ms", "predicted ms", "error", "noise", "bubble error", "op start p95"];
    header.extend(has_period.then_some("period error"));
    let signed = |share: f64| format!("{:+.2} %", 100.0 * share);
    let row = |&(_, o): &Judged<'_>| {
        let typical = |side: usize| median(&o.step_makespans_ms.iter().map(|step| step[side]).collect::<Vec<_>>());
        let mut row = vec![
            o.transfer.as_ref().map_or_else(|| o.schedule.clone(), |name| format!("{} {name}", o.schedule)),
            o.microbatches.to_string(),
            format!("{:.1}", typical(1)),
            format!("{:.1}", typical(0)),
            signed(o.error.makespan),
            o.error.noise.map_or_else(String::new, |noise| format!("{:.2} %", 100.0 * noise)),
            format!("{:+.2} points", o.error.bubble),
            format!("{:.2} %", 100.0 * o.error.op_start_p95),
        ];
        row.extend(has_period.then(|| o.error.period.map_or_else(String::new, signed)));
        row
    };
    Table::new(caption, &header, judged.iter().map(row).collect())
}

/// The errors of all schedules but the one that was calibrated on.
fn summary(judged: &[Judged<'_>], calibrated_on: &str, calibrating: &Steps) -> Table {
    let unseen: Vec<&Outcome> = judged.iter().map(|(_, o)| *o).filter(|o| o.schedule != calibrated_on).collect();
    let percent = |error: Option<f64>| error.map_or("none was judged".to_string(), |error| format!("{error:.2} %"));
    let makespans = Errors::of(unseen.iter().map(|o| o.error.makespan));
    let signed = makespans.as_ref().map_or("none was judged".to_string(), |e| format!("{:+.2} %", e.signed));
    let bubbles = Errors::of(unseen.iter().map(|o| o.error.bubble / 100.0));
    let bubbles = bubbles.map_or("none was judged".to_string(), |e| format!("{:.2} points", e.mean));
    let replays = Errors::of(judged.iter().filter_map(|(_, o)| o.error.self_replay));
    let [ranked, pairs, ties] = ranking(judged);
    let row = |what: &str, value: String| vec![what.to_string(), value];
    let mut rows = vec![
        row("mean absolute makespan error", percent(makespans.as_ref().map(|e| e.mean))),
        row("largest makespan error", percent(makespans.as_ref().map(|e| e.largest))),
        row("mean signed makespan error", signed),
        row("mean absolute bubble error", bubbles),
        row("mean self-replay error, all", percent(replays.map(|e| e.mean))),
        row("pairs with a measurable difference ranked correctly", format!("{ranked} of {pairs}; ties: {ties}")),
        row("drift of the machine over the run", format!("{:+.2} %", 100.0 * calibrating.drift())),
    ];
    if let Some(periods) = Errors::of(unseen.iter().filter_map(|o| o.error.period)) {
        rows.push(row("mean absolute period error", format!("{:.2} %", periods.mean)));
    }
    let m = calibrating.graph.schedule().microbatches;
    Table::new(
        format!("Summary: schedules other than {calibrated_on} (calibrated on, m = {m})"),
        &["what", "value"],
        rows,
    )
}

/// Of all pairs of schedules at one m: how many the prediction ranks as measured, how many the measurement ranks, and how many it
/// does not, as the 95 % interval of the ratio of their steps contains 1.
fn ranking(judged: &[Judged<'_>]) -> [usize; 3] {
    let [mut ranked, mut pairs, mut ties] = [0; 3];
    for (i, (a_steps, a)) in judged.iter().enumerate() {
        for (b_steps, b) in judged[i + 1..].iter().filter(|(_, b)| b.microbatches == a.microbatches) {
            let ratio =
                |(a, b): (&StepRecord, &StepRecord)| (a.makespan_ns() as f64 / b.makespan_ns().max(1) as f64).ln();
            let ratios: Vec<f64> = a_steps.records.iter().zip(&b_steps.records).map(ratio).collect();
            let [low, high] = median_ci95(&ratios);
            if low <= 0.0 && high >= 0.0 {
                ties += 1;
                continue;
            }
            let predicted = |o: &Outcome| median(&o.step_makespans_ms.iter().map(|step| step[0]).collect::<Vec<_>>());
            pairs += 1;
            ranked += usize::from((predicted(a) < predicted(b)) == (high < 0.0));
        }
    }
    [ranked, pairs, ties]
}

/// The errors in trainings other than the one that costs were measured in.
fn transfers(judged: &[Judged<'_>]) -> Table {
    let mut all: Vec<(&str, Vec<f64>)> = Vec::new();
    for (_, o) in judged {
        let name = o.transfer.as_deref().unwrap_or_default();
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, errors)) => errors.push(o.error.makespan),
            None => all.push((name, vec![o.error.makespan])),
        }
    }
    let row = |(name, errors): (&str, Vec<f64>)| {
        let count = errors.len();
        let Errors { mean, largest, signed } = Errors::of(errors.into_iter())?;
        let [mean, largest] = [mean, largest].map(|error| format!("{error:.2} %"));
        Some(vec![name.to_string(), count.to_string(), format!("{signed:+.2} %"), mean, largest])
    };
    let header = ["transfer to", "schedules", "mean signed error", "mean absolute error", "largest"];
    let rows = all.into_iter().filter_map(row).collect();
    Table::new("Transfer: predicted from the same costs, trained differently", &header, rows)
}

/// How much devices that compute at the same time slow each other down.
fn contention(Contention { cores, per_mille }: &Contention) -> Table {
    let caption = format!("Contention on {cores} cores: duration of an op compared with alone");
    let row = |(n, &factor): (usize, &u32)| vec![(n + 1).to_string(), format!("{:.3}", f64::from(factor) / 1e3)];
    Table::new(caption, &["devices that compute", "an op lasts"], per_mille.iter().enumerate().map(row).collect())
}
