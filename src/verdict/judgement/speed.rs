//! How fast a measured step is, with the count of FLOPs and the peak that each number refers to.

use super::counted::FlopCount;
use pipesim_cost::analytic::Analytic;
use pipesim_report::percent;
use serde::Serialize;
use std::fmt;

/// Relative difference up to which a printed number is one of this program's counts.
const SAME: f64 = 0.02;

/// How fast a measured step is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Tokens per second and GPU.
    pub tokens_per_s_per_gpu: f64,
    /// TFLOP/s per GPU: products and all scores, without recomputation.
    pub model_tflops_per_gpu: f64,
    /// The same with half of the scores, as Megatron prints since 2025-03-06.
    pub half_scores_tflops_per_gpu: f64,
    /// The same as `model_tflops_per_gpu` with what the backward recomputes.
    pub hardware_tflops_per_gpu: f64,
    /// Share of `peak_tflops` in `model_tflops_per_gpu`.
    pub mfu: f64,
    /// The GPU's dense 16-bit peak, in TFLOP/s.
    pub peak_tflops: f64,
    /// What the log prints, in TFLOP/s per GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub printed_tflops: Option<f64>,
    /// The count that it is in; `None` if it is none of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub printed_count: Option<FlopCount>,
}

impl Speed {
    /// Whether it is above every peak that a GPU has: those of fewer bits are at most four times the 16-bit one.
    pub fn is_impossible(&self) -> bool {
        self.peak_tflops > 0.0 && self.mfu > 4.0
    }

    /// Returns the speed of a step of this many seconds, of which a log printed `printed_tflops`.
    pub fn new(analytic: &Analytic, step_s: f64, printed_tflops: Option<f64>) -> Speed {
        let gpus = analytic.layout.gpus() as f64;
        let tflops = |count: FlopCount| count.of_step(analytic) / gpus / 1e12 / step_s;
        let off = |count: FlopCount, printed: f64| (printed / tflops(count)).ln().abs();
        let nearest = |printed: f64| {
            let all = [FlopCount::HalfScores, FlopCount::Model, FlopCount::Hardware];
            let nearest = all.into_iter().min_by(|a, b| off(*a, printed).total_cmp(&off(*b, printed)));
            nearest.filter(|count| off(*count, printed) < SAME)
        };
        let (model, peak) = (tflops(FlopCount::Model), analytic.machine.hardware.bf16_tflops);
        Speed {
            tokens_per_s_per_gpu: analytic.layout.tokens() as f64 / gpus / step_s,
            model_tflops_per_gpu: model,
            half_scores_tflops_per_gpu: tflops(FlopCount::HalfScores),
            hardware_tflops_per_gpu: tflops(FlopCount::Hardware),
            mfu: model / peak,
            peak_tflops: peak,
            printed_tflops,
            printed_count: printed_tflops.and_then(nearest),
        }
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Speed {
            tokens_per_s_per_gpu: tokens, model_tflops_per_gpu: model, half_scores_tflops_per_gpu: half, ..
        } = self;
        write!(
            f,
            "Measured: {tokens:.0} tokens/s per GPU; {model:.1} TFLOP/s per GPU with all attention scores, {half:.1} with half of them \
             (Megatron's print since 2025-03-06); MFU {} of the dense 16-bit peak of {} TFLOP/s, all scores, no recomputation.",
            percent(self.mfu),
            self.peak_tflops
        )?;
        let Some(printed) = self.printed_tflops else { return Ok(()) };
        let count = match self.printed_count {
            Some(FlopCount::Model) => "all scores: Megatron before 2025-03-06, torchtitan",
            Some(FlopCount::HalfScores) => "half of the scores: Megatron since 2025-03-06",
            Some(FlopCount::Hardware) => "with recomputation",
            None => "none of these counts: check that the model is the log's",
        };
        write!(f, " The log prints {printed} TFLOP/s ({count}).")
    }
}
