//! Estimate of a step of a model on hardware under a layout, from its simulated schedule.

use pipesim_cost::CostError;
use pipesim_cost::analytic::{Analytic, Platform, StepTime};
use pipesim_frameworks::Framework;
use pipesim_models::hardware::IntervalClass;
use pipesim_models::hull::HullPoint;
use pipesim_models::layout::ParallelConfig;
use pipesim_models::memory::{DeviceMemory, Memory};
use pipesim_models::model_spec::StageLayout;
use pipesim_schedule::metrics::Activity;
use pipesim_schedule::schedule::Schedule;
use pipesim_sim::Prediction;
use pipesim_system::in_words;
use serde::{Serialize, Serializer};
use std::fmt;

/// Estimate of a step; part of each entry of `predict --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepEstimate {
    /// Time of an iteration, in seconds.
    pub iteration_s: f64,
    /// 90 % interval of the measured iteration, from errors on published steps left out of the fit, in seconds.
    pub iteration_interval_s: [f64; 2],
    /// The same, 50 %.
    pub iteration_interval_50_s: [f64; 2],
    /// In what no published run is like it, one sentence each; such predictions have wider intervals.
    pub outside: Vec<String>,
    #[serde(skip)]
    pub point: HullPoint,
    #[serde(skip)]
    pub class: IntervalClass,
    /// Tokens per second of all pipelines.
    pub tokens_per_second: f64,
    pub tokens_per_second_per_gpu: f64,
    /// TFLOP/s per GPU of the model itself: products of F, I and W and all scores, without recomputation.
    pub model_tflops_per_gpu: f64,
    /// Model FLOPs utilization: share of the 16-bit peak.
    pub mfu: f64,
    pub gpus: u64,
    /// Parameters as published: without layers for multi-token prediction.
    pub parameters: u128,
    /// Those that a token passes.
    pub active_parameters: u128,
    /// Parameters of layers for multi-token prediction, which are trained, too.
    pub prediction_parameters: u128,
    /// Parameters of adapters, if only these are trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_parameters: Option<u128>,
    /// FLOPs per token in forward and backward, as in `model_tflops_per_gpu`.
    pub model_flops_per_token: f64,
    /// Breakdown of the time; it sums to `iteration_s`.
    pub time_s: StepTime,
    pub memory: Memory,
    /// Why the step does not fit, with a suggestion, if one was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misfit: Option<OutOfMemory>,
    /// Layers per stage.
    pub layers: Vec<usize>,
    /// Whether they follow from costs, because layers differ.
    #[serde(skip)]
    pub is_split_by_cost: bool,
    /// What each stage holds, as Megatron's `--pipeline-model-parallel-layout`.
    pub stage_layout: String,
    /// The same as torchtitan's `module_fqns_per_model_part`; absent with layers that predict further tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<Vec<Vec<String>>>,
}

impl StepEstimate {
    /// Returns the estimate of a simulated step with these costs.
    ///
    /// # Errors
    /// The layout cannot be split into the schedule's stages.
    pub fn new(analytic: &Analytic, predicted: &Prediction<'_>) -> Result<StepEstimate, CostError> {
        let schedule = predicted.graph.schedule();
        let times = schedule.has_copies().then(|| predicted.op_times());
        StepEstimate::timed(
            analytic,
            schedule,
            predicted.devices(),
            times.as_ref().map(|times| (&times.start[..], &times.end[..])),
        )
    }

    /// Returns the estimate of a step of `schedule` with this activity of devices.
    ///
    /// # Errors
    /// As [`StepEstimate::new`].
    pub fn of(analytic: &Analytic, schedule: &Schedule, devices: &[Activity]) -> Result<StepEstimate, CostError> {
        StepEstimate::timed(analytic, schedule, devices, None)
    }

    /// Returns the estimate of a step whose ops run at `times`, which memory depends on if there are copies.
    fn timed(
        analytic: &Analytic,
        schedule: &Schedule,
        devices: &[Activity],
        times: Option<(&[u64], &[u64])>,
    ) -> Result<StepEstimate, CostError> {
        let stages = analytic.stages(schedule.placement.stages())?;
        let layout = StageLayout::of(&stages);
        let time_s = analytic.step_of(schedule, &stages, devices)?;
        let iteration_s = time_s.iteration();
        let gpus = analytic.layout.gpus();
        let tokens_per_second = analytic.layout.tokens() as f64 / iteration_s;
        let flops = analytic.model_flops() / iteration_s / gpus as f64;
        let point = analytic.hull_point(schedule.placement.stages() / schedule.placement.devices().max(1));
        let outside = point.outside(&[]);
        let class = class(&analytic.machine, &analytic.layout, point.is_mixture, outside.len());
        Ok(StepEstimate {
            iteration_s,
            iteration_interval_s: class.factors().map(|factor| factor * iteration_s),
            iteration_interval_50_s: class.middle().map(|factor| factor * iteration_s),
            outside,
            point,
            class,
            tokens_per_second,
            tokens_per_second_per_gpu: tokens_per_second / gpus as f64,
            model_tflops_per_gpu: flops / 1e12,
            mfu: flops / analytic.machine.hardware.mean_peak(analytic.layout.pp),
            gpus,
            parameters: analytic.spec.parameters(),
            active_parameters: analytic.spec.active_parameters(),
            prediction_parameters: analytic.spec.prediction_parameters(),
            adapter_parameters: analytic.model.lora.map(|_| analytic.spec.adapter_parameters()),
            model_flops_per_token: analytic.model_flops() / analytic.layout.tokens() as f64,
            time_s,
            memory: analytic.memory_of(&stages, schedule, times)?,
            misfit: None,
            layers: stages.iter().map(|stage| stage.layers()).collect(),
            is_split_by_cost: analytic.is_split_by_cost(schedule.placement.stages()),
            stage_layout: layout.to_string(),
            modules: layout.modules(),
        })
    }
}

