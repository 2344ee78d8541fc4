//! A step of a model on hardware under a layout: its schedule simulated, and all that comes with it.

use crate::cost::CostError;
use crate::cost::analytic::{Analytic, StepTime};
use crate::memory::Memory;
use crate::metrics::Activity;
use crate::misfit::Misfit;
use crate::schedule::Schedule;
use crate::sim::Predicted;
use serde::Serialize;

/// What a step takes; part of each entry of `predict --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// How long an iteration lasts.
    pub iteration_s: f64,
    /// Tokens of all pipelines.
    pub tokens_per_second: f64,
    /// Of one GPU.
    pub tokens_per_second_per_gpu: f64,
    /// The model's own FLOPs: products of F, I and W, all scores, nothing computed again.
    pub model_tflops_per_gpu: f64,
    /// Those as a share of the peak in 16 bits.
    pub mfu: f64,
    /// GPUs in all.
    pub gpus: u64,
    /// The model's parameters.
    pub parameters: u128,
    /// Where the time goes; it sums to `iteration_s`.
    pub time_s: StepTime,
    /// What memory devices take.
    pub memory: Memory,
    /// That it does not fit, and what would, where that was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misfit: Option<Misfit>,
    /// Layers of each stage.
    pub layers: Vec<usize>,
}

impl Forecast {
    /// The forecast of what was simulated with these costs.
    ///
    /// # Errors
    /// A schedule that the layout does not split into.
    pub fn new(analytic: &Analytic, predicted: &Predicted<'_>) -> Result<Forecast, CostError> {
        Forecast::of(analytic, predicted.graph.schedule(), predicted.devices())
    }

    /// The forecast of a step of `schedule` in which devices did this.
    ///
    /// # Errors
    /// As [`Forecast::new`].
    pub fn of(analytic: &Analytic, schedule: &Schedule, devices: &[Activity]) -> Result<Forecast, CostError> {
        let stages = analytic.stages(schedule.placement.stages())?;
        let time_s = analytic.step(&schedule.placement, &stages, devices, schedule.splits_backward())?;
        let iteration_s = time_s.iteration();
        let gpus = analytic.layout.gpus();
        let tokens_per_second = analytic.layout.tokens() as f64 / iteration_s;
        let flops = analytic.model_flops() / iteration_s / gpus as f64;
        Ok(Forecast {
            iteration_s,
            tokens_per_second,
            tokens_per_second_per_gpu: tokens_per_second / gpus as f64,
            model_tflops_per_gpu: flops / 1e12,
            mfu: flops / (analytic.machine.hardware.bf16_tflops * 1e12),
            gpus,
            parameters: analytic.anatomy.parameters(),
            time_s,
            memory: analytic.ledger().memory(analytic.machine.hardware.memory_bytes(), &stages, schedule),
            misfit: None,
            layers: stages.iter().map(|stage| stage.count(crate::anatomy::BLOCK)).collect(),
        })
    }
}

impl Forecast {
    /// Its figures by name, as columns.
    pub fn figures(&self) -> [(&'static str, f64); 11] {
        let t = &self.time_s;
        [
            ("iteration_s", self.iteration_s),
            ("tokens_per_second", self.tokens_per_second),
            ("tokens_per_second_per_gpu", self.tokens_per_second_per_gpu),
            ("model_tflops_per_gpu", self.model_tflops_per_gpu),
            ("mfu", self.mfu),
            ("compute_s", t.compute),
            ("tensor_parallel_exposed_s", t.tensor_parallel_exposed),
            ("pipeline_bubble_s", t.pipeline_bubble),
            ("data_parallel_exposed_s", t.data_parallel_exposed),
            ("optimizer_s", t.optimizer),
            ("other_s", t.other),
        ]
    }
}
