//! Pipelines of a plan: schedule, placement, and the layers of each stage.

use super::question::{Fixed, Question};
use super::reason::{PlanError, Reason};
use super::stacks::{Abilities, OVERLAPPED};
use crate::framework::framework;
use crate::resolve::{Selection, Variant, results};
use pipesim_cost::analytic::default_layers;
use pipesim_frameworks::Facts;
use pipesim_models::model_spec::{ModelSpec, Stage};
use pipesim_schedule::open::Order;
use pipesim_schedule::placement::Placement;
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of stages per device that is tried where the layers do not divide.
const MOST_UNEVEN: u32 = 8;

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
    /// Whether each layout gets the split of the layers that suits its costs; `stages` is any split then.
    pub moves: bool,
    /// Whether another shape has the default split.
    pub has_default: bool,
    pub stages: Vec<Stage>,
    /// For each device, the first device with the same number of each part.
    pub alike: Vec<u32>,
    /// The first shape with the same bounds.
    pub bounded_as: u32,
    /// Whether its bounds are those of every split of its layers, since another shape moves them.
    pub bounds_splits: bool,
    /// The shape whose bound of the pipeline is its own, too.
    pub piped_as: u32,
    /// Whether forwards hide the experts' communication of backwards.
    pub overlaps: bool,
}

/// Returns the pipelines of all `depths`.
pub fn shapes(
    question: &Question,
    able: &Abilities,
    depths: &BTreeSet<u32>,
    ruled_out: &mut BTreeMap<Reason, u64>,
) -> Result<Vec<PlanShape>, PlanError> {
    let spec = question.model.spec();
    let names = |pp: u32| {
        let mut names = able.schedules.clone();
        if pp == 1 {
            names.retain(|name| name == OVERLAPPED);
            names.insert(0, "1f1b".to_string());
        }
        names.into_iter().map(move |name| (pp, name))
    };
    let all: Vec<(u32, String)> = depths.iter().flat_map(|&pp| names(pp)).collect();
    let found = results(question.host, all.len(), |which| pipelines(question, able, &all[which].1, all[which].0));
    let mut shapes = Vec::new();
    for one in found {
        let (found, missing) = one?;
        if missing > 0 {
            *ruled_out.entry(Reason::Schedule).or_default() += missing;
        }
        for pipeline in found {
            let found = pipeline.with_splits(question, able, &spec);
            if found.is_empty() {
                *ruled_out.entry(Reason::Layers).or_default() += 1;
            }
            shapes.extend(found);
        }
    }
    for number in 0..shapes.len() {
        let same = shapes[..number].iter().position(|other| other.has_bounds_of(&shapes[number]));
        shapes[number].bounded_as = same.unwrap_or(number) as u32;
    }
    // with several stages per device in a loop, further stages only add layers that cannot move
    let key = |shape: &PlanShape| (shape.bounds_splits && shape.is_looped()).then_some((shape.pp, shape.splits));
    let mut fewest: BTreeMap<(u32, bool), usize> = BTreeMap::new();
    for number in 0..shapes.len() {
        let Some(own) = key(&shapes[number]) else { continue };
        let known = fewest.entry(own).or_insert(number);
        if shapes[number].chunks < shapes[*known].chunks {
            *known = number;
        }
    }
    for shape in &mut shapes {
        let same = key(shape).and_then(|own| fewest.get(&own).copied());
        shape.piped_as = same.map_or(shape.bounded_as, |same| same as u32);
    }
    Ok(shapes)
}

/// Returns whether `count` stages hold equal numbers of layers, with or without embedding and head as a layer each.
fn divides(question: &Question, able: &Abilities, pp: u32, chunks: u32) -> bool {
    let (layers, count) = (question.model.layers as u32, pp.saturating_mul(chunks));
    layers.is_multiple_of(count)
        || able.uneven_layers && !layers.is_multiple_of(pp) && (layers + 2).is_multiple_of(count)
}

/// Returns the numbers of stages per device to try: those that split the layers evenly, and where stages may differ all up to
/// [`MOST_UNEVEN`].
fn chunk_counts(question: &Question, able: &Abilities, pp: u32) -> Vec<u32> {
    let most = (question.model.layers as u32 + 2) / pp;
    let fixed = &question.fixed.chunks;
    let tried = |chunks: &u32| match fixed.is_empty() {
        true => divides(question, able, pp, *chunks) || able.uneven_layers && *chunks <= MOST_UNEVEN,
        false => fixed.contains(chunks),
    };
    (2..=most).filter(tried).collect()
}

/// Returns a schedule with each number of stages per device that it may have, without layers, and how many of these numbers it does not
/// have.
fn pipelines(question: &Question, able: &Abilities, name: &str, pp: u32) -> Result<(Vec<PlanShape>, u64), PlanError> {
    let selection = Selection { host: question.host, ..Selection::new(pp, 2 * pp) };
    let variant = Variant::parse(name).map_err(PlanError::refused)?;
    let takes = selection.takes(&variant).map_err(PlanError::refused)?;
    let has_own = variant.options.contains_key("v") || !takes.chunks || pp == 1;
    let mut counts: Vec<Option<u32>> = vec![None];
    if pp == 1 && variant.base == OVERLAPPED {
        counts = vec![Some(1)];
    } else if !has_own {
        counts = chunk_counts(question, able, pp).into_iter().map(Some).collect();
        // a schedule that leaves the number open has one stage per device by default
        let default = selection.order(name).ok().map(|found| found.order.placement().chunks());
        counts.extend((default == Some(1)).then_some(None));
    }
    let (mut found, mut missing) = (Vec::new(), 0);
    for chunks in counts {
        let order = match (Selection { chunks, ..selection.clone() }).order(name) {
            Ok(order) => order.order,
            Err(error) if error.is_of_numbers() => {
                missing += 1;
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
                needs_rounds: ["interleaved-1f1b", OVERLAPPED].contains(&variant.base.as_str()) && pp > 1,
                layers: None,
                moves: false,
                has_default: false,
                stages: Vec::new(),
                alike: Vec::new(),
                bounded_as: 0,
                bounds_splits: false,
                piped_as: 0,
                overlaps: variant.base == OVERLAPPED && question.model.experts.is_some(),
                placement,
            });
        }
    }
    Ok((found, missing))
}

