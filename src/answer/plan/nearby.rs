//! Answers to similar questions: less memory, fewer GPUs, other degrees, links or batch.

use super::answer::Plan;
use super::question::Question;
use super::search::{Limits, Observer, Search, Silent};
use super::space::{Candidate, Space};
use std::collections::BTreeSet;

/// Maximum number of points of a front.
const MOST_POINTS: usize = 40;
/// Distance of the points of a front, as a share of memory.
const APART: f64 = 0.02;

/// A change of a question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Variation {
    /// Multiple of the memory.
    Memory(f64),
    /// Multiple of the bandwidth within nodes.
    Link(f64),
    /// Multiple of the bandwidth between nodes.
    Network(f64),
    /// Multiple of the batch.
    Batch(u32),
}

impl Variation {
    /// Returns the changes that a report shows.
    pub const SHOWN: [Variation; 14] = [
        Variation::Memory(0.5),
        Variation::Memory(0.75),
        Variation::Memory(1.25),
        Variation::Memory(1.5),
        Variation::Memory(2.0),
        Variation::Link(0.25),
        Variation::Link(0.5),
        Variation::Link(2.0),
        Variation::Network(0.125),
        Variation::Network(0.25),
        Variation::Network(0.5),
        Variation::Network(2.0),
        Variation::Network(4.0),
        Variation::Batch(2),
    ];

    /// Returns the name of the changed quantity, and its multiple.
    pub fn parts(self) -> (&'static str, f64) {
        match self {
            Variation::Memory(times) => ("memory", times),
            Variation::Link(times) => ("link", times),
            Variation::Network(times) => ("network", times),
            Variation::Batch(times) => ("batch", f64::from(times)),
        }
    }

    /// Returns the changed question.
    pub fn apply(self, question: &Question) -> Question {
        let mut other = question.clone();
        match self {
            Variation::Memory(times) => {
                other.memory_limit = other.memory_limit.map(|bytes| (bytes as f64 * times) as u64);
                other.machine.hardware.memory_gib *= times;
            }
            Variation::Link(times) => other.machine.hardware.link_gbytes_per_s *= times,
            Variation::Network(times) => other.machine.hardware.network_gbps_per_gpu *= times,
            Variation::Batch(times) => other.batch = other.batch.saturating_mul(times),
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
    pub change: Variation,
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
pub struct Stops<'a>(pub &'a dyn Observer);

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
pub fn sensitivities(question: &Question, changes: &[Variation], observer: &dyn Observer) -> Vec<NearbyPlan> {
    let mut all = Vec::new();
    for &change in changes {
        if observer.is_stopped() {
            break;
        }
        let other = change.apply(question);
        let search = Search::new(&other).ok();
        let plan = search.and_then(|search| search.one_until(other.bytes(), &|_, _| true, observer));
        all.push(NearbyPlan { change, plan });
    }
    all
}

/// Returns the fronts of time against memory, for the first number of GPUs, and against GPUs, as far as `observer` lets them be searched.
pub fn fronts(search: &Search<'_>, observer: &dyn Observer) -> Front {
    let question = search.question;
    let mut memory = Vec::new();
    let mut bytes = question.bytes();
    while memory.len() < MOST_POINTS && !observer.is_stopped() {
        let on_first = on_gpus(question.gpus[0].into());
        let Some(plan) = search.one_until(bytes, &on_first, observer) else { break };
        let used = plan.memory_bytes();
        memory.push(plan);
        bytes = used.saturating_sub(((search.question.bytes() as f64 * APART) as u64).max(1));
    }
    memory.reverse();
    let mut sizes: Vec<u32> = question.gpus.clone();
    sizes.sort_unstable();
    let gpus =
        sizes.into_iter().filter_map(|gpus| search.one_until(search.question.bytes(), &on_gpus(gpus.into()), observer));
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
        search.one_until(search.question.bytes(), &is_of_pair, observer)
    };
    pairs.into_iter().filter_map(best).collect()
}
