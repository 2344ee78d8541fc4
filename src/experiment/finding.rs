//! What an experiment found, as numbers and to look at.

use super::interval::{SEED, ratios};
use super::measure::CALIBRATING;
use super::outcome::{iteration, period, wall};
use super::room::Resident;
use super::{Error, Errors, Iteration, Outcome, Steps, Training, Verdict, compare, noise, provenance};
use crate::cost::{CostFile, CostTable};
use crate::exec::StepRecord;
use crate::report::{Entry, Panel, Report, Table};
use crate::sim::event::EventError;
use crate::sim::{self, AtSpeed, Interval, Predicted, Prediction, Setup};
use crate::statistics::{LEAST_FOR_CI95, midmean, typical};
use serde::Serialize;
use std::collections::BTreeMap;

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
            schedule: schedule.name.trim_end_matches(CALIBRATING).to_string(),
            devices: schedule.devices(),
            microbatches: schedule.microbatches,
            steps: run.records.len(),
        }
    }
}

/// Where runs take place.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// `cpu`, `cuda` or `timed`.
    pub(super) device_kind: &'static str,
    /// What moves messages.
    pub(super) link: &'static str,
    /// Tokens in a micro-batch.
    pub(super) microbatch_tokens: usize,
}

impl Place {
    /// Where `training` takes place.
    pub(super) fn of(training: &Training, link: &'static str) -> Place {
        Place { device_kind: training.device_kind(), link, microbatch_tokens: training.micro_batch.rows() }
    }
}

/// What an experiment found.
#[derive(Debug, Default)]
pub struct Finding {
    /// What the predictions were calibrated on, where costs were not given.
    pub calibration: Option<Calibration>,
    /// In the order asked for.
    pub outcomes: Vec<Outcome>,
    /// The same to look at.
    pub report: Report,
    /// The measured costs that predictions were made from.
    pub costs: Option<CostFile>,
    /// One device with the same micro-batches, where that was asked for.
    pub baseline: Option<Iteration>,
    /// Whether the machine was steady enough to judge, and what is to be said of the predictions.
    pub verdict: Option<Verdict>,
    /// Why it ended early, where it did.
    pub failure: Option<Error>,
    /// Memory of this process, where the devices are its threads.
    pub memory: Option<Resident>,
}

/// A prediction of every step at its own time against that step. Of the steps' errors the mean of the middle half counts: bursts of
/// other loads hit single steps, or single predictions.
struct OverSteps {
    /// Predicted / measured - 1.
    makespan_error: f64,
    /// The same of iterations.
    iteration_error: f64,
    /// The same of periods, where steps followed each other at once.
    period_error: Option<f64>,
    /// Predicted - measured, in percentage points.
    bubble_error: f64,
    /// Measured.
    makespan_ms: f64,
    /// Predicted makespan.
    expected_ms: f64,
    /// Predicted iteration.
    iteration_ms: f64,
    /// Predicted period.
    period_ms: Option<f64>,
    /// Where the measured makespan would lie.
    interval_ms: Option<Interval>,
    /// Of each step the predicted and the measured makespan.
    steps_ms: Vec<[f64; 2]>,
}

