//! One measured run held against its prediction: figures for the contract, an entry for the report, tables for people.

use super::{Measured, Training, compare, provenance};
use crate::cost::CostTable;
use crate::report::{Entry, Panel};
use crate::sim::{self, Prediction, Setup};
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
pub(super) struct Place {
    /// `cpu`, `cuda` or `timed`.
    pub(super) device_kind: &'static str,
    /// What moved messages.
    pub(super) link: &'static str,
    /// Machine, date, commit and the like.
    pub(super) provenance: BTreeMap<String, String>,
}

impl Place {
    /// Where `training` takes place.
    pub(super) fn of(training: &Training, link: &'static str) -> Place {
        let mut provenance = provenance::of(training);
        provenance.insert("link".to_string(), link.to_string());
        Place { device_kind: training.device_kind(), link, provenance }
    }

    /// Here, on clocks.
    pub(super) fn timed(link: &'static str) -> Place {
        Place { device_kind: "timed", link, provenance: provenance::here() }
    }
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
pub(super) fn iteration(run: &Measured) -> Iteration {
    let iterations: Vec<f64> = run.records.iter().map(|record| record.iteration_ns() as f64 / 1e6).collect();
    Iteration { median: median(&iterations), ci95: median_ci95(&iterations) }
}

/// Predicts `run` from `table` and holds it against what was measured.
pub(super) fn judge(
    run: &Measured,
    table: &CostTable,
    setup: &Setup,
    place: &Place,
    microbatch_tokens: usize,
) -> (Outcome, Entry) {
    let schedule = run.graph.schedule();
    let predicted = sim::predict(&run.graph, table, setup).expect("only a machine makes predictions fail");
    let mut predicted_timeline = predicted.timeline();
    let mut measured_timeline = run.typical_step().timeline(&run.graph, table.keep);
    measured_timeline.lower_bound_ns = predicted_timeline.lower_bound_ns;
    let predicted = predicted.prediction;
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
