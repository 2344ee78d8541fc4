//! The results of an experiment, as numbers and as a report.

use super::{Calibrating, Error, Iteration, Outcome, Role, Steps, Training, Verdict, noise};
use pipesim_cost::{CostFile, CostTable};
use pipesim_exec::StepRecord;
use pipesim_models::model_spec::transformer::Style;
use pipesim_report::{self as report, Entry, Panel, Report, Table};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::statistics::{LEAST_FOR_CI95, relative_error};
use pipesim_sim::event::EventError;
use pipesim_sim::{self as sim, Prediction, PredictionFigures, Setup};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The run that predictions were calibrated on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Calibration {
    /// The schedule's name.
    pub schedule: String,
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// Measured steps.
    pub steps: usize,
}

impl Calibration {
    pub(super) fn of(run: &Steps) -> Calibration {
        let schedule = run.graph.schedule();
        Calibration {
            schedule: schedule.name.clone(),
            devices: schedule.devices(),
            microbatches: schedule.microbatches,
            steps: run.records.len(),
        }
    }
}

/// What runs take place on.
#[derive(Clone, Copy)]
pub(super) struct RunSetting<'a> {
    /// What moves messages.
    pub(super) link: &'static str,
    /// What is trained; `None` for timed devices.
    pub(super) training: Option<&'a Training>,
}

impl RunSetting<'_> {
    /// The setting of `training`.
    pub(super) fn of(training: &Training) -> RunSetting<'_> {
        RunSetting { link: training.backend.transport.link.name, training: Some(training) }
    }
}

/// The results of an experiment.
#[derive(Debug, Default)]
pub struct Results {
    /// The run that the predictions were calibrated on; `None` if costs were given.
    pub calibration: Option<Calibration>,
    /// In the order asked for.
    pub outcomes: Vec<Outcome>,
    /// The same as a report.
    pub report: Report,
    /// The measured costs that predictions were made from.
    pub costs: Option<CostFile>,
    /// Iteration time of one device with the same micro-batches, if asked for.
    pub baseline: Option<Iteration>,
    /// Whether the machine was steady enough to judge, and whether the predictions agree.
    pub verdict: Option<Verdict>,
    /// Why the experiment ended early.
    pub failure: Option<Error>,
}

/// Returns for each step of `run` the predicted and the measured makespan in milliseconds. With `of_its_time`, `predicted` is at the
/// speeds of the two calibrating steps around each step, two per step; otherwise all steps share its makespan.
fn step_makespans_ms(run: &Steps, predicted: &Prediction<'_>, of_its_time: bool) -> Vec<[f64; 2]> {
    let mean = |pair: &[u64]| pair.iter().sum::<u64>() / pair.len() as u64;
    let at_speeds = predicted.at_speeds().chunks(2).map(mean).filter(|_| of_its_time);
    let expected = at_speeds.chain(std::iter::repeat(predicted.makespan()));
    let pair = |(expected, record): (u64, &StepRecord)| [expected, record.makespan_ns()].map(|ns| ns as f64 / 1e6);
    expected.zip(&run.records).map(pair).collect()
}

/// The mean predicted period over as many steps as followed each other in `run`, in the prediction's unit; `None` if steps did not
/// follow each other without a barrier.
fn predicted_period(run: &Steps, predicted: &Prediction<'_>) -> Result<Option<f64>, EventError> {
    let count = run.records.iter().map(|record| 1 + record.following.len()).min().unwrap_or(1);
    if count == 1 {
        return Ok(None);
    }
    let successive = predicted.successive(count as u32)?;
    let first = successive.ends.first().copied().unwrap_or(0).max(1) as f64;
    let share = successive.mean_period(count).map(|period| period / first);
    Ok(share.zip(predicted.prediction.iteration).map(|(share, iteration)| share * iteration))
}

impl Results {
    /// Returns empty results.
    pub(super) fn new(title: String, training: &Training) -> Results {
        let mut provenance = training.provenance();
        provenance.insert("link".to_string(), training.backend.transport.link.name.to_string());
        let c = training.config();
        let subtitle = format!(
            "{} with {} blocks, {} heads, {} channels, vocabulary {}; micro-batches of {} x {} tokens; {}; {}",
            match c.style {
                Style::Gpt => "GPT-2",
                Style::Llama => "Llama",
            },
            c.layers,
            c.heads,
            c.channels,
            c.vocabulary,
            training.micro_batch.sequences,
            training.micro_batch.tokens,
            training.devices_in_words(),
            provenance.get("machine").map_or("", String::as_str)
        );
        let report = Report { title, subtitle, provenance, ..Report::default() };
        Results { report, ..Results::default() }
    }

