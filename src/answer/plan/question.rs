//! A question: which layout of a model on some GPUs is the best.

use super::reason::PlanError;
use crate::question::{Objective, Risk};
use crate::resolve::{Files, Host};
use pipesim_cost::analytic::Platform;
use pipesim_models::layout::{Attention, ParallelConfig, Precision, Recompute, Zero};
use pipesim_models::model_spec::transformer::Config;
use pipesim_schedule::nearest::nearest;
use pipesim_schedule::sanitize::sanitize;
use std::collections::BTreeSet;

/// Share of the hardware's memory that plans leave free, since predictions of memory have errors.
pub const RESERVE: f64 = 0.03;

/// Mean error of predicted memory on the 134 published steps that state theirs (docs/src/memory.md), as a share.
pub const MEMORY_ERROR: f64 = 0.056;

/// Values that a search may take; an empty list allows all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fixed {
    pub tp: BTreeSet<u32>,
    pub pp: BTreeSet<u32>,
    pub dp: BTreeSet<u32>,
    pub cp: BTreeSet<u32>,
    pub ep: BTreeSet<u32>,
    pub micro_batch_size: BTreeSet<u32>,
    /// Stages per device.
    pub chunks: BTreeSet<u32>,
    pub recompute: Vec<Recompute>,
    pub zero: Vec<Zero>,
    pub shard: BTreeSet<u32>,
    pub sequence_parallel: BTreeSet<bool>,
    /// Layers per stage.
    pub layers: Vec<Vec<usize>>,
}

/// Names of the values that can be fixed, each with its aliases.
const KEYS: [(&str, &[&str]); 12] = [
    ("tp", &["tensor-parallel-size", "tensor-model-parallel-size"]),
    ("pp", &["stages", "p", "pipeline-parallel-size", "pipeline-model-parallel-size"]),
    ("dp", &["data-parallel-size"]),
    ("cp", &["context-parallel-size"]),
    ("ep", &["expert-parallel-size", "expert-model-parallel-size"]),
    ("micro-batch-size", &["mbs", "micro_batch_size", "b"]),
    ("chunks", &["vp", "vpp", "v", "virtual-stages"]),
    ("recompute", &[]),
    ("zero", &[]),
    ("shard", &[]),
    ("sequence-parallel", &["sp", "sequence_parallel"]),
    ("layers", &[]),
];

impl Fixed {
    /// Parses `tp=8,pp=4`; a key that is repeated allows several values.
    ///
    /// # Errors
    /// An unknown key or a value that it cannot have.
    pub fn parse(text: &str) -> Result<Fixed, PlanError> {
        if text.trim().is_empty() {
            return Err(PlanError::new("KEY=VALUE", "nothing", "write it as in tp=8"));
        }
        let mut fixed = Fixed::default();
        for piece in pieces(text) {
            let Some((key, value)) = piece.split_once('=') else {
                let found = format!("'{}'", sanitize(&piece));
                return Err(PlanError::new("KEY=VALUE", found, "write it as in tp=8"));
            };
            fixed.set(key.trim(), value.trim())?;
        }
        Ok(fixed)
    }

    /// Returns the restrictions of both.
    pub fn add(&mut self, mut other: Fixed) {
        for (own, more) in self.numbers().into_iter().zip(other.numbers()) {
            own.1.append(more.1);
        }
        other.recompute.into_iter().for_each(|what| include(&mut self.recompute, what));
        other.zero.into_iter().for_each(|stage| include(&mut self.zero, stage));
        self.sequence_parallel.append(&mut other.sequence_parallel);
        other.layers.into_iter().for_each(|layers| include(&mut self.layers, layers));
    }

