//! A question: which layout of a model on some GPUs is the best.

use super::reason::PlanError;
use crate::question::{Objective, Risk};
use crate::resolve::{Files, Host};
use pipesim_cost::analytic::Platform;
use pipesim_frameworks::{Facts, Framework, Objection, ObjectionKind};
pub use pipesim_models::layout::Fixed;
use pipesim_models::layout::{Attention, ParallelConfig, Precision};
use pipesim_models::model_spec::transformer::Config;

/// Share of the hardware's memory that plans leave free, since predictions of memory have errors.
pub const RESERVE: f64 = 0.03;

/// Mean error of predicted memory on the 134 published steps that state theirs (docs/src/memory.md), as a share.
pub const MEMORY_ERROR: f64 = 0.056;

/// A model, GPUs and a batch.
#[derive(Clone, Debug)]
pub struct Question {
    pub model: Config,
    /// Hardware and training software; the memory of the hardware limits each device.
    pub machine: Platform,
    /// Numbers of GPUs to plan for.
    pub gpus: Vec<u32>,
    /// Sequences per step, over all GPUs.
    pub batch: u32,
    /// Tokens per sequence.
    pub sequence: u32,
    pub precision: Precision,
    pub attention: Option<Attention>,
    /// Schedules to choose from; empty for those that the training software implements.
    pub schedules: Vec<String>,
    pub fixed: Fixed,
    pub objective: Objective,
    pub risk: Risk,
    /// Maximum bytes per GPU; `None`: the hardware's memory minus [`RESERVE`].
    pub memory_limit: Option<u64>,
    /// Number of plans to return.
    pub keep: usize,
    /// Threads and files.
    pub host: &'static dyn Host,
}

impl Question {
    /// Returns a question about `batch` sequences of `sequence` tokens per step on `gpus` GPUs, in bf16.
    pub fn new(model: Config, machine: Platform, gpus: u32, batch: u32, sequence: u32) -> Question {
        Question {
            model,
            machine,
            gpus: vec![gpus],
            batch,
            sequence,
            precision: Precision::Bf16,
            attention: None,
            schedules: Vec::new(),
            fixed: Fixed::default(),
            objective: Objective::Time,
            risk: Risk::Usual,
            memory_limit: None,
            keep: 10,
            host: &Files,
        }
    }

    /// Returns the expert-parallel degrees that are allowed on the `stage` GPUs of a pipeline stage: divisors of both these and the experts.
    pub(super) fn expert_degrees(&self, stage: u32) -> Vec<u32> {
        let experts = self.model.experts.map_or(1, |experts| experts.count as u32);
        let divides = |&ep: &u32| experts.is_multiple_of(ep) && Fixed::allows(&self.fixed.ep, ep);
        divisors(stage).into_iter().filter(divides).collect()
    }

    /// Returns the layout of one GPU, which all layouts of the answer vary.
    pub(super) fn base(&self) -> ParallelConfig {
        ParallelConfig {
            micro: self.batch,
            sequence: self.sequence,
            precision: self.precision,
            attention: self.attention,
            stack: self.machine.stack.name.clone(),
            optimizer_offload: self.fixed.optimizer_offload.unwrap_or(0.0),
            ..ParallelConfig::default()
        }
    }

    /// Returns the bytes that a plan may take per GPU.
    pub fn bytes(&self) -> u64 {
        let reserved = (self.machine.hardware.memory_bytes() as f64 * (1.0 - RESERVE)) as u64;
        let bytes = self.memory_limit.unwrap_or(reserved);
        if self.risk == Risk::Low { bytes.min(self.safe_bytes()) } else { bytes }
    }

    /// Returns the bytes within which a plan leaves the mean error of its predicted memory.
    pub fn safe_bytes(&self) -> u64 {
        let limit = self.memory_limit.unwrap_or(self.machine.hardware.memory_bytes());
        (limit as f64 / (1.0 + MEMORY_ERROR)) as u64
    }

    /// Returns what a second of `gpus` GPUs costs in the unit of the objective.
    pub(super) fn price(&self, gpus: u32) -> f64 {
        match self.objective {
            Objective::Time => 1.0,
            Objective::TokensPerGpu | Objective::Cost => f64::from(gpus),
        }
    }

    /// Fails if the framework refuses every layout: for the model, machine, precision, attention or sequences.
    pub(super) fn refused_by(&self, framework: &Framework) -> Result<(), PlanError> {
        let base = ParallelConfig { micro: 1, ..self.base() };
        let mut facts = Facts::default();
        facts.add_model(&self.model).add_hardware(&self.machine.hardware);
        facts.set("seq", self.sequence).set("batch", self.batch).set("precision", self.precision.name());
        facts.set("attention", self.machine.stack.attention(&base).name());
        let refuses = |one: &&Objection| matches!(one.kind, ObjectionKind::Refused | ObjectionKind::Silent);
        match framework.objections(&facts).map_err(PlanError::refused)?.iter().find(refuses) {
            None => Ok(()),
            Some(Objection { error, remedy, .. }) => {
                let (title, version) = (framework.title(), framework.version());
                Err(PlanError::Refused(format!("{title} {version} refuses every layout: {error}; {remedy}")))
            }
        }
    }
}

/// Returns the divisors of a number, in order.
pub fn divisors(number: u32) -> Vec<u32> {
    let low: Vec<u32> = (1..=number.isqrt()).filter(|&small| number.is_multiple_of(small)).collect();
    let high: Vec<u32> = low.iter().rev().map(|small| number / small).filter(|large| !low.contains(large)).collect();
    [low, high].concat()
}
