//! The memory that ops keep for later ones, predicted.

use super::{Error, Training};
use crate::activation::Keep;
use crate::graph::TaskGraph;
use crate::model_spec::{EMBEDDING, MicroBatch, Stage};
use crate::op::{Kind, Op};
use std::collections::BTreeSet;

/// What the ops of a stage keep for a micro-batch or its slice, in bytes.
#[derive(Clone, Copy)]
struct Kept {
    /// From F, or R, until I.
    forward: u64,
    /// From an F that is recomputed until R.
    stub: u64,
    /// From I until W.
    input: u64,
    /// Gradients of keys and values, from the backward of the last slice until that of the own one.
    keys: u64,
}

/// Returns the bytes that the ops of each stage keep, by slice of these numbers of tokens.
fn kept(training: &Training, stages: &[Stage], slices: &[usize]) -> Vec<Vec<Kept>> {
    let (spec, storage) = (training.spec(), training.storage());
    let of_slice = |stage: &Stage, tokens: usize| {
        let micro = MicroBatch { tokens, ..training.micro_batch };
        let left = |kind| spec.left(stage, kind, micro, &storage) as u64;
        let keys = if slices.len() > 1 { spec.keys(stage, micro, &storage) as u64 } else { 0 };
        let edge = (spec.edge(micro) * storage.activation_bytes / storage.sp.max(1)) as u64;
        let stub = if stage.has(EMBEDDING) { 0 } else { edge } + keys;
        Kept { forward: left(Kind::F), stub, input: left(Kind::I), keys }
    };
    stages.iter().map(|stage| slices.iter().map(|&tokens| of_slice(stage, tokens)).collect()).collect()
}

impl Training {
    /// Returns `keep` with the shares that slices and recomputes of `graph` need, over the whole model.
    pub(super) fn keep_shares(&self, graph: &TaskGraph, stages: &[Stage], keep: Keep) -> Result<Keep, Error> {
        if graph.schedule().beyond_microbatches().is_none() {
            return Ok(keep);
        }
        let kept = kept(self, stages, &self.slices(graph)?);
        let sum = |of: fn(&Kept) -> u64| kept.iter().flatten().map(of).sum::<u64>() as f64;
        let all = sum(|kept| kept.forward).max(1.0);
        Ok(keep.with_stub(sum(|kept| kept.stub) / all).with_kv(sum(|kept| kept.keys) / all))
    }
}

/// Returns the peak bytes that the ops of a worker of `device` keep for later ones.
///
/// # Errors
/// More slices than tokens.
pub fn most_held(training: &Training, graph: &TaskGraph, device: u32, stages: &[Stage]) -> Result<u64, Error> {
    let slices = training.slices(graph)?;
    let (kept, program) = (kept(training, stages, &slices), graph.schedule().program(device));
    let recomputed: BTreeSet<Op> = program.iter().filter(|op| op.kind() == Kind::R).map(|op| op.alone()).collect();
    let (mut held, mut most) = (0_u64, 0_u64);
    for op in program {
        let (slice, of_stage) = (op.slice_number(), &kept[op.stage() as usize]);
        let Kept { forward, stub, input, keys } = of_stage[slice];
        // what the backward for the input changes: the last slice's begins the gradients of the keys of all earlier ones
        let after_input = |held: u64| {
            let earlier: u64 = of_stage[..slice].iter().map(|kept| kept.keys).sum();
            let (begun, used) = if slice + 1 == slices.len() { (earlier, 0) } else { (0, keys) };
            (held + input + begun).saturating_sub(forward + used)
        };
        held = match op.kind() {
            Kind::F if recomputed.contains(&op.of_kind(Kind::R)) => held + stub,
            Kind::F => held + forward,
            Kind::R => (held + forward).saturating_sub(stub),
            Kind::I => after_input(held),
            Kind::W => held.saturating_sub(input),
            // a CPU runs a full backward as its two halves
            Kind::B => {
                most = most.max(after_input(held));
                after_input(held).saturating_sub(input)
            }
            _ => held, // not executed
        };
        most = most.max(held);
    }
    Ok(most)
}
