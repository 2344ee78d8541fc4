//! Layers per stage: the contiguous split with the shortest step.
//!
//! With a fixed order of ops, a pipeline never gets shorter when a stage gets one more layer. So the bound of a step in which some
//! stages have their layers and the others their minimum holds for all splits that start this way: branch and bound over the
//! stages finds the optimum and proves it. Work is counted in simulated steps, not in time. Without a bound, a local search finds
//! a good split without proof.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How long a step with some split takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitTime {
    /// What is minimized.
    pub time: u64,
    /// A lower bound of the time of every split in which no stage has fewer layers; 0 if none is known.
    pub least: u64,
}

/// A split to optimize.
pub struct Problem<'a> {
    /// Number of layers of the model.
    pub layers: usize,
    /// Initial split: layers per stage; they add up to `layers`.
    pub start: Vec<usize>,
    /// Returns the step time for these layers per stage, whatever their sum; `None` if there is no such step.
    pub step: &'a dyn Fn(&[usize]) -> Option<SplitTime>,
    /// Returns whether every device has enough memory; a split that fits still fits with fewer layers.
    pub fits: &'a dyn Fn(&[usize]) -> bool,
    /// Maximum number of steps to simulate.
    pub budget: u64,
}

/// The best split found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Layers per stage.
    pub layers: Vec<usize>,
    /// Step time.
    pub step: u64,
    /// Step time of the initial split, and whether it fits; `None` if there is no such step.
    pub before: Option<(u64, bool)>,
    /// Whether the split is proven optimal.
    pub is_optimal: bool,
    /// Number of simulated steps.
    pub steps: u64,
}

/// The result in time units, compared with the initial split: part of an entry of `predict --format json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balanced {
    /// Layers per stage.
    pub layers: Vec<usize>,
    /// Makespan, in the prediction's time unit.
    pub makespan: f64,
    /// Time of an iteration, on hardware, which is then what is minimized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration_s: Option<f64>,
    /// Layers per stage of the initial split.
    pub layers_before: Vec<usize>,
    /// Makespan of the initial split.
    pub makespan_before: f64,
    /// Time of an iteration with the initial split, on hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration_before_s: Option<f64>,
    /// Whether the initial split fits into memory.
    pub fits_before: bool,
    /// Whether no contiguous split is better under the schedule's order.
    pub is_optimal: bool,
    /// Number of simulated splits, complete or partial.
    pub simulated: u64,
}

impl fmt::Display for Balanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |layers: &[usize]| layers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let proof = if self.is_optimal { "no split is better" } else { "the best of those tried" };
        if self.layers == self.layers_before {
            return write!(f, "`layers` {} stays ({proof}; {} simulated)", list(&self.layers), self.simulated);
        }
        let (now, before) = self.times();
        let change = 100.0 * (now / before - 1.0);
        let room = if self.fits_before { "" } else { ", which does not fit" };
        let what = if self.iteration_s.is_some() { "iteration in seconds" } else { "makespan" };
        write!(
            f,
            "`layers` {} instead of {}{room}: {what} {now:.4} instead of {before:.4}, {change:+.1} % ({proof}; {} simulated)",
            list(&self.layers),
            list(&self.layers_before),
            self.simulated
        )
    }
}

impl Balanced {
    /// Returns what was minimized, now and before: iterations in seconds on hardware, otherwise makespans.
    pub fn times(&self) -> (f64, f64) {
        self.iteration_s.zip(self.iteration_before_s).unwrap_or((self.makespan, self.makespan_before))
    }
}

struct SplitSearch<'a> {
    problem: &'a Problem<'a>,
    best: Option<(u64, Vec<usize>)>,
    steps: u64,
    /// Minimum and maximum layers of each stage in a split better than the best.
    bounds: Vec<(usize, usize)>,
}

/// Returns the split with the shortest step that fits; `None` if no split that fits is found.
pub fn balance(problem: &Problem<'_>) -> Option<Balance> {
    let stages = problem.start.len();
    let least = |stage: usize| usize::from(stage > 0 && stage + 1 < stages);
    let bounds = (0..stages).map(|stage| (least(stage), problem.layers)).collect();
    let mut search = SplitSearch { problem, best: None, steps: 0, bounds };
    let start = search.step(&problem.start);
    let has_bound = start.is_some_and(|start| start.least > 0);
    let before = start.map(|step| (step.time, (problem.fits)(&problem.start)));
    search.climb(problem.start.clone());
    if let Some(filled) = search.filled() {
        search.climb(filled);
    }
    let is_optimal = has_bound && search.narrow() && {
        let mut layers: Vec<usize> = search.bounds.iter().map(|&(least, _)| least).collect();
        search.branch(0, &mut layers)
    };
    let (step, layers) = search.best?;
    Some(Balance { layers, step, before, is_optimal, steps: search.steps })
}

