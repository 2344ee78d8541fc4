//! What an experiment found, as numbers and to look at.

use super::measure::CALIBRATING;
use super::outcome::{iteration, wall};
use super::room::Resident;
use super::{Error, Errors, Iteration, Measured, Outcome, Training, compare, provenance};
use crate::cost::{CostFile, CostTable};
use crate::report::{Entry, Panel, Report, Table};
use crate::sim::{self, Prediction, Setup};
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
    pub(super) fn of(run: &Measured) -> Calibration {
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

    /// Predicts `run` from `table` and holds it against what was measured.
    pub(super) fn judge(&mut self, run: &Measured, table: &CostTable, setup: &Setup, place: Place) {
        let schedule = run.graph.schedule();
        let predicted = sim::predict(&run.graph, table, setup).expect("only a machine makes predictions fail");
        let mut panel = Panel::predicted(&predicted);
        let mut measured_timeline = run.typical_step().timeline(&run.graph, table.keep.share());
        measured_timeline.held_against(&panel.timeline);
        let predicted = predicted.prediction;
        for timeline in [&mut panel.timeline, &mut measured_timeline] {
            timeline.provenance = self.report.provenance.clone();
        }
        let mut error = compare::compare(&panel.timeline, &measured_timeline).unwrap_or_default();
        compare::refine(&mut error, &predicted.metrics, &run.graph, table, &run.records);
        let (iteration, wall) = (iteration(run), wall(run));
        let metrics = measured_timeline.metrics();
        let measured = Prediction { metrics: metrics.clone(), ..predicted.clone() };
        let tokens = f64::from(schedule.microbatches) * place.microbatch_tokens as f64;
        let outcome = Outcome {
            schedule: schedule.name.clone(),
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
                median_makespan: error.median_makespan.unwrap_or_default(),
                bubble: error.bubble,
                op_start_p95: error.op_start_p95,
                self_replay: error.self_replay.unwrap_or_default(),
            },
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
