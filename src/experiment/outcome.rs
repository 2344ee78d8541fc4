//! One measured run compared with its prediction: the figures of the contract.

use super::{Steps, Work};
use crate::cost::Summary;
use crate::exec::StepRecord;
use crate::metrics::Metrics;
use crate::sim::PredictionFigures;
use crate::statistics::{median, median_ci95, midmean};
use serde::Serialize;

/// A time over the steps, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Iteration {
    /// Median.
    pub median: f64,
    /// 95 % confidence interval of the median.
    pub ci95: [f64; 2],
}

impl Iteration {
    fn of(ns: impl Iterator<Item = u64>) -> Iteration {
        let times: Vec<f64> = ns.map(|ns| ns as f64 / 1e6).collect();
        Iteration { median: median(&times), ci95: median_ci95(&times) }
    }

    /// The pipeline and the step ops after it.
    pub(super) fn of_iterations(run: &Steps) -> Iteration {
        Iteration::of(run.records.iter().map(StepRecord::iteration_ns))
    }

    /// From one step's end to the next one's; `None` if steps did not follow each other without a barrier.
    pub(super) fn of_periods(run: &Steps) -> Option<Iteration> {
        let all: Option<Vec<u64>> = run.records.iter().map(StepRecord::period_ns).collect();
        all.filter(|all| !all.is_empty()).map(|all| Iteration::of(all.into_iter()))
    }

    /// Whole steps by the host's clock.
    pub(super) fn of_walls(run: &Steps) -> Iteration {
        Iteration::of(run.records.iter().map(|record| record.wall_ns))
    }
}

/// Errors of a prediction, one per quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// Predicted makespan / measured makespan - 1: above 0 the prediction is too long. In a report of accuracy over all steps, each
    /// predicted at the machine's speed around it: the mean of the middle half.
    pub makespan: f64,
    /// Noise of the steps: how far predicted / measured of single steps reaches from its median. `None` below three steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// Predicted iteration / measured iteration - 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration: Option<f64>,
    /// Predicted period / measured period - 1, if steps followed each other without a barrier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<f64>,
    /// Predicted bubble - measured bubble, in percentage points (the others are fractions).
    pub bubble: f64,
    /// 95th percentile over ops of |predicted start - measured start|, as a fraction of the iteration.
    pub op_start_p95: f64,
    /// Makespan error when each step's own durations are fed back into the simulation.
    pub self_replay: f64,
}

/// What was measured of a run, under the names of its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// The schedule's name.
    pub schedule: String,
    /// p.
    pub devices: u32,
    /// v.
    pub chunks: u32,
    /// m.
    pub microbatches: u32,
    /// `ms`.
    pub time_unit: String,
    /// Costs of the prediction.
    pub costs: Summary,
    /// The figures of the step nearest to the median makespan.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Duration of that step with its step ops, if they are predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration: Option<f64>,
    /// Median time from one step's end to the next one's, if steps followed each other without a barrier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<f64>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The schedule's name.
    pub schedule: String,
    /// How the training differs from the one that costs were measured in; `None` if it does not.
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
    /// Sizes of the model and of a step; `None` for timed devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Number of measured steps, or of rows of steps without a barrier.
    pub steps: usize,
    /// Loss of each training step before its update; empty for timed devices.
    pub losses: Vec<f64>,
    /// Tokens per second at the median of `wall_ms`.
    pub tokens_per_second: f64,
    /// The pipeline and the step ops after it, over the steps.
    pub iteration_ms: Iteration,
    /// From one step's end to the next one's, over the steps, if they followed each other without a barrier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<Iteration>,
    /// From the tokens in the host's memory to the loss back there, by the host's clock, over the steps.
    pub wall_ms: Iteration,
    /// The prediction from the calibrated costs.
    pub predicted: PredictionFigures,
    /// The step nearest to the median makespan.
    pub measured: Measurement,
    /// For each step the makespan predicted at the machine's speed around it, and the measured one.
    #[serde(skip)]
    pub step_makespans_ms: Vec<[f64; 2]>,
    /// Prediction compared with measurement.
    pub error: Errors,
}

impl Outcome {
    /// Returns the makespan error over all steps: the mean of the middle half, as bursts of other loads hit single steps.
    pub(super) fn makespan_error_over_steps(&self) -> f64 {
        let logarithm = |[predicted, measured]: &[f64; 2]| (predicted / measured.max(f64::MIN_POSITIVE)).ln();
        midmean(&self.step_makespans_ms.iter().map(logarithm).collect::<Vec<_>>()).exp() - 1.0
    }

    /// Returns the figures over all steps, by column name.
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
