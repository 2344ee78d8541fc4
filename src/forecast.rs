//! A step of a model on hardware under a layout: its schedule simulated, and all that comes with it.

use crate::cost::CostError;
use crate::cost::analytic::{Analytic, StepTime};
use crate::memory::Memory;
use crate::misfit::Misfit;
use crate::resolve::{Costs, Error, Resolved, Selection};
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
        let schedule = predicted.graph.schedule();
        let stages = analytic.stages(schedule.placement.stages())?;
        let time_s = analytic.step(&schedule.placement, &stages, predicted.devices(), schedule.splits_backward())?;
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

impl Analytic {
    /// What is asked of a schedule under this layout.
    pub fn selection(&self) -> Selection {
        let chunks = (self.layout.chunks > 1).then_some(self.layout.chunks);
        Selection { chunks, ..Selection::new(self.layout.devices, self.layout.micro) }
    }

    /// The schedule called so under this layout, with its costs.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    pub fn resolve(&self, schedule: &str) -> Result<Resolved, Error> {
        self.selection().resolve(schedule, &Costs::Analytic(Box::new(self.clone())))
    }

    /// The forecast under the schedule called so.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    pub fn forecast(&self, schedule: &str) -> Result<Forecast, Error> {
        let resolved = self.resolve(schedule)?;
        let predicted = resolved.predict().map_err(|error| Error::Usage(error.to_string()))?;
        Ok(Forecast::new(&self.as_resolved(&resolved), &predicted)?)
    }

    /// The same where devices have, or may use, so many bytes.
    pub fn with_memory(&self, bytes: u64) -> Analytic {
        let mut analytic = self.clone();
        analytic.machine.hardware.memory_gib = bytes as f64 / f64::from(1 << 30);
        analytic
    }

    /// Activation units for which every device has room, one stage a device; none where the layout does not split so, or there is
    /// room for less than one.
    pub fn room(&self) -> Option<f64> {
        let (stages, bytes) = (self.stages(self.layout.devices).ok()?, self.machine.hardware.memory_bytes());
        let ledger = self.ledger();
        let room = stages.iter().map(|stage| ledger.room(bytes, stage)).fold(f64::INFINITY, f64::min);
        (room >= 1.0).then_some(room)
    }

    /// The same with the layers that `resolved` found.
    pub fn as_resolved(&self, resolved: &Resolved) -> Analytic {
        let mut analytic = self.clone();
        if let Some(found) = &resolved.balance {
            analytic.layout.layers = Some(found.layers.clone());
        }
        analytic
    }
}