impl OverSteps {
    /// `all` is the prediction under all measured speeds, `predicted` that of the steps' own time.
    fn new(
        run: &Steps,
        all: &Predicted<'_>,
        predicted: &Predicted<'_>,
        beside: &[usize],
    ) -> Result<OverSteps, EventError> {
        let devices = f64::from(run.graph.schedule().devices());
        let here = AtSpeed { makespan: predicted.makespan(), busy: predicted.devices().iter().map(|d| d.busy).sum() };
        let expected = expected(all.at_speeds(), beside).unwrap_or_else(|| vec![here; run.records.len()]);
        let end = predicted.steps.iter().map(|step| step.end).max().unwrap_or(0).saturating_sub(here.makespan);
        let idle = |makespan: u64, busy: u64| 100.0 * (1.0 - busy as f64 / (devices * makespan.max(1) as f64)).max(0.0);
        let steps = || expected.iter().zip(&run.records);
        let ms = |ns: u64| ns as f64 / 1e6;
        let steps_ms = steps().map(|(at, record)| [at.makespan, record.makespan_ns()].map(ms)).collect();
        let logarithm = |expected: u64, found: u64| (expected.max(1) as f64 / found.max(1) as f64).ln();
        let makespans = steps().map(|(at, record)| logarithm(at.makespan, record.makespan_ns()));
        let iterations = steps().map(|(at, record)| logarithm(at.makespan + end, record.iteration_ns()));
        let bubbles =
            steps().map(|(at, record)| idle(at.makespan, at.busy) - idle(record.makespan_ns(), record.busy_ns()));
        let ratio = period_to_iteration(run, predicted)?;
        let period = |(at, record): (&AtSpeed, &StepRecord)| {
            let expected = (at.makespan + end) as f64 * ratio?;
            Some(logarithm(expected.round() as u64, record.period_ns()?))
        };
        let periods: Option<Vec<f64>> = steps().map(period).collect();
        let makespan_error = midmean(&makespans.collect::<Vec<_>>()).exp() - 1.0;
        let makespan_ms = typical(&run.records.iter().map(StepRecord::makespan_ns).collect::<Vec<_>>()) as f64 / 1e6;
        let expected_ms = typical(&expected.iter().map(|at| at.makespan).collect::<Vec<_>>()) as f64 / 1e6;
        let iteration_ms = expected_ms + end as f64 / 1e6;
        let at_speeds: Vec<u64> = all.at_speeds().iter().map(|at| at.makespan).collect();
        let ratios = if beside.is_empty() { None } else { ratios(&at_speeds, beside, SEED) };
        let scaled = |ratios: [f64; 2]| ratios.map(|ratio| ratio * expected_ms);
        Ok(OverSteps {
            makespan_error,
            iteration_error: midmean(&iterations.collect::<Vec<_>>()).exp() - 1.0,
            period_error: periods.map(|periods| midmean(&periods).exp() - 1.0),
            bubble_error: midmean(&bubbles.collect::<Vec<_>>()),
            makespan_ms,
            expected_ms,
            iteration_ms,
            period_ms: ratio.map(|ratio| ratio * iteration_ms),
            interval_ms: ratios.map(|[of_80, of_95]| Interval { within_80: scaled(of_80), within_95: scaled(of_95) }),
            steps_ms,
        })
    }
}

/// The period of as many steps as followed each other in `run`, as a share of the iteration; none where there was one at a time.
fn period_to_iteration(run: &Steps, predicted: &Predicted<'_>) -> Result<Option<f64>, EventError> {
    let count = run.records.iter().map(|record| 1 + record.following.len()).min().unwrap_or(1);
    if count == 1 {
        return Ok(None);
    }
    let successive = predicted.successive(count as u32)?;
    let iteration = successive.ends.first().copied().unwrap_or(0).max(1);
    Ok(successive.mean_period(count).map(|period| period / iteration as f64))
}

/// The error over all steps of `run` as predicted from `table`, whose speeds are those of `calibrating`.
pub(super) fn error_over_steps(
    run: &Steps,
    table: &CostTable,
    setup: &Setup,
    calibrating: &Steps,
) -> Result<f64, Error> {
    let refused = |error: EventError| Error::Usage(error.to_string());
    let beside = calibrating.all_beside(run);
    let of_its_time = table.at_speeds(&beside);
    let all = sim::predict(&run.graph, table, setup).map_err(refused)?;
    let predicted = sim::predict(&run.graph, &of_its_time, setup).map_err(refused)?;
    Ok(OverSteps::new(run, &all, &predicted, &beside).map_err(refused)?.makespan_error)
}

