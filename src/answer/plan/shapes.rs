//! Pipelines of a plan: schedule, placement, and the layers of each stage.

use super::question::{Fixed, Question, divisors};
use super::reason::{PlanError, Reason};
use super::stacks::Abilities;
use crate::framework::framework;
use crate::resolve::{Selection, Variant};
use pipesim_cost::analytic::default_layers;
use pipesim_frameworks::Facts;
use pipesim_models::model_spec::{EMBEDDING, HEAD, MicroBatch, ModelSpec, PREDICTION, Part, Stage};
use pipesim_schedule::op::Kind;
use pipesim_schedule::open::Order;
use pipesim_schedule::placement::Placement;
use std::collections::{BTreeMap, BTreeSet};

/// A schedule on `pp` devices with a split of the layers.
#[derive(Clone, Debug)]
pub struct PlanShape {
    /// Name of the schedule, without the number of stages per device.
    pub schedule: String,
    pub pp: u32,
    /// Stages per device.
    pub chunks: u32,
    /// Whether the number of stages per device has to be requested.
    pub names_chunks: bool,
    pub placement: Placement,
    /// Whether the backward is split.
    pub splits: bool,
    /// Whether costs decide its order.
    pub is_open: bool,
    /// Whether the number of micro-batches has to be a multiple of the devices.
    pub needs_rounds: bool,
    /// Layers per stage; `None` for the default split.
    pub layers: Option<Vec<usize>>,
    pub stages: Vec<Stage>,
    /// For each device, the first device with the same number of each part.
    pub alike: Vec<u32>,
}

/// Returns the pipelines of all `depths`.
pub fn shapes(
    question: &Question,
    able: &Abilities,
    depths: &BTreeSet<u32>,
    ruled_out: &mut BTreeMap<Reason, u64>,
) -> Result<Vec<PlanShape>, PlanError> {
    let spec = question.model.spec();
    let mut shapes = Vec::new();
    for &pp in depths {
        let names = if pp == 1 { vec!["1f1b".to_string()] } else { able.schedules.clone() };
        for name in names {
            for pipeline in pipelines(question, able, &name, pp, ruled_out)? {
                let count = pipeline.placement.stages() as usize;
                let splits = splits(question, able, &spec, &pipeline.placement);
                if splits.is_empty() {
                    *ruled_out.entry(Reason::Layers).or_default() += 1;
                }
                for layers in splits {
                    let own = layers.clone().unwrap_or_else(|| default_layers(&question.model, count));
                    match spec.split(count, Some(&own)) {
                        Ok(stages) => shapes.push(pipeline.with(layers, stages)),
                        Err(_) => *ruled_out.entry(Reason::Layers).or_default() += 1,
                    }
                }
            }
        }
    }
    Ok(shapes)
}

/// Returns the numbers of stages per device that split the layers evenly, with or without embedding and head as a layer each.
fn chunk_counts(question: &Question, able: &Abilities, pp: u32) -> Vec<u32> {
    let layers = question.model.layers as u32;
    let even = |items: u32| if items.is_multiple_of(pp) { divisors(items / pp) } else { Vec::new() };
    let mut all: BTreeSet<u32> = even(layers).into_iter().collect();
    if able.uneven_layers && !layers.is_multiple_of(pp) {
        all.extend(even(layers + 2));
    }
    let fixed = &question.fixed.chunks;
    let fitting = fixed.iter().copied().filter(|&v| v > 1 && pp.saturating_mul(v) <= layers + 2);
    if fixed.is_empty() { all.into_iter().filter(|&v| v > 1).collect() } else { fitting.collect() }
}

/// Returns a schedule with each number of stages per device that it may have, without layers.
fn pipelines(
    question: &Question,
    able: &Abilities,
    name: &str,
    pp: u32,
    ruled_out: &mut BTreeMap<Reason, u64>,
) -> Result<Vec<PlanShape>, PlanError> {
    let selection = Selection { host: question.host, ..Selection::new(pp, 2 * pp) };
    let variant = Variant::parse(name).map_err(PlanError::refused)?;
    let takes = selection.takes(&variant).map_err(PlanError::refused)?;
    let has_own = variant.options.contains_key("v") || !takes.chunks || pp == 1;
    let mut counts: Vec<Option<u32>> = vec![None];
    if !has_own {
        counts = chunk_counts(question, able, pp).into_iter().map(Some).collect();
        // a schedule that leaves the number open has one stage per device by default
        let default = selection.order(name).ok().map(|found| found.order.placement().chunks());
        counts.extend((default == Some(1)).then_some(None));
    }
    let mut found = Vec::new();
    for chunks in counts {
        let order = match (Selection { chunks, ..selection.clone() }).order(name) {
            Ok(order) => order.order,
            Err(error) if error.is_of_numbers() => {
                *ruled_out.entry(Reason::Schedule).or_default() += 1;
                continue;
            }
            Err(error) => return Err(PlanError::refused(error)),
        };
        let placement = order.placement().clone();
        if Fixed::allows(&question.fixed.chunks, placement.chunks()) {
            found.push(PlanShape {
                schedule: name.to_string(),
                pp: placement.devices(),
                chunks: placement.chunks(),
                names_chunks: chunks.is_some(),
                splits: order.splits_backward(),
                is_open: matches!(order, Order::Open(_)),
                needs_rounds: variant.base == "interleaved-1f1b" && pp > 1,
                layers: None,
                stages: Vec::new(),
                alike: Vec::new(),
                placement,
            });
        }
    }
    Ok(found)
}

