//! Values that a search of layouts may take.

use super::{CudaGraph, Dispatcher, Recompute, Zero};
use pipesim_schedule::nearest::nearest;
use pipesim_schedule::sanitize::sanitize;
use std::collections::BTreeSet;
use std::fmt::Display;

/// Values that a search may take; an empty list allows all.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)] // names of the layout's numbers
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
    pub dispatcher: Vec<Dispatcher>,
    pub cuda_graph: Vec<CudaGraph>,
    pub moe_overlap: BTreeSet<bool>,
    pub delay_wgrad: BTreeSet<bool>,
    /// Share of the optimizer's states in the host's memory, of all layouts.
    pub optimizer_offload: Option<f64>,
    /// Layers per stage.
    pub layers: Vec<Vec<usize>>,
}

/// Names of the values that can be fixed, each with its aliases.
const KEYS: [(&str, &[&str]); 17] = [
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
    ("dispatcher", &[]),
    ("cuda-graph", &[]),
    ("moe-overlap", &[]),
    ("delay-wgrad", &[]),
    ("optimizer-offload", &[]),
    ("layers", &[]),
];

impl Fixed {
    /// Parses `tp=8,pp=4`; a key that is repeated allows several values.
    ///
    /// # Errors
    /// An unknown key or a value that it cannot have.
    pub fn parse(text: &str) -> Result<Fixed, String> {
        if text.trim().is_empty() {
            return Err(expected("KEY=VALUE", "nothing", "write it as in tp=8"));
        }
        let mut fixed = Fixed::default();
        for piece in pieces(text) {
            let Some((key, value)) = piece.split_once('=') else {
                let found = format!("'{}'", sanitize(&piece));
                return Err(expected("KEY=VALUE", found, "write it as in tp=8"));
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
        for (own, more) in self.switches().into_iter().zip(other.switches()) {
            own.1.append(more.1);
        }
        other.recompute.into_iter().for_each(|what| include(&mut self.recompute, what));
        other.zero.into_iter().for_each(|stage| include(&mut self.zero, stage));
        other.dispatcher.into_iter().for_each(|one| include(&mut self.dispatcher, one));
        other.cuda_graph.into_iter().for_each(|one| include(&mut self.cuda_graph, one));
        self.optimizer_offload = other.optimizer_offload.or(self.optimizer_offload);
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

    /// Returns the sets of switches by key.
    fn switches(&mut self) -> [(&'static str, &mut BTreeSet<bool>); 3] {
        [
            ("sequence-parallel", &mut self.sequence_parallel),
            ("moe-overlap", &mut self.moe_overlap),
            ("delay-wgrad", &mut self.delay_wgrad),
        ]
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let names: Vec<&str> = KEYS.iter().map(|(name, _)| *name).collect();
        let known = KEYS.iter().find(|(name, others)| *name == key || others.contains(&key)).map(|(name, _)| *name);
        let Some(known) = known else {
            let near = nearest(key, &names).first().map_or_else(String::new, |name| format!(" (did you mean {name}?)"));
            let (key, names) = (sanitize(key), names.join(", "));
            return Err(expected(format!("one of {names} before ="), format!("'{key}'{near}"), "correct it"));
        };
        let quoted = || format!("'{}'", sanitize(value));
        let whole = || {
            let found = value.parse::<u32>().ok().filter(|number| (1..=1 << 20).contains(number));
            let what = || format!("a whole number from 1 up for {known}");
            found.ok_or_else(|| expected(what(), quoted(), format!("write {known}=8")))
        };
        let of = |error: super::ParallelConfigError| format!("{known}: {error}; correct it");
        match known {
            "recompute" => include(&mut self.recompute, value.parse().map_err(of)?),
            "zero" => include(&mut self.zero, value.parse().map_err(of)?),
            "sequence-parallel" | "moe-overlap" | "delay-wgrad" => {
                let is_on = match value {
                    "true" | "on" | "yes" | "1" => true,
                    "false" | "off" | "no" | "0" => false,
                    _ => return Err(expected(format!("on or off for {known}"), quoted(), "write one of them")),
                };
                self.switches().into_iter().filter(|(key, _)| *key == known).for_each(|(_, set)| set.extend([is_on]));
            }
            "dispatcher" => include(&mut self.dispatcher, value.parse().map_err(of)?),
            "cuda-graph" => include(&mut self.cuda_graph, value.parse().map_err(of)?),
            "optimizer-offload" => {
                let share = value.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
                let what = "one share from 0 to 1 for optimizer-offload";
                let share = share.filter(|share| self.optimizer_offload.is_none_or(|own| own == *share));
                self.optimizer_offload =
                    Some(share.ok_or_else(|| expected(what, quoted(), "write optimizer-offload=1"))?);
            }
            "layers" => {
                let counts: Option<Vec<usize>> =
                    value.split(['/', ',']).map(|count| count.trim().parse().ok()).collect();
                let what = || format!("expected layers per stage as in layers=20,20,21,19, found {}", quoted());
                include(&mut self.layers, counts.ok_or_else(what)?);
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
    pub fn clear(&mut self, key: &str) {
        match key {
            "recompute" => self.recompute.clear(),
            "zero" => self.zero.clear(),
            "layers" => self.layers.clear(),
            "dispatcher" => self.dispatcher.clear(),
            "cuda-graph" => self.cuda_graph.clear(),
            "optimizer-offload" => self.optimizer_offload = None,
            _ => {
                self.numbers().into_iter().filter(|(own, _)| *own == key).for_each(|(_, set)| set.clear());
                self.switches().into_iter().filter(|(own, _)| *own == key).for_each(|(_, set)| set.clear());
            }
        }
    }

    /// Returns whether a set allows a number.
    pub fn allows(set: &BTreeSet<u32>, number: u32) -> bool {
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

fn expected(what: impl Display, found: impl Display, remedy: impl Display) -> String {
    format!("expected {what}, found {found}; {remedy}")
}