/// By measured step, what the speeds just before and after it give; none where there are none.
fn expected(at_speeds: &[AtSpeed], beside: &[usize]) -> Option<Vec<AtSpeed>> {
    let mean = |pair: &[usize], of: fn(&AtSpeed) -> u64| {
        pair.iter().map(|&number| of(&at_speeds[number])).sum::<u64>() / pair.len() as u64
    };
    let of_pair = |pair: &[usize]| AtSpeed { makespan: mean(pair, |at| at.makespan), busy: mean(pair, |at| at.busy) };
    (!beside.is_empty()).then(|| beside.chunks(2).map(of_pair).collect())
}

/// The makespan's error over the steps that no other load hit, nor those that they are predicted from.
fn over_undisturbed(
    run: &Steps,
    calibrating: Option<&Steps>,
    all: &Predicted<'_>,
    predicted: &Predicted<'_>,
) -> Result<Option<f64>, EventError> {
    let is_quiet = |other: &StepRecord| {
        let beside = calibrating.map_or([None; 2], |main| main.beside(other).map(|number| main.records.get(number)));
        !other.load.is_noticed() && beside.into_iter().flatten().all(|record| !record.load.is_noticed())
    };
    let records: Vec<StepRecord> = run.records.iter().filter(|record| is_quiet(record)).cloned().collect();
    let quiet = Steps { records, ..run.clone() };
    let beside = calibrating.map(|main| main.all_beside(&quiet)).unwrap_or_default();
    if quiet.records.is_empty() {
        return Ok(None);
    }
    Ok(Some(OverSteps::new(&quiet, all, predicted, &beside)?.makespan_error))
}

