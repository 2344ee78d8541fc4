//! What an experiment found, as numbers and to look at.

use super::interval::{SEED, ratios};
use super::measure::CALIBRATING;
use super::outcome::{iteration, wall};
use super::room::Resident;
use super::{Error, Errors, Iteration, Outcome, Steps, Training, compare, provenance};
use crate::cost::{CostFile, CostTable};
use crate::exec::StepRecord;
use crate::report::{Entry, Panel, Report, Table};
use crate::sim::event::EventError;
use crate::sim::{self, AtSpeed, Interval, Predicted, Prediction, Setup};
use crate::statistics::typical;
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
    /// Why it ended early, where it did.
    pub failure: Option<Error>,
    /// Memory of this process, where the devices are its threads.
    pub memory: Option<Resident>,
}

/// A prediction of the times of all steps against all steps. Of each the mean of the middle four fifths counts.
struct OverSteps {
    /// Predicted / measured - 1.
    makespan_error: f64,
    /// The same of iterations.
    iteration_error: f64,
    /// Predicted - measured, in percentage points.
    bubble_error: f64,
    /// Measured.
    makespan_ms: f64,
    /// Where the measured makespan would lie.
    interval_ms: Option<Interval>,
}

impl OverSteps {
    /// `all` is the prediction under all measured speeds, `predicted` that of the steps' own time.
    fn new(run: &Steps, all: &Predicted<'_>, predicted: &Predicted<'_>, beside: &[usize]) -> OverSteps {
        let devices = u64::from(run.graph.schedule().devices());
        let mean = |pair: &[usize], of: fn(&AtSpeed) -> u64| {
            pair.iter().map(|&number| of(&all.at_speeds()[number])).sum::<u64>() / pair.len() as u64
        };
        let here = AtSpeed { makespan: predicted.makespan(), busy: predicted.devices().iter().map(|d| d.busy).sum() };
        let expected: Vec<AtSpeed> = match beside {
            [] => vec![here],
            pairs => pairs
                .chunks(2)
                .map(|pair| AtSpeed { makespan: mean(pair, |at| at.makespan), busy: mean(pair, |at| at.busy) })
                .collect(),
        };
        let busy = |record: &StepRecord| record.devices.iter().flat_map(|d| &d.ops).map(|op| op.end - op.start).sum();
        let found: Vec<AtSpeed> =
            run.records.iter().map(|record| AtSpeed { makespan: record.makespan_ns(), busy: busy(record) }).collect();
        let makespan = |steps: &[AtSpeed]| typical(&steps.iter().map(|at| at.makespan).collect::<Vec<_>>()) as f64;
        let bubble = |steps: &[AtSpeed]| {
            let idle = |at: &AtSpeed| {
                let busy = u128::from(at.busy) * 1_000_000_000 / u128::from(devices * at.makespan.max(1));
                1_000_000_000 - busy.min(1_000_000_000) as u64
            };
            typical(&steps.iter().map(idle).collect::<Vec<_>>()) as f64 / 1e7
        };
        let iteration = typical(&run.records.iter().map(StepRecord::iteration_ns).collect::<Vec<_>>()) as f64;
        let end = predicted.steps.iter().map(|step| step.end).max().unwrap_or(0).saturating_sub(here.makespan) as f64;
        let makespans: Vec<u64> = all.at_speeds().iter().map(|at| at.makespan).collect();
        let ratios = if beside.is_empty() { None } else { ratios(&makespans, beside, SEED) };
        let ms = |ratios: [f64; 2]| ratios.map(|ratio| ratio * makespan(&expected) / 1e6);
        OverSteps {
            makespan_error: compare::ratio(makespan(&expected), makespan(&found)),
            iteration_error: compare::ratio(makespan(&expected) + end, iteration),
            bubble_error: bubble(&expected) - bubble(&found),
            makespan_ms: makespan(&found) / 1e6,
            interval_ms: ratios.map(|[of_80, of_95]| Interval { within_80: ms(of_80), within_95: ms(of_95) }),
        }
    }
}

