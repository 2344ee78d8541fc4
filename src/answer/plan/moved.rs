//! Layers that are moved between stages for the costs of a layout: first so that the busiest device is as light as possible and every
//! device fits, then, for the best layouts, step by step as the simulated iteration tells.

use super::answer::RESOLUTION;
use super::journal::LayoutOutcome;
use super::orders::Ordered;
use super::search::{FEW_SPLITS, NEAR, Search};
use super::shapes::{PlanShape, alike};
use super::space::{Candidate, Key, RefinedSplit, key};
use super::stacks::FEWEST;
use crate::resolve::results;
use pipesim_cost::analytic::{Analytic, default_layers};
use pipesim_models::layout::{ParallelConfig, StepOptions};
use pipesim_models::model_spec::Stage;
use pipesim_sim::sweep;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of layouts whose splits are refined at once, and of these as many as take this many times the ops of one.
const MOST_LAYOUTS: usize = 256;
const MOST_LARGE: usize = 8;
/// Ops that are simulated to find splits of layouts that do not fit with theirs.
const MOST_UNFIT: usize = 750_000;
/// Ops that are simulated to refine the split of one layout, and the least and most steps.
const MOST_OPS: usize = 3_000_000;
const STEPS: [usize; 2] = [64, 1500];
/// Largest number of stages between which two layers move at once, and between which they move from and to any stages.
const FEW_STAGES: [usize; 2] = [8, 4];

/// Returns the fewest layers of a stage: only the first and the last may be empty.
fn least(stage: usize, stages: usize) -> usize {
    usize::from(stage > 0 && stage + 1 < stages)
}

/// Returns the number of splits of `layers` layers over `stages` stages.
fn splits(layers: usize, stages: usize) -> f64 {
    let free = layers.saturating_sub((0..stages).map(|stage| least(stage, stages)).sum());
    (1..stages).fold(1.0, |count, stage| count * (free + stage) as f64 / stage as f64)
}

/// Returns the number of steps of `ops` ops that refine the split of a layout.
fn steps(ops: usize) -> usize {
    (MOST_OPS / ops.max(1)).clamp(STEPS[0], STEPS[1])
}

/// A layout whose layers are moved.
struct Climb<'a> {
    search: &'a Search<'a>,
    shape: &'a PlanShape,
    costs: Analytic,
    ordered: &'a Ordered,
    best: f64,
    bytes: u64,
    steps: usize,
}

