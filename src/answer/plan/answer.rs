//! The answer: the best plans, and what ruled out the rest.

use super::journal::LayoutOutcome;
use super::question::Question;
use super::reason::{PlanError, Reason};
use super::search::{Limits, Observer, Search, Silent};
use super::space::Candidate;
use crate::question::Risk;
use crate::step_estimate::{StepEstimate, class};
use pipesim_cost::analytic::GpuGroup;
use pipesim_models::hull::HullPoint;
use pipesim_models::layout::{ParallelConfig, Preference, Recompute};
use pipesim_sim::sweep;
use std::collections::BTreeMap;

/// Relative difference of two iteration times below which predictions cannot rank the layouts. Published measurements of one
/// and the same layout differ by 1 to 6 %.
pub const RESOLUTION: f64 = 0.04;

/// Returns the preference of a layout.
fn preference(search: &Search<'_>, candidate: &Candidate) -> Preference {
    let (group, shape) = (search.space.group(candidate), search.space.shape(candidate));
    let node = search.question.machine.hardware.gpus_per_node;
    let ranks = GpuGroup::tensor_parallel(group.tp, group.gpus.into(), node);
    Preference::new(group.micro_batch_size, group.recompute != Recompute::None, group.tp * group.cp, shape.pp)
        .across_nodes(ranks.crosses())
}

/// One layout of the answer.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the schedule, without the number of stages per device.
    pub schedule: String,
    /// Whether the number of stages per device has to be requested.
    pub names_chunks: bool,
    pub layout: ParallelConfig,
    pub estimate: StepEstimate,
    /// Its rank among plans that predictions cannot tell apart; `None` for a layout that was not searched.
    pub preference: Option<Preference>,
    /// Whether predictions cannot tell it from the first plan.
    pub is_tie: bool,
}

/// The best plans of a question.
#[derive(Clone, Debug)]
pub struct Plans {
    /// Best first.
    pub plans: Vec<Plan>,
    /// Number of layouts that were considered.
    pub considered: u64,
    /// Number of layouts that were predicted in full.
    pub evaluated: u64,
    /// Layouts that were ruled out, by reason; with the plans they add up to `considered`.
    pub ruled_out: BTreeMap<Reason, u64>,
    /// Whether the search was stopped before its end: others may be better.
    pub is_stopped: bool,
}

impl Plan {
    /// Returns the bytes of the fullest device.
    pub fn memory_bytes(&self) -> u64 {
        self.estimate.memory.fullest().total
    }

    /// Returns dollars per million tokens at a price per GPU and hour.
    pub fn dollars_per_million_tokens(&self, dollars_per_gpu_hour: f64) -> f64 {
        dollars_per_gpu_hour / 3600.0 / self.estimate.tokens_per_second_per_gpu * 1e6
    }
}