/// The makespan's error over the steps that no other load hit.
fn over_undisturbed(run: &Steps, all: &Predicted<'_>, predicted: &Predicted<'_>, beside: &[usize]) -> Option<f64> {
    let quiet = run.undisturbed();
    let is_quiet = |number: usize| !run.records[number / 2].load.is_noticed();
    let beside: Vec<usize> =
        (0..beside.len()).filter(|&number| is_quiet(number)).map(|number| beside[number]).collect();
    (!quiet.records.is_empty()).then(|| OverSteps::new(&quiet, all, predicted, &beside).makespan_error)
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

    /// Predicts `run` from `table` and holds it against what was measured. `beside` are the numbers of the table's speeds just
    /// before and after each of its steps, two a step; none where costs do not follow the machine.
    pub(super) fn judge(
        &mut self,
        run: &Steps,
        table: &CostTable,
        setup: &Setup,
        (place, beside): (Place, &[usize]),
    ) -> Result<(), Error> {
        let schedule = run.graph.schedule();
        let refused = |error: EventError| Error::Usage(error.to_string());
        let all = sim::predict(&run.graph, table, setup).map_err(refused)?;
        let of_its_time = table.at_speeds(beside);
        let costs = if beside.is_empty() { table } else { &of_its_time };
        let predicted = sim::predict(&run.graph, costs, setup).map_err(refused)?;
        let over_steps = OverSteps::new(run, &all, &predicted, beside);
        let undisturbed = over_undisturbed(run, &all, &predicted, beside);
        let mut panel = Panel::predicted(&predicted);
        let mut measured_timeline = run.typical_step().timeline(&run.graph, table.keep.share());
        measured_timeline.held_against(&panel.timeline);
        let mut predicted = predicted.prediction;
        predicted.interval = over_steps.interval_ms;
        for timeline in [&mut panel.timeline, &mut measured_timeline] {
            timeline.provenance = self.report.provenance.clone();
        }
        let mut error = compare::compare(&panel.timeline, &measured_timeline).unwrap_or_default();
        error.typical_makespan = Some(over_steps.makespan_error);
        error.self_replay = Some(compare::self_replay(&run.graph, table, &run.records));
        let (iteration, wall) = (iteration(run), wall(run));
        let metrics = measured_timeline.metrics();
        let measured = Prediction { metrics: metrics.clone(), ..predicted.clone() };
        let tokens = f64::from(schedule.microbatches) * place.microbatch_tokens as f64;
        let outcome = Outcome {
            schedule: schedule.name.clone(),
            transfer: None,
            devices: schedule.devices(),
            microbatches: schedule.microbatches,
            device_kind: place.device_kind,
            link: place.link,
            losses: run.records.iter().filter_map(|record| record.loss).collect(),
            tokens_per_second: tokens / (wall.median / 1e3).max(1e-9),
            iteration_ms: iteration,
            wall_ms: wall,
            error: Errors {
                makespan: error.makespan,
                typical_makespan: over_steps.makespan_error,
                undisturbed_makespan: undisturbed,
                typical_bubble: over_steps.bubble_error,
                typical_iteration: over_steps.iteration_error,
                bubble: error.bubble,
                op_start_p95: error.op_start_p95,
                self_replay: error.self_replay.unwrap_or_default(),
            },
            typical_makespan_ms: over_steps.makespan_ms,
            measured,
            predicted,
        };
        self.report.entries.push(Entry {
            point: None,
            name: schedule.name.clone(),
            predicted: Some(panel),
            measured: Some(Panel::new(measured_timeline, metrics)),
            error: Some(error),
            over_steps: outcome.over_steps(),
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

    /// Sums up speeds and losses in the report.
    pub(super) fn tabulate(&mut self) {
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
    let several = outcomes.windows(2).any(|pair| pair[0].link != pair[1].link);
    let label = |o: &Outcome| if several { format!("{} ({})", o.schedule, o.link) } else { o.schedule.clone() };
    let of_outcome = |o: &Outcome| row(&label(o), o.iteration_ms, format!("{:.0}", o.tokens_per_second));
    let speed = Table {
        caption: "Training speed".to_string(),
        header: ["schedule", "median iteration ms", "95 % interval", "tokens/s"]
            .into_iter()
            .chain(base.map(|_| column))
            .map(str::to_string)
            .collect(),
        rows: baseline
            .map(|one| row("one device", one, String::new()))
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
    vec![speed, losses]
}