impl Search<'_> {
    /// Returns the stages of a layout with these costs.
    pub(super) fn stages<'s>(&self, shape: &'s PlanShape, costs: &Analytic) -> Option<Cow<'s, [Stage]>> {
        match shape.moves {
            true => costs.stages(shape.placement.stages()).ok().map(Cow::Owned),
            false => Some(Cow::Borrowed(&shape.stages)),
        }
    }

    /// Returns the costs of a layout with the layers per stage that suit them; `None` if these are the default ones, or if there is no order.
    /// The bytes of the fullest device, too, if they are known then.
    pub(super) fn moved(&self, candidate: &Candidate) -> Option<(Analytic, Option<u64>)> {
        let (question, shape) = (self.question, self.space.shape(candidate));
        let mut layout = self.space.layout(question, candidate);
        let refined = self.refined().get(&key(candidate)).cloned();
        if let Some(found) = refined {
            layout.layers = Some(found.layers);
            layout.recompute = found.recompute;
            layout = layout.with_options(found.options);
            return Some((self.priced(candidate.group, layout)?, None));
        }
        let mut costs = self.priced(candidate.group, layout)?;
        let (layers, used) = self.fitting(candidate, &mut costs)?;
        if shape.has_default && layers == default_layers(&question.model, layers.len()) {
            return None;
        }
        costs.layout.layers = Some(layers);
        Some((self.with_fewest(candidate, costs)?, used))
    }

    /// Returns the layers per stage whose busiest device is the lightest of those with which every device fits, or of all if none fits; and the
    /// bytes of the fullest device, if they are known then.
    fn fitting(&self, candidate: &Candidate, costs: &mut Analytic) -> Option<(Vec<usize>, Option<u64>)> {
        let (shape, bytes) = (self.space.shape(candidate), self.question.bytes());
        let times = self.groups.times(candidate.group, costs, shape.splits)?;
        let lightest = self.groups.lightest([candidate.group, candidate.shape], times, &shape.placement)?;
        let mut most = vec![usize::MAX; shape.pp as usize];
        if shape.is_open || costs.layout.recompute == FEWEST {
            return Some((lightest, None));
        }
        let (mut layers, mut first) = (lightest.clone(), None);
        for round in 0..=2 * shape.pp {
            costs.layout.layers = Some(layers.clone());
            let each = self.memory(candidate, costs)?;
            let used = each.iter().copied().max().unwrap_or(0);
            let first = *first.get_or_insert(used);
            if used <= bytes {
                return Some((layers, Some(used)));
            }
            let sum: u128 = each.iter().copied().map(u128::from).sum();
            if sum > u128::from(shape.pp) * u128::from(bytes) || round == 2 * shape.pp {
                return Some((lightest, Some(first)));
            }
            for (device, used) in (0..shape.pp).zip(each) {
                if used > bytes {
                    let held: usize = shape.placement.stages_of(device).map(|stage| layers[stage as usize]).sum();
                    most[device as usize] = held.checked_sub(1)?;
                }
            }
            let Some(next) = times.lightest(&shape.placement, &most) else { return Some((lightest, Some(first))) };
            layers = next;
        }
        Some((lightest, first))
    }

    /// Returns the bytes of each device of a layout with these costs.
    fn memory(&self, candidate: &Candidate, costs: &Analytic) -> Option<Vec<u64>> {
        let ordered = self.order(candidate, costs).ok()?;
        let stages = self.stages(self.space.shape(candidate), costs)?;
        Some(costs.memory_model().totals(&stages, &ordered.moments).collect())
    }

    /// Returns the costs of a layout of a group.
    pub(super) fn priced(&self, group: u32, layout: ParallelConfig) -> Option<Analytic> {
        self.groups.of(self.question, group, layout)
    }

    /// Returns the costs with the fewest recomputed layers, if the layout asks for that.
    pub(super) fn with_fewest(&self, candidate: &Candidate, costs: Analytic) -> Option<Analytic> {
        let shape = self.space.shape(candidate);
        match costs.layout.recompute {
            FEWEST if shape.is_open => None,
            FEWEST => {
                let (ordered, stages) = (self.order(candidate, &costs).ok()?, self.stages(shape, &costs)?);
                costs.with_fewest(self.question.bytes(), &stages, &ordered.moments)
            }
            _ => Some(costs),
        }
    }

    /// Returns the number of splits of a layout.
    pub(super) fn splits_of(&self, candidate: &Candidate) -> f64 {
        splits(self.question.model.layers, self.space.shape(candidate).placement.stages() as usize)
    }

    /// Moves layers of the layouts that may become the best of `numbers` and of all that were predicted nearly as fast.
    pub(super) fn refine(&self, numbers: &[u32], allows: &dyn Fn(&Candidate) -> bool) {
        let candidates = &self.space.candidates;
        let cost = |number: u32, outcome: &LayoutOutcome| match outcome {
            LayoutOutcome::Predicted { bytes, iteration_s } if *bytes <= self.question.bytes() => {
                let candidate = &candidates[number as usize];
                Some(iteration_s * self.question.price(self.space.group(candidate).gpus)).filter(|_| allows(candidate))
            }
            _ => None,
        };
        let outcomes = self.outcomes();
        let mut near: Vec<(f64, u32)> =
            outcomes.iter().filter_map(|(&number, outcome)| Some((cost(number, outcome)?, number))).collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let best = near.first().map_or(0.0, |(best, _)| *best);
        // another of few splits may be much faster, or fit
        let may = |candidate: &Candidate| {
            candidate.bound <= best * (1.0 + RESOLUTION) && self.splits_of(candidate) <= FEW_SPLITS && allows(candidate)
        };
        near.retain(|(cost, number)| *cost <= best * (1.0 + NEAR) || may(&candidates[*number as usize]));
        let shapes = &self.space.shapes;
        let of = |shape: &PlanShape| (shape.schedule.clone(), shape.pp, shape.chunks, shape.names_chunks);
        let moved = |number: u32| -> Option<Key> {
            let own = key(&candidates[number as usize]);
            let is_same = |other: &PlanShape| other.moves && of(other) == of(&shapes[own.1 as usize]);
            let shape = shapes.iter().position(is_same)? as u32;
            Some((own.0, shape, own.2, own.3, own.4))
        };
        let all: Vec<Key> =
            numbers.iter().copied().chain(near.into_iter().map(|(_, number)| number)).filter_map(moved).collect();
        let known: BTreeSet<&Key> = all.iter().collect();
        let moving: BTreeMap<Key, u32> = (0..)
            .zip(candidates)
            .filter(|(_, candidate)| self.space.shape(candidate).moves)
            .map(|(number, candidate)| (key(candidate), number))
            .filter(|(own, _)| known.contains(own))
            .collect();
        let mut seen = BTreeSet::new();
        let all = all.iter().filter_map(|own| moving.get(own).copied());
        let mut work: Vec<u32> = all.filter(|number| seen.insert(*number)).collect();
        work.retain(|number| !self.climbed().contains(number));
        let mut left = MOST_LARGE * MOST_OPS;
        let within = |number: &u32| {
            let candidate = &candidates[*number as usize];
            let ops = 2 * candidate.micro as usize * self.space.shape(candidate).placement.stages() as usize;
            left = left.saturating_sub(ops * steps(ops));
            left > 0
        };
        work = work.into_iter().take_while(within).take(MOST_LAYOUTS).collect();
        let mut left = MOST_UNFIT as f64;
        let is_unfit = |number: u32, outcome: &LayoutOutcome| {
            let candidate = &candidates[number as usize];
            matches!(outcome, LayoutOutcome::TooLarge(_) | LayoutOutcome::Missing)
                && self.space.shape(candidate).moves
                && may(candidate)
                && self.least(candidate) <= self.question.bytes()
                && !self.overflows(candidate)
        };
        let unfit = outcomes.iter().filter(|(number, outcome)| is_unfit(**number, outcome)).map(|(number, _)| *number);
        let unfit = unfit.filter(|number| !work.contains(number) && !self.climbed().contains(number));
        let unfit = unfit.take_while(|number| {
            let candidate = &candidates[*number as usize];
            left -= self.splits_of(candidate)
                * f64::from(2 * candidate.micro * self.space.shape(candidate).placement.stages());
            left >= 0.0
        });
        let unfit: Vec<u32> = unfit.collect();
        work.extend(unfit);
        self.climbed().extend(&work);
        let found = results(self.question.host, work.len(), |which| self.climb(&candidates[work[which] as usize]));
        for (number, found) in work.iter().zip(found) {
            found.into_iter().for_each(|found| drop(self.refined().insert(key(&candidates[*number as usize]), found)));
        }
    }

    /// Returns a split of a layout's layers that no single layer makes faster; `None` if it is the known one.
    fn climb(&self, candidate: &Candidate) -> Option<RefinedSplit> {
        let shape = self.space.shape(candidate);
        let default = || self.priced(candidate.group, self.space.layout(self.question, candidate));
        let costs = self.costs(candidate).or_else(|| default().and_then(|costs| self.with_fewest(candidate, costs)))?;
        if shape.is_open {
            return None;
        }
        let ordered = self.order(candidate, &costs).ok()?;
        let steps = steps(ordered.graph.len());
        let usual = default_layers(&self.question.model, shape.placement.stages() as usize);
        let mut layers = costs.layout.layers.clone().unwrap_or_else(|| usual.clone());
        let mut climb = Climb { search: self, shape, costs, ordered: &ordered, best: f64::INFINITY, bytes: 0, steps };
        climb.offer(&layers);
        let before = layers.clone();
        climb.run(&mut layers);
        let options = climb.with_delay(&mut layers);
        let is_same = climb.costs.layout.options() == options;
        if is_same && (layers == before || shape.has_default && layers == usual) {
            return None;
        }
        let outcome = LayoutOutcome::Predicted { bytes: climb.bytes, iteration_s: climb.best };
        Some(RefinedSplit { layers, recompute: climb.costs.layout.recompute, options, outcome })
    }
}

