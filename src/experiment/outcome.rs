//! One measured run held against its prediction: figures for the contract, an entry for the report, tables for people.

use super::compare;
use super::training::Measured;
use crate::cost::{CostTable, StepCosts};
use crate::report::{Entry, Panel, Table};
use crate::sim::{self, Prediction};
use crate::statistics::{median, median_ci95};
use serde::Serialize;
use std::collections::BTreeMap;

/// The iteration time over the steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Iteration {
    /// Median.
    pub median: f64,
    /// 95 % confidence interval of the median.
    pub ci95: [f64; 2],
}

/// The errors that the contract names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// predicted / measured - 1.
    pub makespan: f64,
    /// Percentage points.
    pub bubble: f64,
    /// 95th percentile, as a fraction of the iteration.
    pub op_start_p95: f64,
    /// The run's own durations fed back.
    pub self_replay: f64,
}

/// Where runs took place.
#[derive(Clone, Debug)]
pub struct Place {
    /// `cpu`, `cuda` or `timed`.
    pub device_kind: &'static str,
    /// What moved messages.
    pub link: &'static str,
    /// Machine, date, commit and the like.
    pub provenance: BTreeMap<String, String>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The schedule's name.
    pub schedule: String,
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// `cpu`, `cuda` or `timed`.
    pub device_kind: &'static str,
    /// `local`, `copy`, `nvshmem`, `nccl` or `mpi`.
    pub link: &'static str,
    /// Loss of each training step before its update; empty for timed devices.
    pub losses: Vec<f64>,
    /// Of the median iteration.
    pub tokens_per_second: f64,
    /// Over the steps.
    pub iteration_ms: Iteration,
    /// From the calibrated costs.
    pub predicted: Prediction,
    /// Of the step with the most typical makespan and busy time.
    pub measured: Prediction,
    /// Prediction against measurement.
    pub error: Errors,
}

/// The iteration time of a run in ms.
pub fn iteration(run: &Measured) -> Iteration {
    let iterations: Vec<f64> = run.records.iter().map(|record| record.iteration_ns() as f64 / 1e6).collect();
    Iteration { median: median(&iterations), ci95: median_ci95(&iterations) }
}

/// Predicts `run` from `table` and holds it against what was measured.
pub fn judge(
    run: &Measured,
    table: &CostTable,
    steps: &StepCosts,
    place: &Place,
    microbatch_tokens: usize,
) -> (Outcome, Entry) {
    let schedule = run.graph.schedule();
    let (predicted, times, step_spans) = sim::predict(&run.graph, table, steps);
    let mut predicted_timeline = predicted.timeline(&run.graph, table, &times, &step_spans);
    let mut measured_timeline = run.typical_step().timeline(&run.graph, table.keep);
    for timeline in [&mut predicted_timeline, &mut measured_timeline] {
        timeline.provenance = place.provenance.clone();
    }
    let mut error = compare::compare(&predicted_timeline, &measured_timeline).unwrap_or_default();
    compare::refine(&mut error, (&predicted_timeline, &predicted.metrics), &run.graph, table, &run.records);
    let iteration = iteration(run);
    let metrics = measured_timeline.metrics();
    let measured = Prediction { metrics: metrics.clone(), ..predicted.clone() };
    let tokens = f64::from(schedule.microbatches) * microbatch_tokens as f64;
    let outcome = Outcome {
        schedule: schedule.name.clone(),
        devices: schedule.devices(),
        microbatches: schedule.microbatches,
        device_kind: place.device_kind,
        link: place.link,
        losses: run.records.iter().filter_map(|record| record.loss).collect(),
        tokens_per_second: tokens / (iteration.median / 1e3).max(1e-9),
        iteration_ms: iteration,
        error: Errors {
            makespan: error.makespan,
            bubble: error.bubble,
            op_start_p95: error.op_start_p95,
            self_replay: error.self_replay,
        },
        measured,
        predicted,
    };
    let entry = Entry {
        name: schedule.name.clone(),
        predicted: Some(Panel { timeline: predicted_timeline, metrics: outcome.predicted.metrics.clone() }),
        measured: Some(Panel { timeline: measured_timeline, metrics }),
        error: Some(error),
        notes: Vec::new(),
    };
    (outcome, entry)
}

/// Speed and losses as tables.
pub fn extra_tables(outcomes: &[Outcome], baseline: Option<Iteration>) -> Vec<Table> {
    let naive = outcomes.iter().find(|o| o.schedule == "naive").map(|o| o.iteration_ms);
    let (base, column) = if baseline.is_some() { (baseline, "against one device") } else { (naive, "against naive") };
    let row = |name: &str, Iteration { median, ci95: [low, high] }: Iteration, tokens_per_second: String| {
        vec![
            name.to_string(),
            format!("{median:.1}"),
            format!("{low:.1} to {high:.1}"),
            tokens_per_second,
            base.map_or_else(String::new, |base| format!("{:.2} x", base.median / median)),
        ]
    };
    let several = outcomes.windows(2).any(|pair| pair[0].link != pair[1].link);
    let label = |o: &Outcome| if several { format!("{} ({})", o.schedule, o.link) } else { o.schedule.clone() };
    let of_outcome = |o: &Outcome| row(&label(o), o.iteration_ms, format!("{:.0}", o.tokens_per_second));
    let speed = Table {
        caption: "Training speed".to_string(),
        header: ["schedule", "iteration ms", "95 % interval", "tokens/s", column].map(str::to_string).to_vec(),
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