    /// Predicts `run` from `table` and compares the prediction with the measurement. The table's speeds come from the steps of
    /// `calibrating`; `None` if the costs are given.
    pub(super) fn judge(
        &mut self,
        run: &Steps,
        table: &CostTable,
        setup: &Setup,
        setting: RunSetting<'_>,
        calibrating: Option<&Steps>,
    ) -> Result<(), Error> {
        let refused = |error: EventError| Error::Usage(error.to_string());
        let schedule = run.graph.schedule();
        let around = calibrating.map(|main| main.around_all(run)).unwrap_or_default();
        let of_its_time = table.at_speeds(&around);
        let costs = if around.is_empty() { table } else { &of_its_time };
        let predicted = sim::predict(&run.graph, costs, setup).map_err(refused)?;
        let step_makespans_ms = step_makespans_ms(run, &predicted, !around.is_empty());
        let period = predicted_period(run, &predicted).map_err(refused)?;
        let mut panel = Panel::predicted(&predicted);
        let median_step = run.median_step();
        let mut timeline = median_step.timeline(&run.graph, table.keep.share());
        (timeline.stub, timeline.kv) = (table.keep.stub(), table.keep.kv());
        timeline.reference(&panel.timeline);
        for timeline in [&mut panel.timeline, &mut timeline] {
            timeline.provenance = self.report.provenance.clone();
        }
        let mut predicted = predicted.prediction;
        predicted.period = period.or(predicted.period);
        let metrics = timeline.metrics();
        let notes = timeline.workers.iter().map(|workers| workers.note()).collect();
        let period_ms = Iteration::of_periods(run);
        let measured = PredictionFigures {
            metrics: metrics.clone(),
            iteration: predicted.iteration.map(|_| median_step.iteration_ns() as f64 / 1e6),
            period: period_ms.map(|period| period.median),
            costs_assumed: Vec::new(),
            pairs: Vec::new(),
            sharding: Vec::new(),
            jitter: None,
            interval: None,
            balance: None,
            ..predicted.clone()
        };
        let error_of = |predicted: Option<f64>, measured: Option<f64>| Some(relative_error(predicted?, measured?));
        let mut error = report::compare(&panel.timeline, &timeline).unwrap_or_default();
        error.steps = Some(run.records.len());
        error.noise = noise(&step_makespans_ms);
        error.iteration = error_of(predicted.iteration, measured.iteration);
        error.period = error_of(predicted.period, measured.period);
        error.self_replay = Some(run.self_replay(table));
        let wall_ms = Iteration::of_walls(run);
        let work = setting.training.map(|training| training.work(schedule.microbatches));
        let tokens = work.map_or(0, |work| work.sequences * work.sequence_tokens) as f64;
        let outcome = Outcome {
            schedule: schedule.name.clone(),
            transfer: None,
            devices: schedule.devices(),
            microbatches: schedule.microbatches,
            device_kind: setting.training.map_or("timed", Training::device_kind),
            link: setting.link,
            work,
            steps: run.records.len(),
            losses: run.records.iter().flat_map(StepRecord::losses).collect(),
            tokens_per_second: tokens / (wall_ms.median / 1e3).max(1e-9),
            iteration_ms: Iteration::of_iterations(run),
            period_ms,
            wall_ms,
            error: error.clone(),
            measured,
            predicted,
            step_makespans_ms,
        };
        self.report.entries.push(Entry {
            name: schedule.name.clone(),
            predicted: Some(panel),
            measured: Some(Panel::new(timeline, metrics)),
            error: Some(error),
            over_steps: outcome.over_steps(),
            step_ms: outcome.step_makespans_ms.iter().map(|[_, measured]| *measured).collect(),
            notes,
            ..Entry::default()
        });
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Merges the results of several links; entries then carry the link's name.
    pub fn merged(of_links: Vec<Results>) -> Results {
        let several = of_links.len() > 1;
        let mut all = Results::default();
        for (number, mut more) in of_links.into_iter().enumerate() {
            for (entry, outcome) in more.report.entries.iter_mut().zip(&more.outcomes).filter(|_| several) {
                entry.name = format!("{} ({})", entry.name, outcome.link);
            }
            if number == 0 {
                all = more;
            } else {
                all.outcomes.extend(more.outcomes);
                all.report.entries.extend(more.report.entries);
                all.failure = more.failure;
            }
        }
        all.tabulate();
        all
    }

    /// Adds the verdict and the tables of speeds and losses to the report.
    pub(super) fn tabulate(&mut self) {
        self.verdict = Verdict::of(&self.outcomes);
        self.report.verdict = self.verdict.as_ref().map_or_else(String::new, |verdict| verdict.text.clone());
        self.report.extra_tables = extra_tables(&self.outcomes, self.baseline);
    }
}

/// Reports measured steps of one schedule. The prediction is made from the costs of these steps, so it says which part of the step time
/// the schedule explains, not how well another machine or schedule is predicted.
///
/// # Errors
/// There are no steps.
pub fn report_of(training: &Training, graph: &Arc<TaskGraph>, records: Vec<StepRecord>) -> Result<Report, Error> {
    if records.is_empty() {
        return Err(Error::Usage("expected at least 1 step to report, found 0; train for one or more".to_string()));
    }
    let run = [Steps { records, ..Steps::new(graph.clone(), Role::Calibrates) }];
    let calibrating = Calibrating::new(training, &run);
    let costs = calibrating.costs(training, &[])?;
    let schedule = graph.schedule();
    let title = format!(
        "The last {} steps: {} devices, {} micro-batches; predicted from their own costs",
        run[0].records.len(),
        schedule.devices(),
        schedule.microbatches
    );
    let mut results = Results::new(title, training);
    results.calibration = Some(Calibration::of(&run[0]));
    let (table, steps) = training.tables(&costs, graph)?;
    let setup = Setup { steps, memory_cap: None, machine: None };
    results.judge(&run[0], &table, &setup, RunSetting::of(training), Some(calibrating.main()))?;
    results.tabulate();
    // A verdict is about predictions from the costs of other steps.
    results.report.verdict.clear();
    Ok(results.report)
}

/// Returns the tables of speeds and losses.
fn extra_tables(outcomes: &[Outcome], baseline: Option<Iteration>) -> Vec<Table> {
    let naive = outcomes.iter().find(|o| o.schedule == "naive").map(|o| o.iteration_ms);
    let (base, column) = if baseline.is_some() { (baseline, "against one device") } else { (naive, "against naive") };
    let row = |name: &str, Iteration { median, ci95: [low, high] }: Iteration, tokens_per_second: String| {
        let interval = format!("{low:.1} to {high:.1}");
        let against = base.map(|base| format!("{:.2} x", base.median / median));
        let cells = [name.to_string(), format!("{median:.1}"), interval, tokens_per_second];
        cells.into_iter().chain(against).collect::<Vec<_>>()
    };
    let is_in_a_row = outcomes.iter().any(|o| o.period_ms.is_some());
    let period = |o: Option<&Outcome>| {
        let cell = || o.and_then(|o| Some((o.period_ms?, o.error.period?)));
        let told =
            |(period, error): (Iteration, f64)| [format!("{:.1}", period.median), format!("{:+.2} %", 100.0 * error)];
        is_in_a_row.then(|| cell().map_or_else(Default::default, told)).into_iter().flatten()
    };
    let several = outcomes.windows(2).any(|pair| pair[0].link != pair[1].link);
    let label = |o: &Outcome| if several { format!("{} ({})", o.schedule, o.link) } else { o.schedule.clone() };
    let of_outcome = |o: &Outcome| {
        let mut cells = row(&label(o), o.iteration_ms, format!("{:.0}", o.tokens_per_second));
        cells.extend(period(Some(o)));
        cells
    };
    let few = outcomes.iter().any(|o| o.steps < LEAST_FOR_CI95);
    let mut header = vec!["schedule", "step time ms", if few { "range" } else { "95 % interval" }, "tokens/s"];
    header.extend(base.map(|_| column));
    header.extend(is_in_a_row.then_some(["period ms, without a barrier", "its error"]).into_iter().flatten());
    let one_device =
        baseline.map(|one| row("one device", one, String::new()).into_iter().chain(period(None)).collect());
    let rows = one_device.into_iter().chain(outcomes.iter().map(of_outcome)).collect();
    let speed = Table::new("Training speed: whole steps, the optimizer included", &header, rows);
    let mut rows: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for outcome in outcomes {
        for (step, loss) in outcome.losses.iter().enumerate() {
            rows.entry(step).or_insert_with(|| vec![step.to_string()]).push(format!("{loss:.6}"));
        }
    }
    let header: Vec<String> = ["step".to_string()].into_iter().chain(outcomes.iter().map(label)).collect();
    let losses = Table::new("Loss of each training step, before its update", &header, rows.into_values().collect());
    let trained = !losses.rows.is_empty();
    [Some(speed), Some(losses).filter(|_| trained)].into_iter().flatten().collect()
}
