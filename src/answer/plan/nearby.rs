//! Answers to similar questions: less memory, fewer GPUs, other degrees, links or batch.

use super::answer::Plan;
use super::question::{PlanError, Question};
use super::search::{Limits, Observer, Search, Silent};
use super::space::{Candidate, Space};
use std::collections::BTreeSet;

/// Maximum number of points of a front.
const MOST_POINTS: usize = 40;
/// Distance of the points of a front, as a share of memory.
const APART: f64 = 0.02;

/// A change of a question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Multiple of the memory.
    Memory(f64),
    /// Multiple of the bandwidth within nodes.
    Link(f64),
    /// Multiple of the bandwidth between nodes.
    Network(f64),
    /// Multiple of the batch.
    Batch(u32),
}

impl Change {
    /// Returns the changes that a report shows.
    pub const SHOWN: [Change; 14] = [
        Change::Memory(0.5),
        Change::Memory(0.75),
        Change::Memory(1.25),
        Change::Memory(1.5),
        Change::Memory(2.0),
        Change::Link(0.25),
        Change::Link(0.5),
        Change::Link(2.0),
        Change::Network(0.125),
        Change::Network(0.25),
        Change::Network(0.5),
        Change::Network(2.0),
        Change::Network(4.0),
        Change::Batch(2),
    ];

    /// Returns the name of the changed quantity, and its multiple.
    pub fn parts(self) -> (&'static str, f64) {
        match self {
            Change::Memory(times) => ("memory", times),
            Change::Link(times) => ("link", times),
            Change::Network(times) => ("network", times),
            Change::Batch(times) => ("batch", f64::from(times)),
        }
    }

    /// Returns the changed question.
    pub fn apply(self, question: &Question) -> Question {
        let mut other = question.clone();
        match self {
            Change::Memory(times) => {
                other.memory_limit = other.memory_limit.map(|bytes| (bytes as f64 * times) as u64);
                other.machine.hardware.memory_gib *= times;
            }
            Change::Link(times) => other.machine.hardware.link_gbytes_per_s *= times,
            Change::Network(times) => other.machine.hardware.network_gbps_per_gpu *= times,
            Change::Batch(times) => other.batch = other.batch.saturating_mul(times),
        }
        other
    }
}

impl Question {
    /// Returns the same question about the number of GPUs of `plan`.
    pub fn of_size(&self, plan: &Plan) -> Question {
        Question { gpus: u32::try_from(plan.layout.gpus()).into_iter().collect(), ..self.clone() }
    }
}

/// The best plan of a changed question.
#[derive(Clone, Debug)]
pub struct NearbyPlan {
    pub change: Change,
    /// `None` if nothing fits.
    pub plan: Option<Plan>,
}

/// Pareto fronts: plans that no other plan beats in both figures.
#[derive(Clone, Debug, Default)]
pub struct Front {
    /// By memory: each is the fastest plan that needs at most as much memory.
    pub memory: Vec<Plan>,
    /// By number of GPUs.
    pub gpus: Vec<Plan>,
}

/// An observer that only stops searches.
struct Stops<'a>(&'a dyn Observer);

impl Observer for Stops<'_> {
    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

impl Search<'_> {
    /// Returns the best plan of those allowed within `bytes`.
    pub fn one(&self, bytes: u64, allows: &(dyn Fn(&Space, &Candidate) -> bool + Sync)) -> Option<Plan> {
        self.one_until(bytes, allows, &Silent)
    }

    /// Returns the best plan of those allowed within `bytes`, or that found until `observer` stopped the search.
    fn one_until(
        &self,
        bytes: u64,
        allows: &(dyn Fn(&Space, &Candidate) -> bool + Sync),
        observer: &dyn Observer,
    ) -> Option<Plan> {
        let found = self.best(&Limits { keep: 1, bytes, allows }, &Stops(observer));
        self.plan(&self.space.candidates[found.best.first()?.1 as usize])
    }
}

/// Returns which layouts are of this number of GPUs.
pub(super) fn on_gpus(gpus: u64) -> impl Fn(&Space, &Candidate) -> bool + Sync {
    move |space, candidate| u64::from(space.group(candidate).gpus) == gpus
}

/// Returns the best plan of each changed question; those that `observer` stops are left out.
pub fn sensitivities(question: &Question, changes: &[Change], observer: &dyn Observer) -> Vec<NearbyPlan> {
    let mut all = Vec::new();
    for &change in changes {
        if observer.is_stopped() {
            break;
        }
        let other = change.apply(question);
        let search: Result<Search<'_>, PlanError> = Search::new(&other);
        let plan = search.ok().and_then(|search| search.one_until(search.bytes(), &|_, _| true, observer));
        all.push(NearbyPlan { change, plan });
    }
    all
}

/// Returns the fronts of time against memory, for the first number of GPUs, and against GPUs, as far as `observer` lets them be searched.
pub fn fronts(search: &Search<'_>, observer: &dyn Observer) -> Front {
    let question = search.question;
    let mut memory = Vec::new();
    let mut bytes = search.bytes();
    while memory.len() < MOST_POINTS && !observer.is_stopped() {
        let on_first = on_gpus(question.gpus[0].into());
        let Some(plan) = search.one_until(bytes, &on_first, observer) else { break };
        let used = plan.memory_bytes();
        memory.push(plan);
        bytes = used.saturating_sub(((search.bytes() as f64 * APART) as u64).max(1));
    }
    memory.reverse();
    let mut sizes: Vec<u32> = question.gpus.clone();
    sizes.sort_unstable();
    let gpus = sizes.into_iter().filter_map(|gpus| search.one_until(search.bytes(), &on_gpus(gpus.into()), observer));
    Front { memory, gpus: gpus.collect() }
}

/// Returns the best plan of each pair of tensor- and pipeline-parallel degrees, for the first number of GPUs, as far as
/// `observer` lets them be searched.
pub fn heat_map(search: &Search<'_>, observer: &dyn Observer) -> Vec<Plan> {
    let gpus = search.question.gpus[0];
    let degrees = |space: &Space, candidate: &Candidate| {
        let group = space.group(candidate);
        (group.gpus == gpus).then_some((group.tp, space.shape(candidate).pp))
    };
    let pairs: BTreeSet<(u32, u32)> =
        search.space.candidates.iter().filter_map(|candidate| degrees(&search.space, candidate)).collect();
    let best = |pair| {
        let is_of_pair = move |space: &Space, candidate: &Candidate| degrees(space, candidate) == Some(pair);
        search.one_until(search.bytes(), &is_of_pair, observer)
    };
    pairs.into_iter().filter_map(best).collect()
}