impl Finding {
    /// Nothing found yet.
    pub(super) fn new(title: String, training: &Training, link: &str) -> Finding {
        let mut provenance = provenance::of(training);
        provenance.insert("link".to_string(), link.to_string());
        let c = training.config();
        let subtitle = format!(
            "GPT-2 with {} blocks, {} heads, {} channels, vocabulary {}; micro-batches of {} x {} tokens; {}; {}",
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
        Finding { report, ..Finding::default() }
    }

    /// Predicts `run` from `table` and holds it against what was measured. The table's speeds are those of `calibrating`; none where
    /// costs do not follow the machine.
    pub(super) fn judge(
        &mut self,
        run: &Steps,
        table: &CostTable,
        setup: &Setup,
        (place, calibrating): (Place, Option<&Steps>),
    ) -> Result<(), Error> {
        let schedule = run.graph.schedule();
        let refused = |error: EventError| Error::Usage(error.to_string());
        let all = sim::predict(&run.graph, table, setup).map_err(refused)?;
        let beside = &calibrating.map(|main| main.all_beside(run)).unwrap_or_default();
        let of_its_time = table.at_speeds(beside);
        let costs = if beside.is_empty() { table } else { &of_its_time };
        let predicted = sim::predict(&run.graph, costs, setup).map_err(refused)?;
        let over_steps = OverSteps::new(run, &all, &predicted, beside).map_err(refused)?;
        let undisturbed = over_undisturbed(run, calibrating, &all, &predicted).map_err(refused)?;
        let mut panel = Panel::predicted(&predicted);
        let median_step = run.median_step();
        let mut measured_timeline = median_step.timeline(&run.graph, table.keep.share());
        measured_timeline.held_against(&panel.timeline);
        let mut predicted = predicted.prediction;
        predicted.interval = over_steps.interval_ms;
        for timeline in [&mut panel.timeline, &mut measured_timeline] {
            timeline.provenance = self.report.provenance.clone();
        }
        let mut error = compare::compare(&panel.timeline, &measured_timeline).unwrap_or_default();
        error.steps = Some(run.records.len());
        error.noise = noise(&over_steps.steps_ms);
        error.typical_makespan = Some(over_steps.makespan_error);
        error.typical_iteration = Some(over_steps.iteration_error);
        error.typical_period = over_steps.period_error;
        error.self_replay = Some(compare::self_replay(&run.graph, table, &run.records));
        let (iteration, wall, period) = (iteration(run), wall(run), period(run));
        let metrics = measured_timeline.metrics();
        let measured = Prediction {
            metrics: metrics.clone(),
            iteration: predicted.iteration.map(|_| median_step.iteration_ns() as f64 / 1e6),
            period: period.map(|period| period.median),
            ..predicted.clone()
        };
        let tokens = f64::from(schedule.microbatches) * place.microbatch_tokens as f64;
        let outcome = Outcome {
            schedule: schedule.name.clone(),
            transfer: None,
            devices: schedule.devices(),
            microbatches: schedule.microbatches,
            device_kind: place.device_kind,
            link: place.link,
            steps: run.records.len(),
            losses: run.records.iter().flat_map(StepRecord::losses).collect(),
            tokens_per_second: tokens / (wall.median / 1e3).max(1e-9),
            iteration_ms: iteration,
            period_ms: period,
            wall_ms: wall,
            error: Errors {
                makespan: error.makespan,
                noise: error.noise,
                typical_makespan: over_steps.makespan_error,
                undisturbed_makespan: undisturbed,
                uncontended_makespan: None,
                typical_bubble: over_steps.bubble_error,
                typical_iteration: over_steps.iteration_error,
                typical_period: over_steps.period_error,
                bubble: error.bubble,
                op_start_p95: error.op_start_p95,
                self_replay: error.self_replay.unwrap_or_default(),
            },
            typical_makespan_ms: over_steps.makespan_ms,
            expected_makespan_ms: over_steps.expected_ms,
            expected_iteration_ms: over_steps.iteration_ms,
            expected_period_ms: over_steps.period_ms,
            measured,
            predicted,
            step_makespans_ms: over_steps.steps_ms,
        };
        self.report.entries.push(Entry {
            point: None,
            name: schedule.name.clone(),
            predicted: Some(panel),
            measured: Some(Panel::new(measured_timeline, metrics)),
            error: Some(error),
            over_steps: outcome.over_steps(),
            step_ms: outcome.step_makespans_ms.iter().map(|[_, measured]| *measured).collect(),
            notes: Vec::new(),
        });
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Findings of several links as one, in which the link's name tells entries apart.
    pub fn merged(findings: Vec<Finding>) -> Finding {
        let several = findings.len() > 1;
        let mut all = Finding::default();
        for (number, mut more) in findings.into_iter().enumerate() {
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

    /// Sums up verdict, speeds and losses in the report.
    pub(super) fn tabulate(&mut self) {
        self.verdict = Verdict::of(&self.outcomes);
        self.report.verdict = self.verdict.as_ref().map_or_else(String::new, |verdict| verdict.text.clone());
        self.report.extra_tables = extra_tables(&self.outcomes, self.baseline);
    }
}

/// Speed and losses as tables.
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
        let cell = || o.and_then(|o| Some((o.period_ms?, o.error.typical_period?)));
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
    let speed = Table {
        caption: "Training speed: whole steps, the optimizer included".to_string(),
        header: ["schedule", "step time ms", if few { "range" } else { "95 % interval" }, "tokens/s"]
            .into_iter()
            .chain(base.map(|_| column))
            .chain(["period ms, without a barrier", "its error"].into_iter().filter(|_| is_in_a_row))
            .map(str::to_string)
            .collect(),
        rows: baseline
            .map(|one| row("one device", one, String::new()).into_iter().chain(period(None)).collect())
            .into_iter()
            .chain(outcomes.iter().map(of_outcome))
            .collect(),
    };
    let mut rows: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for outcome in outcomes {
        for (step, loss) in outcome.losses.iter().enumerate() {
            rows.entry(step).or_insert_with(|| vec![step.to_string()]).push(format!("{loss:.6}"));
        }
    }
    let header = ["step".to_string()].into_iter().chain(outcomes.iter().map(label)).collect();
    let losses = Table {
        caption: "Loss of each training step, before its update".to_string(),
        header,
        rows: rows.into_values().collect(),
    };
    let trained = !losses.rows.is_empty();
    [Some(speed), Some(losses).filter(|_| trained)].into_iter().flatten().collect()
}
