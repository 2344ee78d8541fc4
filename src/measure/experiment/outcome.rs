//! One measured run compared with its prediction: the figures of the contract.

use super::Steps;
use pipesim_exec::StepRecord;
use pipesim_models::model_spec::MicroBatch;
use pipesim_report::Comparison;
use pipesim_schedule::op::Kind;
use pipesim_schedule::statistics::{median, median_ci95, midmean};
use pipesim_sim::PredictionFigures;
use pipesim_train::model::Config;
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
    pub measured: PredictionFigures,
    /// For each step the makespan predicted at the machine's speed around it, and the measured one.
    #[serde(skip)]
    pub step_makespans_ms: Vec<[f64; 2]>,
    /// Prediction compared with measurement. In a report of accuracy the makespan's is over all steps, each predicted at the machine's
    /// speed around it: the mean of the middle half.
    #[serde(serialize_with = "Comparison::serialize_figures")]
    pub error: Comparison,
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

/// Sizes of a model and of its training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Number of transformer blocks.
    pub blocks: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Width of the hidden state.
    pub channels: usize,
    /// Number of token ids, without padding.
    pub vocabulary: usize,
    /// Tokens per sequence.
    pub sequence_tokens: usize,
    /// Sequences per step, of all micro-batches and replicas.
    pub sequences: usize,
    /// Number of parameters, without padding.
    pub parameters: u64,
    /// FLOPs of the matrix products of forward and backward per token: two per multiply-add, and the full square of attention scores.
    pub flops_per_token: u64,
}

impl Work {
    /// Returns the work of a step on `step`, all sequences of the step together.
    pub fn new(config: &Config, step: MicroBatch) -> Work {
        let spec = config.spec();
        let flops: u128 = [Kind::F, Kind::B].iter().map(|&kind| spec.flops(kind, step)).sum();
        Work {
            blocks: config.layers,
            heads: config.heads,
            channels: config.channels,
            vocabulary: config.vocabulary,
            sequence_tokens: step.tokens,
            sequences: step.sequences,
            parameters: spec.parameters() as u64,
            flops_per_token: (flops / (step.rows() as u128).max(1)) as u64,
        }
    }
}
