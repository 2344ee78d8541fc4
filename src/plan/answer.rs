//! The answer: the best plans, and what ruled out the rest.

use super::journal::Outcome;
use super::question::{PlanError, Question};
use super::search::{Limits, Observer, Search};
use super::space::{Candidate, Reason};
use crate::layout::ParallelConfig;
use crate::sim::sweep;
use crate::step_estimate::StepEstimate;
use std::collections::BTreeMap;

/// One layout of the answer.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Schedule as it can be requested, without the number of stages per device.
    pub schedule: String,
    /// Whether the number of stages per device has to be requested.
    pub names_chunks: bool,
    pub layout: ParallelConfig,
    pub estimate: StepEstimate,
    /// Whether it cannot be told apart from the best plan: their intervals overlap.
    pub is_tie: bool,
}

/// The best plans of a question.
#[derive(Clone, Debug)]
pub struct Plans {
    /// Best first.
    pub plans: Vec<Plan>,
    /// Layouts that were considered.
    pub considered: u64,
    /// Layouts that were predicted in full.
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

    /// Returns schedule and degrees in a line: `tp 8 · pp 4 · dp 2 · ..`.
    pub fn in_words(&self) -> String {
        let ParallelConfig { tp, pp, cp, dp, chunks, micro_batch_size, zero, sequence_parallel, recompute, .. } =
            &self.layout;
        let mut words = vec![format!("tp {tp}"), format!("pp {pp}"), format!("dp {dp}")];
        let mut add = |is_there: bool, text: String| words.extend(is_there.then_some(text));
        add(*cp > 1, format!("cp {cp}"));
        add(*pp > 1, self.schedule.clone());
        add(*chunks > 1, format!("{chunks} chunks"));
        add(true, format!("micro-batch {micro_batch_size}"));
        add(true, format!("recompute {recompute}"));
        add(*zero != crate::layout::Zero::None, format!("ZeRO {zero}"));
        add(*sequence_parallel, "sequence parallel".to_string());
        words.join(", ")
    }
}

impl Search<'_> {
    /// Returns the plan of a layout.
    pub fn plan(&self, candidate: &Candidate) -> Option<Plan> {
        let costs = self.costs(candidate)?;
        let ordered = self.order(candidate, &costs)?;
        let shape = &self.space.shapes[candidate.shape as usize];
        let table = costs.table(&shape.placement, &shape.stages).ok()?;
        let devices = sweep(&ordered.graph, &table);
        let estimate = StepEstimate::of(&costs, ordered.graph.schedule(), &devices).ok()?;
        Some(Plan {
            schedule: shape.schedule.clone(),
            names_chunks: shape.names_chunks,
            layout: costs.layout,
            estimate,
            is_tie: false,
        })
    }

    /// Returns the memory limit of the question, in bytes.
    pub fn bytes(&self) -> u64 {
        self.question.machine.hardware.memory_bytes()
    }

    /// Returns the best plans.
    ///
    /// # Errors
    /// No layout is allowed, or none fits.
    pub fn plans(&self, observer: &dyn Observer) -> Result<Plans, PlanError> {
        let limits = Limits { keep: self.question.keep, bytes: self.bytes(), allows: &|_, _| true };
        let found = self.best(&limits, observer);
        let mut ruled_out = self.space.ruled_out.clone();
        found.ruled_out.iter().for_each(|(reason, count)| *ruled_out.entry(*reason).or_default() += count);
        let plans = found.best.iter();
        let mut plans: Vec<Plan> =
            plans.filter_map(|&(_, number)| self.plan(&self.space.candidates[number as usize])).collect();
        mark_ties(&mut plans);
        if plans.is_empty() && !found.is_stopped {
            return Err(self.none_fits(&ruled_out));
        }
        let considered = self.space.candidates.len() as u64 + self.space.ruled_out.values().sum::<u64>();
        Ok(Plans { plans, considered, evaluated: found.predicted, ruled_out, is_stopped: found.is_stopped })
    }
}

/// Marks the plans that cannot be told apart from the first: their intervals of tokens per second and GPU overlap.
fn mark_ties(plans: &mut [Plan]) {
    let Some((best, others)) = plans.split_first_mut() else { return };
    let speeds = |plan: &Plan| {
        let [low, high] = plan.estimate.iteration_interval_s;
        let work = plan.estimate.tokens_per_second_per_gpu * plan.estimate.iteration_s;
        [work / high, work / low]
    };
    let [slowest, fastest] = speeds(best);
    for plan in others.iter_mut() {
        let [low, high] = speeds(plan);
        plan.is_tie = low <= fastest && slowest <= high;
    }
    best.is_tie = others.iter().any(|plan| plan.is_tie);
}

/// Returns the best plans of `question`. `known` are outcomes of an earlier search.
///
/// # Errors
/// A question that contradicts itself, no layout that the numbers allow, or none that fits.
pub fn plan(question: &Question, known: BTreeMap<u32, Outcome>, observer: &dyn Observer) -> Result<Plans, PlanError> {
    question.check()?;
    Search::new(question)?.knowing(known).plans(observer)
}
