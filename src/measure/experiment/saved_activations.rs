//! Activations and gradients that ops keep for later ones: the bytes that each op takes and returns, and their peak.
//!
//! Copies to the host run in their order. An op that waits for a RELOAD waits for its OFFLOAD, too, so this and all OFFLOADs before it
//! have ended when the op runs. A unit whose OFFLOAD may still run counts as kept, and one that has left counts again from its RELOAD
//! on, which may start as soon as the op before it has ended.

use super::{Error, Training};
use pipesim_models::model_spec::{EMBEDDING, MicroBatch, Stage};
use pipesim_schedule::activation::Keep;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the ops of a stage keep for a micro-batch or its slice, in bytes.
#[derive(Clone, Copy)]
struct Kept<T = u64> {
    /// From F, or R, until I.
    forward: T,
    /// From an F that is recomputed until R.
    stub: T,
    /// From I until W.
    input: T,
    /// Gradients of keys and values, from the backward of the last slice until the backward of the own slice.
    keys: T,
}

impl<T> Kept<T> {
    fn map<U>(self, to: impl Fn(T) -> U) -> Kept<U> {
        let Kept { forward, stub, input, keys } = self;
        Kept { forward: to(forward), stub: to(stub), input: to(input), keys: to(keys) }
    }
}

/// Returns the bytes that the ops of each stage keep, by slice of these numbers of tokens.
fn kept(training: &Training, stages: &[Stage], slices: &[usize]) -> Vec<Vec<Kept>> {
    let spec = training.spec();
    let of_slice = |stage: &Stage, tokens: usize| {
        let storage = training.storage_of(tokens);
        let micro = MicroBatch { tokens, ..training.micro_batch };
        let left = |kind| spec.left(stage, kind, micro, &storage);
        let keys = if slices.len() > 1 { spec.keys(stage, micro, &storage) } else { 0 };
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

/// Returns the changes of the bytes that the ops of a worker of `device` keep for later ones, by op in the order in which they happen; a full
/// backward is its two halves, as a CPU runs it. What an op takes, it takes at its start; what it returns, it returns at its end. With
/// slices, an OFFLOAD first takes a copy of keys and values, which is returned after the RELOAD.
///
/// # Errors
/// More slices than tokens.
pub fn saved_changes(
    training: &Training,
    graph: &TaskGraph,
    device: u32,
    stages: &[Stage],
) -> Result<BTreeMap<Op, Vec<i64>>, Error> {
    let slices = training.slices(graph)?;
    let (kept, program) = (kept(training, stages, &slices), graph.schedule().program(device));
    let recomputed: BTreeSet<Op> = program.iter().filter(|op| op.kind() == Kind::R).map(|op| op.alone()).collect();
    let mut changes: BTreeMap<Op, Vec<i64>> = BTreeMap::new();
    for op in program {
        let (slice, of_stage) = (op.slice_number(), &kept[op.stage() as usize]);
        let Kept { forward, stub, input, keys } = of_stage[slice].map(|bytes| bytes as i64);
        // what the backward for the input changes: the last slice's begins the gradients of the keys of all earlier ones
        let of_input = || {
            let earlier: u64 = of_stage[..slice].iter().map(|kept| kept.keys).sum();
            let (begun, used) = if slice + 1 == slices.len() { (earlier as i64, 0) } else { (0, keys) };
            input + begun - forward - used
        };
        let mut add = |kind: Kind, bytes: &[i64]| changes.insert(op.of_kind(kind), bytes.to_vec());
        match op.kind() {
            Kind::F if recomputed.contains(&op.of_kind(Kind::R)) => add(Kind::F, &[stub]),
            Kind::F => add(Kind::F, &[forward]),
            Kind::R => add(Kind::R, &[forward - stub]),
            Kind::I => add(Kind::I, &[of_input()]),
            Kind::W => add(Kind::W, &[-input]),
            Kind::B => {
                add(Kind::I, &[of_input()]);
                add(Kind::W, &[-input])
            }
            Kind::O if slices.len() > 1 => add(Kind::O, &[keys, -forward]),
            Kind::O => add(Kind::O, &[-forward]),
            Kind::L if slices.len() > 1 => add(Kind::L, &[forward, -keys]),
            Kind::L => add(Kind::L, &[forward]),
            _ => None, // not executed
        };
    }
    Ok(changes)
}

/// Returns the peak bytes that the ops of a worker of `device` keep for later ones, however long copies to the host take.
///
/// # Errors
/// More slices than tokens.
pub fn most_saved(training: &Training, graph: &TaskGraph, device: u32, stages: &[Stage]) -> Result<u64, Error> {
    let changes = saved_changes(training, graph, device, stages)?;
    let (mut saved, mut most, mut offloads) = (0_i64, 0_i64, Offloads::default());
    for op in graph.schedule().program(device) {
        let halves: &[Kind] = if op.kind() == Kind::B { &[Kind::I, Kind::W] } else { &[op.kind()] };
        for half in halves.iter().map(|&kind| op.of_kind(kind)) {
            let of_half = changes.get(&half).map_or(&[][..], |changes| changes);
            match (half.kind(), of_half) {
                // with slices, keys and values stay until the backward
                (Kind::O, [keys @ .., forward]) => {
                    offloads.offload(half, -forward);
                    saved += keys.iter().sum::<i64>();
                }
                (Kind::L, _) => saved += offloads.reload(half),
                _ => {
                    saved -= offloads.used(half);
                    let back = half.kind().is_backward().then(|| changes.get(&half.of_kind(Kind::L))).flatten();
                    saved += of_half.iter().chain(back.map_or(&[][..], |back| &back[1..])).sum::<i64>();
                }
            }
            most = most.max(saved);
        }
    }
    Ok(u64::try_from(most).unwrap_or(0))
}

/// The units of a device that go to the host, while its program is followed in order.
#[derive(Debug, Default)]
struct Offloads {
    /// OFFLOADs that may still run, in order.
    queue: VecDeque<Op>,
    units: BTreeMap<Op, OffloadState>,
}

/// A unit that was offloaded.
#[derive(Clone, Copy, Debug)]
struct OffloadState {
    /// What its OFFLOAD returns.
    amount: i64,
    has_left: bool,
    /// Whether its RELOAD may have started.
    is_back: bool,
}

impl Offloads {
    /// Follows the OFFLOAD `op`, which returns `amount`.
    fn offload(&mut self, op: Op, amount: i64) {
        self.units.insert(op.alone(), OffloadState { amount, has_left: false, is_back: false });
        self.queue.push_back(op.alone());
    }

    /// Follows the RELOAD `op`. Returns what it adds to the bound.
    fn reload(&mut self, op: Op) -> i64 {
        let Some(unit) = self.units.get_mut(&op.alone().of_kind(Kind::O)) else { return 0 };
        unit.is_back = true;
        if unit.has_left { unit.amount } else { 0 }
    }

    /// Follows an op that waits for the RELOAD of its unit, if there is one. Returns by how much the bound falls before it runs.
    fn used(&mut self, op: Op) -> i64 {
        let awaited = op.alone().of_kind(Kind::O);
        let mut returned = 0;
        if !self.queue.contains(&awaited) {
            return 0;
        }
        while let Some(ended) = self.queue.pop_front() {
            if let Some(unit) = self.units.get_mut(&ended) {
                unit.has_left = true;
                returned += if unit.is_back { 0 } else { unit.amount };
            }
            if ended == awaited {
                break;
            }
        }
        returned
    }
}
