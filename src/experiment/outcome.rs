//! One measured run held against its prediction: the figures of the contract.

use super::Steps;
use crate::exec::StepRecord;
use crate::sim::Prediction;
use crate::statistics::{median, median_ci95};
use serde::Serialize;

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
    /// Predicted makespan / measured makespan - 1, of what an [`Outcome`] calls `predicted` and `measured`: above 0 it was
    /// predicted too long.
    pub makespan: f64,
    /// How far single steps reach from that: the noise of the steps; none of fewer than three.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// The same over all steps, of which the mean of the middle half counts: each step's prediction is of its own time.
    pub typical_makespan: f64,
    /// That over the steps that no other load hit; none where there is no such step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undisturbed_makespan: Option<f64>,
    /// The same as `typical_makespan` where neighbours are taken to cost nothing, from ops as long as they were beside each other; none
    /// where they do cost nothing, or that was not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncontended_makespan: Option<f64>,
    /// Predicted bubble - measured bubble over all steps, so, in percentage points.
    pub typical_bubble: f64,
    /// The same of iterations as of makespans, what ends a step included.
    pub typical_iteration: f64,
    /// The same of periods, where steps followed each other at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typical_period: Option<f64>,
    /// Predicted bubble - measured bubble, in percentage points (the others are fractions).
    pub bubble: f64,
    /// 95th percentile over ops of |predicted start - measured start|, as a fraction of the iteration.
    pub op_start_p95: f64,
    /// Makespan error when each step's own durations are fed back into the simulation.
    pub self_replay: f64,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The schedule's name.
    pub schedule: String,
    /// What is trained otherwise than where costs were measured; none where it is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer: Option<String>,
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// `cpu`, `cuda` or `timed`.
    pub device_kind: &'static str,
    /// `local`, `copy`, `nvshmem`, `nccl` or `mpi`.
    pub link: &'static str,
    /// How often its turn came: measured steps, or rows of steps.
    pub steps: usize,
    /// Loss of each training step before its update; empty for timed devices.
    pub losses: Vec<f64>,
    /// Of the median of `wall_ms`.
    pub tokens_per_second: f64,
    /// The pipeline and what ends a step, over the steps: what is predicted.
    pub iteration_ms: Iteration,
    /// From one step's end to the next one's, over the steps, where they followed each other at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<Iteration>,
    /// From the tokens in the host's memory to the loss back there, by the host's clock, over the steps.
    pub wall_ms: Iteration,
    /// From the calibrated costs.
    pub predicted: Prediction,
    /// Mean of the middle four fifths of the measured makespans.
    pub typical_makespan_ms: f64,
    /// The same of what was predicted for these steps, each at its own time.
    pub expected_makespan_ms: f64,
    /// The same of iterations, what ends a step included.
    pub expected_iteration_ms: f64,
    /// The same of periods, where steps followed each other at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_period_ms: Option<f64>,
    /// Of the step nearest to the median makespan.
    pub measured: Prediction,
    /// Of each step: the makespan predicted for its own time, and the measured one.
    #[serde(skip)]
    pub step_makespans_ms: Vec<[f64; 2]>,
    /// Prediction against measurement.
    pub error: Errors,
}

impl Outcome {
    /// What stands over all steps, by name.
    pub(super) fn over_steps(&self) -> Vec<(&'static str, f64)> {
        let Iteration { median, ci95: [low, high] } = self.iteration_ms;
        let mut columns = vec![
            ("iteration_ms_median", median),
            ("iteration_ms_low", low),
            ("iteration_ms_high", high),
            ("wall_ms_median", self.wall_ms.median),
            ("tokens_per_second", self.tokens_per_second),
        ];
        columns.extend(self.period_ms.map(|period| ("period_ms_median", period.median)));
        columns
    }
}

/// The iteration time of a run in ms.
pub(super) fn iteration(run: &Steps) -> Iteration {
    over_steps(run, StepRecord::iteration_ns)
}

/// From one step's end to the next one's in ms, where steps followed each other at once.
pub(super) fn period(run: &Steps) -> Option<Iteration> {
    let all: Option<Vec<u64>> = run.records.iter().map(StepRecord::period_ns).collect();
    all.filter(|all| !all.is_empty()).map(|all| of_times(all.into_iter()))
}

/// A step's time by the host's clock, in ms.
pub(super) fn wall(run: &Steps) -> Iteration {
    over_steps(run, |record| record.wall_ns)
}

fn over_steps(run: &Steps, ns: impl Fn(&StepRecord) -> u64) -> Iteration {
    of_times(run.records.iter().map(ns))
}

fn of_times(ns: impl Iterator<Item = u64>) -> Iteration {
    let times: Vec<f64> = ns.map(|ns| ns as f64 / 1e6).collect();
    Iteration { median: median(&times), ci95: median_ci95(&times) }
}