impl SplitSearch<'_> {
    fn step(&mut self, layers: &[usize]) -> Option<SplitTime> {
        self.steps += 1;
        (self.problem.step)(layers)
    }

    fn is_spent(&self) -> bool {
        self.steps >= self.problem.budget
    }

    /// Takes a split as the best if it is shorter and fits. Returns whether it did.
    fn offer(&mut self, layers: &[usize]) -> bool {
        let Some(SplitTime { time: step, .. }) = self.step(layers) else { return false };
        let is_better = self.best.as_ref().is_none_or(|(best, _)| step < *best) && (self.problem.fits)(layers);
        if is_better {
            self.best = Some((step, layers.to_vec()));
        }
        is_better
    }

    /// Builds a split from the minimum, adding each layer where the step stays shortest.
    fn filled(&mut self) -> Option<Vec<usize>> {
        let mut layers: Vec<usize> = self.bounds.iter().map(|&(least, _)| least).collect();
        while layers.iter().sum::<usize>() < self.problem.layers {
            if self.is_spent() {
                return None;
            }
            let mut best = None;
            for stage in 0..layers.len() {
                layers[stage] += 1;
                let step = (self.problem.fits)(&layers).then(|| self.step(&layers)).flatten();
                let step = step.map(|step| step.time);
                layers[stage] -= 1;
                // ties: the stage with the fewest layers
                let key = step.map(|step| (step, layers[stage], stage));
                best = key.into_iter().chain(best).min();
            }
            layers[best?.2] += 1;
        }
        Some(layers)
    }

    /// Moves single layers between stages while that shortens the step.
    fn climb(&mut self, mut layers: Vec<usize>) {
        self.offer(&layers);
        let stages = layers.len();
        let mut improved = true;
        while improved && !self.is_spent() {
            improved = false;
            for (from, to) in (0..stages).flat_map(|from| (0..stages).map(move |to| (from, to))) {
                if from == to || layers[from] <= self.bounds[from].0 || self.is_spent() {
                    continue;
                }
                layers[from] -= 1;
                layers[to] += 1;
                if self.offer(&layers) {
                    improved = true;
                } else {
                    layers[from] += 1;
                    layers[to] -= 1;
                }
            }
        }
    }

    /// Returns whether `layers` may grow into a better split: the lower bound of its step is below the best.
    fn may_be_better(&mut self, layers: &[usize]) -> bool {
        let Some(SplitTime { least, .. }) = self.step(layers) else { return true };
        self.best.as_ref().is_none_or(|(best, _)| least < *best) && (self.problem.fits)(layers)
    }

    /// Narrows the bounds of each stage to a fixed point. Returns false if the budget is spent.
    fn narrow(&mut self) -> bool {
        let stages = self.bounds.len();
        loop {
            let before = self.bounds.clone();
            for stage in 0..stages {
                let mut layers: Vec<usize> = self.bounds.iter().map(|&(least, _)| least).collect();
                let (mut low, mut high) = self.bounds[stage];
                while low < high {
                    if self.is_spent() {
                        return false;
                    }
                    layers[stage] = (low + high).div_ceil(2);
                    if self.may_be_better(&layers) { low = layers[stage] } else { high = layers[stage] - 1 }
                }
                self.bounds[stage].1 = high;
            }
            let most: usize = self.bounds.iter().map(|&(_, most)| most).sum();
            for (least, own) in &mut self.bounds {
                *least = (*least).max((self.problem.layers + *own).saturating_sub(most)).min(*own);
            }
            if self.bounds == before {
                return true;
            }
        }
    }

    /// Fills `layers[stage..]` with the minimum of each stage, for `left` layers in total. Returns false if they cannot hold
    /// them.
    fn fill(&self, stage: usize, left: usize, layers: &mut [usize]) -> bool {
        let bounds = &self.bounds[stage..];
        let (least, most) = bounds.iter().fold((0, 0), |(a, b), &(least, most)| (a + least, b + most));
        for (count, &(fewest, own)) in layers[stage..].iter_mut().zip(bounds) {
            *count = fewest.max((left + own).saturating_sub(most));
        }
        (least..=most).contains(&left)
    }

    /// Tries every split that starts with `layers[..stage]` and may be better. Returns false if the budget is spent.
    fn branch(&mut self, stage: usize, layers: &mut Vec<usize>) -> bool {
        let given: usize = layers[..stage].iter().sum();
        let Some(left) = self.problem.layers.checked_sub(given) else { return true };
        if stage + 1 == layers.len() {
            layers[stage] = left;
            let (least, most) = self.bounds[stage];
            if (least..=most).contains(&left) {
                self.offer(layers);
            }
            return !self.is_spent();
        }
        let (least, most) = self.bounds[stage];
        for count in least..=most.min(left) {
            if self.is_spent() {
                return false;
            }
            layers[stage] = count;
            if self.fill(stage + 1, left - count, layers)
                && self.may_be_better(layers)
                && !self.branch(stage + 1, layers)
            {
                return false;
            }
        }
        true
    }
}