    /// Returns the sets of numbers by key.
    fn numbers(&mut self) -> [(&'static str, &mut BTreeSet<u32>); 8] {
        [
            ("tp", &mut self.tp),
            ("pp", &mut self.pp),
            ("dp", &mut self.dp),
            ("cp", &mut self.cp),
            ("ep", &mut self.ep),
            ("micro-batch-size", &mut self.micro_batch_size),
            ("chunks", &mut self.chunks),
            ("shard", &mut self.shard),
        ]
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), PlanError> {
        let names: Vec<&str> = KEYS.iter().map(|(name, _)| *name).collect();
        let known = KEYS.iter().find(|(name, others)| *name == key || others.contains(&key)).map(|(name, _)| *name);
        let Some(known) = known else {
            let near = nearest(key, &names).first().map_or_else(String::new, |name| format!(" (did you mean {name}?)"));
            let (key, names) = (sanitize(key), names.join(", "));
            return Err(PlanError::new(format!("one of {names} before ="), format!("'{key}'{near}"), "correct it"));
        };
        let quoted = || format!("'{}'", sanitize(value));
        let whole = || {
            let found = value.parse::<u32>().ok().filter(|number| (1..=1 << 20).contains(number));
            let expected = || format!("a whole number from 1 up for {known}");
            found.ok_or_else(|| PlanError::new(expected(), quoted(), format!("write {known}=8")))
        };
        let of = |error: pipesim_models::layout::ParallelConfigError| {
            PlanError::Refused(format!("{known}: {error}; correct it"))
        };
        match known {
            "recompute" => include(&mut self.recompute, value.parse().map_err(of)?),
            "zero" => include(&mut self.zero, value.parse().map_err(of)?),
            "sequence-parallel" => {
                self.sequence_parallel.insert(match value {
                    "true" | "on" | "yes" | "1" => true,
                    "false" | "off" | "no" | "0" => false,
                    _ => return Err(PlanError::new(format!("on or off for {known}"), quoted(), "write one of them")),
                });
            }
            "layers" => {
                let counts: Option<Vec<usize>> =
                    value.split(['/', ',']).map(|count| count.trim().parse().ok()).collect();
                let what = || format!("expected layers per stage as in layers=20,20,21,19, found {}", quoted());
                include(&mut self.layers, counts.ok_or_else(|| PlanError::Refused(what()))?);
            }
            _ => {
                let number = [whole()?];
                let own = self.numbers().into_iter().filter(|(key, _)| *key == known);
                own.for_each(|(_, set)| set.extend(number));
            }
        }
        Ok(())
    }

    /// Removes the restriction of a key.
    pub(super) fn clear(&mut self, key: &str) {
        match key {
            "recompute" => self.recompute.clear(),
            "zero" => self.zero.clear(),
            "sequence-parallel" => self.sequence_parallel.clear(),
            "layers" => self.layers.clear(),
            _ => self.numbers().into_iter().filter(|(own, _)| *own == key).for_each(|(_, set)| set.clear()),
        }
    }

    /// Returns whether a set allows a number.
    pub(super) fn allows(set: &BTreeSet<u32>, number: u32) -> bool {
        set.is_empty() || set.contains(&number)
    }
}

/// Adds `one` unless it is known.
fn include<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// Splits at commas, but not between parts to recompute, as in `recompute=moe_act,layernorm`, and layers of stages, as in `layers=9,8,9,6`.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    for piece in text.split(',').map(str::trim).filter(|piece| !piece.is_empty()) {
        match pieces.last_mut() {
            Some(last) if ["recompute", "layers"].iter().any(|key| last.starts_with(key)) && !piece.contains('=') => {
                last.push(',');
                last.push_str(piece);
            }
            _ => pieces.push(piece.to_string()),
        }
    }
    pieces
}

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
}

/// Returns the divisors of a number, in order.
pub fn divisors(number: u32) -> Vec<u32> {
    let low: Vec<u32> = (1..=number.isqrt()).filter(|&small| number.is_multiple_of(small)).collect();
    let high: Vec<u32> = low.iter().rev().map(|small| number / small).filter(|large| !low.contains(large)).collect();
    [low, high].concat()
}