/// Returns the splits of the layers to try that are the same for all layouts; `None` is the default one.
fn splits(question: &Question, able: &Abilities, placement: &Placement) -> Vec<Option<Vec<usize>>> {
    let (layers, count) = (question.model.layers, placement.stages() as usize);
    let given = &question.fixed.layers;
    if !given.is_empty() {
        return given.iter().filter(|given| given.len() == count).cloned().map(Some).collect();
    }
    let usual = default_layers(&question.model, count);
    if usual.iter().sum::<usize>() != layers || usual.iter().skip(1).take(count.saturating_sub(2)).any(|&n| n == 0) {
        return Vec::new();
    }
    if !able.uneven_layers {
        return if layers.is_multiple_of(count) { vec![None] } else { Vec::new() };
    }
    match own_split(question, placement) {
        Some(own) => vec![Some(own).filter(|own| *own != usual)],
        None => vec![None],
    }
}

/// Returns the split of a framework that takes no other.
fn own_split(question: &Question, placement: &Placement) -> Option<Vec<usize>> {
    let framework = framework(&question.machine.stack).ok()??;
    let mut facts = Facts::default();
    facts.add_model(&question.model).set("tp", 1).set("p", placement.devices()).set("v", placement.chunks());
    framework.split(&facts).ok()?.filter(|own| own.iter().sum::<usize>() == question.model.layers)
}

/// Returns a split of the layers in which no inner stage is empty; `None` if there are more stages than layers.
fn some_split(layers: usize, count: usize) -> Option<Vec<usize>> {
    let mut counts: Vec<usize> = (0..count).map(|stage| usize::from(stage > 0 && stage + 1 < count)).collect();
    let left = layers.checked_sub(counts.iter().sum())?;
    (0..left).for_each(|layer| counts[layer % count] += 1);
    Some(counts)
}

impl PlanShape {
    /// Returns the shape with each split of the layers that is tried, and with those that suit the costs.
    fn with_splits(&self, question: &Question, able: &Abilities, spec: &ModelSpec) -> Vec<PlanShape> {
        let count = self.placement.stages() as usize;
        // the room of a searched order is known with one stage per device only
        let moves = able.uneven_layers
            && count > 1
            && question.fixed.layers.is_empty()
            && !(self.is_open && self.chunks > 1)
            && own_split(question, &self.placement).is_none();
        let is_usual = !moves
            || !self.names_chunks
            || !question.fixed.chunks.is_empty()
            || divides(question, able, self.pp, self.chunks);
        let fixed = splits(question, able, &self.placement).into_iter().filter(|_| is_usual).filter_map(|layers| {
            let own = layers.clone().unwrap_or_else(|| default_layers(&question.model, count));
            Some(self.with(layers, spec.split(count, Some(&own)).ok()?))
        });
        let mut found: Vec<PlanShape> = fixed.collect();
        let some = some_split(spec.outline().layers(), count).filter(|_| moves);
        if let Some(stages) = some.and_then(|some| spec.split(count, Some(&some)).ok()) {
            found.push(PlanShape { moves, has_default: !found.is_empty(), ..self.with(None, stages) });
            found.iter_mut().for_each(|shape| shape.bounds_splits = true);
        }
        found
    }

    /// Returns whether the bounds of both are the same in all layouts.
    fn has_bounds_of(&self, other: &PlanShape) -> bool {
        let of = |shape: &PlanShape| (shape.pp, shape.chunks, shape.splits, shape.bounds_splits);
        of(self) == of(other)
            && self.placement == other.placement
            && (self.bounds_splits || self.stages == other.stages)
    }

    /// Returns whether device r has the stages r, r + p, r + 2 p, ..., at least two of them.
    fn is_looped(&self) -> bool {
        let (placement, p) = (&self.placement, self.placement.devices());
        let is_own = |stage: u32| placement.device_of_stage(stage, 0) == stage % p;
        self.chunks > 1 && placement.directions() == 1 && (0..placement.stages()).all(is_own)
    }

    /// Returns the shape with a split of the layers.
    fn with(&self, layers: Option<Vec<usize>>, stages: Vec<Stage>) -> PlanShape {
        let alike = alike(&self.placement, &stages);
        PlanShape { layers, stages, alike, ..self.clone() }
    }
}

/// Returns for each device the first one that holds the same number of each part.
pub(super) fn alike(placement: &Placement, stages: &[Stage]) -> Vec<u32> {
    let held = |device: u32| {
        let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
        let all = placement.stages_of(device).flat_map(|stage| stages[stage as usize].counts());
        all.for_each(|(part, count)| *counts.entry(part).or_default() += count);
        counts
    };
    let all: Vec<_> = (0..placement.devices()).map(held).collect();
    // in bidirectional placements, count the other holder of a stage, too
    let is_same = |one: usize, other: usize| placement.directions() == 1 && all[other] == all[one];
    (0..all.len()).map(|device| (0..device).find(|other| is_same(device, *other)).unwrap_or(device) as u32).collect()
}