/// Returns the splits of the layers to try; `None` is the default one.
fn splits(question: &Question, able: &Abilities, spec: &ModelSpec, placement: &Placement) -> Vec<Option<Vec<usize>>> {
    let (layers, count) = (question.model.layers, placement.stages() as usize);
    if let Some(given) = &question.fixed.layers {
        return if given.len() == count { vec![Some(given.clone())] } else { Vec::new() };
    }
    let usual = default_layers(&question.model, count);
    if usual.iter().sum::<usize>() != layers || usual.iter().skip(1).take(count.saturating_sub(2)).any(|&n| n == 0) {
        return Vec::new();
    }
    if !able.uneven_layers {
        return if layers.is_multiple_of(count) { vec![None] } else { Vec::new() };
    }
    if let Some(own) = own_split(question, placement) {
        return vec![Some(own).filter(|own| *own != usual)];
    }
    let balanced = (placement.chunks() == 1 && placement.directions() == 1 && count > 1)
        .then(|| balanced(question, spec, count))
        .flatten()
        .filter(|other| *other != usual);
    [None].into_iter().chain(balanced.map(Some)).collect()
}

/// Returns the split of a framework that takes no other.
fn own_split(question: &Question, placement: &Placement) -> Option<Vec<usize>> {
    let framework = framework(&question.machine.stack).ok()??;
    let mut facts = Facts::default();
    facts.add_model(&question.model).set("tp", 1).set("p", placement.devices()).set("v", placement.chunks());
    framework.split(&facts).ok()?.filter(|own| own.iter().sum::<usize>() == question.model.layers)
}

/// Returns the split whose busiest stage computes least, by FLOPs; `None` if there are more stages than layers.
fn balanced(question: &Question, spec: &ModelSpec, count: usize) -> Option<Vec<usize>> {
    let micro = MicroBatch { sequences: 1, tokens: question.sequence as usize };
    let flops = |part: &Part| part.flops(Kind::F, micro) + part.flops(Kind::B, micro);
    let whole = |name: &str| -> u128 {
        spec.parts.iter().filter(|part| part.name == name).map(|part| part.count as u128 * flops(part)).sum()
    };
    let [embedding, predictions, head] = [EMBEDDING, PREDICTION, HEAD].map(whole);
    let layers = spec.parts.iter().filter(|part| part.is_layer() && part.name != PREDICTION && part.count > 0);
    let block = layers.map(flops).max()?;
    let head = head + predictions;
    let mut left = spec.outline().layers().checked_sub(count.saturating_sub(2))?;
    let mut layers: Vec<usize> = (0..count).map(|stage| usize::from(stage > 0 && stage + 1 < count)).collect();
    while left > 0 {
        let load = |stage: usize| {
            let ends = if stage == 0 { embedding } else { 0 } + if stage + 1 == count { head } else { 0 };
            layers[stage] as u128 * block + ends
        };
        let least = (0..count).min_by_key(|&stage| load(stage))?;
        layers[least] += 1;
        left -= 1;
    }
    Some(layers)
}

impl PlanShape {
    /// Returns the shape with a split of the layers.
    fn with(&self, layers: Option<Vec<usize>>, stages: Vec<Stage>) -> PlanShape {
        let placement = &self.placement;
        let held = |device: u32| {
            let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
            for stage in placement.stages_of(device) {
                stages[stage as usize].counts().for_each(|(part, count)| *counts.entry(part).or_default() += count);
            }
            counts
        };
        let all: Vec<_> = (0..placement.devices()).map(held).collect();
        let first = |device: usize| {
            // in bidirectional placements, count the other holder of a stage, too
            let same = (0..device).find(|&other| placement.directions() == 1 && all[other] == all[device]);
            same.unwrap_or(device) as u32
        };
        let alike = (0..all.len()).map(first).collect();
        PlanShape { layers, stages, alike, ..self.clone() }
    }
}