impl Climb<'_> {
    /// Tries every split if there are few; otherwise moves single layers, between few stages also two at once, while that shortens the
    /// iteration.
    fn run(&mut self, layers: &mut [usize]) {
        let stages = layers.len();
        let all = layers.iter().sum::<usize>();
        if splits(all, stages) <= FEW_SPLITS.min(self.steps as f64) {
            let mut first: Vec<usize> = (0..stages).map(|stage| least(stage, stages)).collect();
            let (left, mut best) = (all.saturating_sub(first.iter().sum()), layers.to_vec());
            self.every(&mut first, 0, left, &mut best);
            layers.copy_from_slice(&best);
            return;
        }
        // one layer may only help after another
        let most = if stages <= FEW_STAGES[0] { 2 } else { 1 };
        let single = |count: usize| {
            let all = (0..stages).flat_map(|from| (0..stages).map(move |to| (from, to)));
            all.filter(|(from, to)| from != to).map(move |(from, to)| vec![(from, to); count]).collect::<Vec<_>>()
        };
        let mut moves: Vec<Vec<(usize, usize)>> = (1..=most).flat_map(single).collect();
        if stages <= FEW_STAGES[1] {
            let ones = single(1);
            moves.extend(ones.iter().flat_map(|one| ones.iter().map(move |other| [&one[..], other].concat())));
        }
        // until no pair helps since the last that did
        let (mut at, mut failed) = (0, 0);
        while failed < moves.len() && self.steps > 0 {
            let mut moved: Vec<isize> = layers.iter().map(|&count| count as isize).collect();
            for &(from, to) in &moves[at] {
                (moved[from], moved[to]) = (moved[from] - 1, moved[to] + 1);
            }
            at = (at + 1) % moves.len();
            failed += 1;
            // only the first and the last stage may be empty
            let is_split = |(stage, &count): (usize, &isize)| count >= least(stage, stages) as isize;
            let moved = moved.iter().enumerate().all(is_split).then_some(moved);
            let Some(moved) = moved.map(|moved| moved.into_iter().map(|count| count as usize).collect::<Vec<_>>())
            else {
                continue;
            };
            if self.offer(&moved) {
                layers.copy_from_slice(&moved);
                failed = 0;
            }
        }
    }

    /// Tries every way to add `left` layers to the stages from `stage` on.
    fn every(&mut self, layers: &mut Vec<usize>, stage: usize, left: usize, best: &mut Vec<usize>) {
        if stage + 1 == layers.len() {
            layers[stage] += left;
            if self.offer(layers) {
                best.clone_from(layers);
            }
            layers[stage] -= left;
            return;
        }
        for more in 0..=left {
            layers[stage] += more;
            self.every(layers, stage + 1, left - more, best);
            layers[stage] -= more;
        }
    }

    /// Tries splits with weight gradients apart for the overlap of experts' communication, or not; returns the better options. Which are better
    /// depends on the stages, not only on their layers.
    fn with_delay(&mut self, layers: &mut [usize]) -> StepOptions {
        let (question, own) = (self.search.question, self.costs.layout.options());
        if !own.moe_overlap || !question.fixed.delay_wgrad.is_empty() {
            return own;
        }
        let other = StepOptions { delay_wgrad: !own.delay_wgrad, ..own };
        let layout = self.costs.layout.clone().with_options(other);
        let Ok(costs) = self.costs.under(layout) else { return own };
        let (usual, before) = (std::mem::replace(&mut self.costs, costs), self.best);
        self.steps = steps(self.ordered.graph.len());
        self.offer(layers);
        self.run(layers);
        self.costs = usual;
        if self.best < before { other } else { own }
    }

    /// Returns whether a split is faster than the best, fits, and is not refused; it is the best then.
    fn offer(&mut self, layers: &[usize]) -> bool {
        self.steps = self.steps.saturating_sub(1);
        let (shape, search) = (self.shape, self.search);
        self.costs.layout.layers = Some(layers.to_vec());
        let costs = &self.costs;
        let Ok(stages) = costs.stages(shape.placement.stages()) else { return false };
        // no order makes up for a device with too much work
        let alike = alike(&shape.placement, &stages);
        if costs.least_iteration(&shape.placement, &stages, shape.splits, &alike) >= self.best {
            return false;
        }
        let time = || {
            let table = costs.bare_table(&shape.placement, &stages, shape.overlaps).ok()?;
            let devices = sweep(&self.ordered.graph, &table);
            Some(costs.step(&shape.placement, &stages, &devices, shape.splits).ok()?.iteration())
        };
        let Some(time) = time().filter(|time| *time < self.best * (1.0 - 1e-9)) else { return false };
        let used = costs.memory_model().totals(&stages, &self.ordered.moments).max().unwrap_or(0);
        let is_better = used <= search.question.bytes() && !search.is_refused(shape, costs);
        if is_better {
            (self.best, self.bytes) = (time, used);
        }
        is_better
    }
}