impl Search<'_> {
    /// Returns the plan of a layout.
    pub fn plan(&self, candidate: &Candidate) -> Option<Plan> {
        let costs = self.costs(candidate)?;
        let ordered = self.order(candidate, &costs).ok()?;
        let shape = self.space.shape(candidate);
        let stages = self.stages(shape, &costs)?;
        let table = costs.table(&shape.placement, &stages).ok()?;
        let devices = sweep(&ordered.graph, &table);
        let estimate = StepEstimate::of(&costs, ordered.graph.schedule(), &devices).ok()?;
        Some(Plan {
            schedule: shape.schedule.clone(),
            names_chunks: shape.names_chunks,
            layout: costs.layout,
            estimate,
            preference: Some(preference(self, candidate)),
            is_tie: false,
        })
    }

    /// Returns the simplest layout that predictions cannot tell from the best, of those that leave the mean error of predicted memory if there
    /// are any: tensor parallelism within a node before across nodes,
    /// smaller micro-batches before larger ones, then less recomputation, then smaller degrees; among equals the fastest. Among thousands
    /// of layouts, the fastest may be one whose prediction errs: where published steps are like another in more ways, that is the best
    /// unless its interval ends later.
    fn preferred(&self, (fastest, number): (f64, u32)) -> Option<u32> {
        let question = self.question;
        let (spec, machine) = (question.model.spec(), &question.machine);
        let outside = |layout: &ParallelConfig| {
            HullPoint::new(&question.model, &spec, &machine.hardware, &machine.stack, layout).outside(&[]).len()
        };
        // the question itself is the same for all
        let asked = outside(&question.base());
        let ways = |candidate: &Candidate| {
            self.unlike(candidate, || outside(&self.space.layout(question, candidate))).saturating_sub(asked)
        };
        let is_mixture = question.model.experts.is_some();
        let end = |ways: usize| class(machine, &question.base(), is_mixture, ways).factors()[1];
        let candidates = &self.space.candidates;
        let most = ways(&candidates[number as usize]);
        // those with the lowest bounds come first
        let near = |limit: f64, most: usize| {
            let is_near = move |(_, one): &(u32, &Candidate)| !self.space.shape(one).is_open && ways(one) <= most;
            (0..).zip(candidates).take_while(move |(_, one)| one.bound <= limit).filter(is_near)
        };
        let best_of = |numbers: &[u32], bytes: u64, limit: f64| {
            let found = self.best_of(numbers, &Limits { keep: 1, bytes, allows: &|_, _| true }, &Silent);
            found.best.first().copied().filter(|(cost, _)| *cost <= limit)
        };
        let better = (0..most.min(2)).find_map(|fewer| {
            let limit = fastest * end(most) / end(fewer);
            let numbers: Vec<u32> = near(limit, fewer).map(|(number, _)| number).collect();
            best_of(&numbers, question.bytes(), limit).map(|(cost, _)| (cost, fewer))
        });
        let (best, most) = better.unwrap_or((fastest, most));
        let limit = best * (1.0 + RESOLUTION);
        let mut alike: BTreeMap<Preference, Vec<u32>> = BTreeMap::new();
        near(limit, most).for_each(|(number, one)| alike.entry(preference(self, one)).or_default().push(number));
        let simplest =
            |bytes: u64| alike.values().find_map(|numbers| best_of(numbers, bytes, limit).map(|(_, number)| number));
        // predictions of memory err, too: what leaves room for that comes first
        [question.safe_bytes().min(question.bytes()), question.bytes()].into_iter().find_map(simplest)
    }

    /// Returns the best plans: first the simplest one that predictions cannot tell from the fastest, then the others by time.
    ///
    /// # Errors
    /// No layout is allowed, or none fits.
    pub fn plans(&self, observer: &dyn Observer) -> Result<Plans, PlanError> {
        let limits = Limits { keep: self.question.keep, bytes: self.question.bytes(), allows: &|_, _| true };
        let mut found = self.best(&limits, observer);
        if !found.is_stopped {
            self.refine(&[], &|_| true);
            found = self.best(&limits, observer);
        }
        let mut ruled_out = self.space.ruled_out.clone();
        found.ruled_out.iter().for_each(|(reason, count)| *ruled_out.entry(*reason).or_default() += count);
        let mut numbers: Vec<u32> = found.best.iter().map(|&(_, number)| number).collect();
        if let (Some(&best), false) = (found.best.first(), found.is_stopped) {
            let takes_fastest = self.question.risk == Risk::Even;
            let mut preferred = if takes_fastest { None } else { self.preferred(best) };
            // its layers move, too
            if let Some(number) = preferred {
                self.refine(&[number], &|_| false);
                preferred = self.preferred(best);
            }
            // first the plan to take, then the others by their times
            if let Some(preferred) = preferred {
                numbers.retain(|number| *number != preferred);
                numbers.insert(0, preferred);
                numbers.truncate(self.question.keep);
            }
            // the preferred plan was left out as one like a better plan
            if numbers.len() > found.best.len() {
                ruled_out.entry(Reason::Alike).and_modify(|count| *count -= 1);
            }
        }
        let plans = numbers.iter();
        let mut plans: Vec<Plan> =
            plans.filter_map(|&number| self.plan(&self.space.candidates[number as usize])).collect();
        mark_ties(&mut plans);
        if plans.is_empty() && !found.is_stopped {
            return Err(self.none_fits(&ruled_out));
        }
        let considered = self.space.candidates.len() as u64 + self.space.ruled_out.values().sum::<u64>();
        Ok(Plans { plans, considered, evaluated: found.predicted, ruled_out, is_stopped: found.is_stopped })
    }
}

/// Marks the plans that predictions cannot tell from the first one: their tokens per second and GPU differ by at most [`RESOLUTION`].
pub fn mark_ties(plans: &mut [Plan]) {
    let Some((best, others)) = plans.split_first_mut() else { return };
    for plan in others.iter_mut() {
        let ratio = best.estimate.tokens_per_second_per_gpu / plan.estimate.tokens_per_second_per_gpu;
        plan.is_tie = ratio <= 1.0 + RESOLUTION && 1.0 / ratio <= 1.0 + RESOLUTION;
    }
    best.is_tie = others.iter().any(|plan| plan.is_tie);
}

/// Returns the best plans of `question`. `known` are outcomes of an earlier search.
///
/// # Errors
/// A question that contradicts itself, no layout that the numbers allow, or none that fits.
pub fn plan(
    question: &Question,
    known: BTreeMap<u32, LayoutOutcome>,
    observer: &dyn Observer,
) -> Result<Plans, PlanError> {
    question.check()?;
    Search::new(question)?.knowing(known).plans(observer)
}