/// Returns the class of predictions that no published run is like in so many ways. Software is early if its version is asked for.
pub(crate) fn class(machine: &Platform, layout: &ParallelConfig, is_mixture: bool, outside: usize) -> IntervalClass {
    let asked = machine.stack.framework.as_deref().zip(machine.stack.framework_version.as_deref());
    let found = asked.and_then(|(name, version)| Framework::find(name, Some(version)).ok());
    let is_early = found.is_some_and(|framework| framework.released() < IntervalClass::early_before());
    IntervalClass { is_narrow: layout.precision.is_narrow(), is_mixture, is_early, outside }
}

impl StepEstimate {
    /// Returns the figures with their column names.
    pub fn figures(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let [low, high] = self.iteration_interval_s;
        let [low_50, high_50] = self.iteration_interval_50_s;
        let whole = [
            ("iteration_s", self.iteration_s),
            ("iteration_low_s", low),
            ("iteration_high_s", high),
            ("iteration_low_50_s", low_50),
            ("iteration_high_50_s", high_50),
            ("tokens_per_second", self.tokens_per_second),
            ("tokens_per_second_per_gpu", self.tokens_per_second_per_gpu),
            ("model_tflops_per_gpu", self.model_tflops_per_gpu),
            ("mfu", self.mfu),
        ];
        whole.into_iter().chain(self.time_s.parts().map(|part| (part.column, part.seconds)))
    }
}

/// Maximum number of combined changes.
pub(crate) const MOST_CHANGES: usize = 3;

/// A layout that does not fit into memory, with a suggestion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutOfMemory {
    pub schedule: String,
    /// Device with the highest total.
    pub device: u32,
    /// Its total, in bytes.
    pub bytes: u64,
    /// Capacity per device, in bytes.
    pub capacity_bytes: u64,
    /// The fewest changes that make all devices fit, without more GPUs if possible; among several, the fastest step per GPU.
    pub remedy: Option<Suggestion>,
    #[serde(skip)]
    pub fullest: DeviceMemory,
    /// GPUs of the requested layout.
    #[serde(skip)]
    pub gpus: u64,
}

/// Changes that make a layout fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// Settings to change, each with its new value, which a switch has not: `recompute` and `full`.
    #[serde(serialize_with = "written")]
    pub change: Vec<(&'static str, String)>,
    /// Highest total of a device, in bytes.
    pub bytes: u64,
    /// Time of an iteration, in seconds.
    pub iteration_s: f64,
    /// Total number of GPUs.
    pub gpus: u64,
}

impl Suggestion {
    /// Returns the change as a text that names settings in backticks.
    pub fn described(&self) -> String {
        let one = |(setting, value): &(&str, String)| format!("`{setting}` {value}").trim_end().to_string();
        self.change.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

fn written<S: Serializer>(change: &[(&'static str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    Suggestion { change: change.to_vec(), bytes: 0, iteration_s: 0.0, gpus: 0 }.described().serialize(serializer)
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceMemory { weights, gradients, optimizer, activations, buffers, .. } = self.fullest;
        let named = [
            ("weights", weights),
            ("gradients", gradients),
            ("optimizer", optimizer),
            ("activations", activations),
            ("buffers", buffers),
        ];
        let names = named.map(|(name, bytes)| format!("{name} {}", in_words(bytes))).join(", ");
        write!(
            f,
            "{} does not fit: device {} takes {} of {} ({names}); ",
            self.schedule,
            self.device,
            in_words(self.bytes),
            in_words(self.capacity_bytes)
        )?;
        match &self.remedy {
            Some(remedy @ Suggestion { bytes, iteration_s, gpus, .. }) => {
                let (more, change) = (if *gpus > self.gpus { " needs more GPUs" } else { "" }, remedy.described());
                write!(
                    f,
                    "the smallest change that makes it fit{more}: {change} ({}, {iteration_s:.3} s per iteration on {gpus} GPUs)",
                    in_words(*bytes)
                )
            }
            None => {
                write!(
                    f,
                    "no combination of {MOST_CHANGES} changes of recompute, ZeRO, micro-batch, `tp` and `stages` makes it fit"
                )
            }
        }
    }
}
