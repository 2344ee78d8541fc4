//! Exactness: for small cases, a proof that no schedule with a placement, a split and caps is faster, or a better one.
//!
//! [`settle`] gives a schedule, which is never worse than one to begin with, [`crate::sim::bounds`] a bound. Where they meet there is nothing to prove; else a branch and
//! bound decides whether any schedule is faster than the best known.
//!
//! - *Branching* is over active schedules (Giffler & Thompson 1960): of all ops that could run next the one with the earliest
//!   end fixes device and time; one of that device's ops that can start before that end comes next. The argument fails where
//!   a forward could give way to another chunk's under a cap, and where host overhead follows an op: there the device may
//!   also wait for that end.
//! - *Bounding* is Carlier's (1982) preemptive one-machine relaxation on every device, with heads from all that is still to
//!   run and tails to the goal; a forward's head also has what must be released first (`relaxation`).
//! - *Dominance*: what has run, op by op, is how many of each stage and kind, for micro-batches are alike. Of two states with
//!   equal counts the one with every device and every input no later needs looking at, the other does not (`memo`).
//!
//! Work is counted in states, never in time, so that the same input gives the same proof on any machine.

mod relaxation;
mod search;
mod tables;

use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};
use crate::open::{Goal, OpenSchedule, Program};
use crate::schedule::{Fault, Overlap, Schedule};
use crate::settle::settle;
use crate::sim::{bounds_within, sweep};
use search::{Outcome, Search};
use tables::Tables;

/// How much a proof may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most states to look at: about a hundred thousand a second for 200 ops, and less than 100 bytes each.
    pub states: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { states: 2_000_000 }
    }
}

/// What is known about the best schedule.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The best found.
    pub schedule: Schedule,
    /// Its makespan, or its span, in ticks.
    pub objective: u64,
    /// No schedule has less, in ticks.
    pub lower_bound: u64,
    /// Whether both are the same.
    pub optimal: bool,
    /// States looked at; none where the bounds alone prove it.
    pub states: u64,
}

/// Why nothing can be proven.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// As [`settle`].
    #[error(transparent)]
    Settle(#[from] crate::settle::Error),
    /// As [`Schedule::validate`].
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// An order or a rule is given, first to this device.
    #[error("device {device} is given an order or a rule; only a search's optimum can be proven: ask for a search")]
    NotSearched { device: u32 },
    /// A span that depends on more than when devices end.
    #[error(
        "the shortest span in placement '{0}' cannot be proven: devices may begin with other stages first; ask for the makespan"
    )]
    Span(String),
    /// An op that waiting cannot get around.
    #[error("{0} takes no time, so that a proof would not end; give it a cost")]
    Instant(Op),
    /// Pairs that save time together.
    #[error(
        "its overlapped pairs last only as long as the longer op, and a proof is of single ops; leave the proof out, or take another --overlap"
    )]
    Overlapped,
    /// Whole and split backwards where neither kind alone could be the best.
    #[error(
        "it has whole and split backwards, and {0} takes less than its I and W; a proof is of one kind of backwards"
    )]
    Mixed(Op),
    /// Too much for a proof.
    #[error(
        "{ops} ops of {microbatches} micro-batches are too many for a proof; take at most {MOST_OPS} and {MOST_MICROBATCHES}"
    )]
    TooLarge { ops: usize, microbatches: u32 },
}

/// Most ops of a proof: a state's depth in the search.
pub const MOST_OPS: usize = 2_000;
/// Most micro-batches of a proof.
pub const MOST_MICROBATCHES: u32 = 255;
/// Fewer states are not worth another search.
const LEAST_SHARE: u64 = 100;

/// Looks for the best schedule that `open`, a search on every device, allows, within `limit`.
pub fn prove(open: &OpenSchedule, costs: &CostTable, limit: Budget) -> Result<Proof, Error> {
    let split = split_of(open)?;
    let (ops, microbatches) = (op_count(open, split), open.microbatches);
    if ops > MOST_OPS || microbatches > MOST_MICROBATCHES {
        return Err(Error::TooLarge { ops, microbatches });
    }
    if open.goal == Goal::Span && !starts_are_fixed(open) {
        return Err(Error::Span(open.placement.name().to_string()));
    }
    let schedule = settle(open, costs)?;
    let graph = TaskGraph::new(schedule.clone()).map_err(crate::settle::Error::Cycle)?;
    let tables = Tables::new(open, costs, split);
    if let Some(op) = tables.instant() {
        return Err(Error::Instant(op));
    }
    let objective = tables.objective(&graph);
    let lower_bound = lower_bound(open, costs, &graph).next_multiple_of(tables.step);
    assert!(lower_bound <= objective, "the bound {lower_bound} is above an order that takes {objective}");
    let mut proof = Proof { schedule, objective, lower_bound, optimal: true, states: 0 };
    if let Some(rows) = improve(&tables, &mut proof, limit) {
        proof.schedule =
            Schedule::new(&open.name, open.placement.clone(), open.microbatches, rows.into_iter().collect());
        proof.schedule.validate()?;
    }
    proof.optimal = proof.lower_bound == proof.objective;
    Ok(proof)
}

/// The best makespan that the ops of `graph` allow, no device holding more than it does there: never above the makespan of
/// `graph`. Overlapped pairs are taken apart; where some backwards are split all are.
pub fn prove_against(graph: &TaskGraph, costs: &CostTable, limit: Budget) -> Result<Proof, Error> {
    let schedule = graph.schedule();
    if schedule.has_pairs() && graph.overlap() == Overlap::Max {
        return Err(Error::Overlapped);
    }
    let halves_last_longer = |op: &Op| {
        let [i, w, b] = [Kind::I, Kind::W, Kind::B].map(|kind| costs.of(op.of_kind(kind)));
        let whole = i.duration + i.after + w.duration;
        op.kind() == Kind::B
            && (whole > b.duration
                || whole + w.after > b.duration + b.after
                || i.duration + i.arrival > b.duration + b.arrival)
    };
    let longer = schedule.placement.op_kinds().find(halves_last_longer);
    if let Some(op) = longer.filter(|_| schedule.mixes_backwards()) {
        return Err(Error::Mixed(op));
    }
    let proof = prove(&question(schedule, costs, Goal::Makespan), costs, limit)?;
    let own = sweep(graph, costs).iter().map(|device| device.last_end).max().unwrap_or(0);
    assert!(proof.objective <= own, "the best order found takes {}, the one to begin with {own}", proof.objective);
    Ok(proof)
}

/// The search whose optimum `schedule` is to be held against: the same placement, backwards split or not as there (all, if
/// some are), no device holding more than it does there. Overlapped pairs count as ops in turn.
pub fn question(schedule: &Schedule, costs: &CostTable, goal: Goal) -> OpenSchedule {
    let split = schedule.splits_backward();
    let cap = |device: u32| Some(schedule.peak_activations(device, costs.keep));
    let apart = schedule.clone().without_pairs();
    let apart = if apart.mixes_backwards() { apart.with_split_backwards() } else { apart };
    let program = |device: u32| Program::Search {
        split,
        cap: cap(device),
        start: Some(Box::new(Program::Fixed(apart.program(device).to_vec()))),
    };
    OpenSchedule {
        name: schedule.name.clone(),
        placement: schedule.placement.clone(),
        microbatches: schedule.microbatches,
        programs: (0..schedule.devices()).map(program).collect(),
        goal,
    }
}

/// First, with half the budget, whether anything is better at all; then bisection between the bound and the best.
fn improve(tables: &Tables, proof: &mut Proof, limit: Budget) -> Option<Vec<Vec<Op>>> {
    let mut best = None;
    let all_or_nothing = proof.objective - proof.lower_bound <= tables.step;
    let mut share = if all_or_nothing { limit.states } else { limit.states / 2 };
    let mut target = proof.objective.saturating_sub(1);
    while proof.lower_bound < proof.objective && share >= LEAST_SHARE {
        let mut search = Search::new(tables, target, share);
        let outcome = search.run();
        proof.states += search.states;
        if let Some((objective, rows)) = search.best {
            proof.objective = objective;
            best = Some(rows);
        }
        let left = limit.states - proof.states;
        match outcome {
            Outcome::Exhausted => {
                // Nothing is below what was found, or nothing up to the target.
                let refuted = proof.objective.min(target + 1);
                proof.lower_bound = proof.lower_bound.max(refuted.next_multiple_of(tables.step));
                (target, share) = (proof.objective - 1, left);
            }
            Outcome::Limit if target == proof.lower_bound => break,
            Outcome::Limit => {
                let above = target.min(proof.objective - 1);
                (target, share) = (proof.lower_bound + (above - proof.lower_bound) / 2, left / 2);
            }
        }
    }
    best
}

fn split_of(open: &OpenSchedule) -> Result<bool, Error> {
    let mut split = false;
    for (device, program) in (0..).zip(&open.programs) {
        match program {
            Program::Search { split: given, .. } => split = *given,
            _ => return Err(Error::NotSearched { device }),
        }
    }
    Ok(split)
}

fn op_count(open: &OpenSchedule, split: bool) -> usize {
    open.placement.stages() as usize * open.microbatches as usize * Kind::of_microbatch(split).len()
}

/// Whether every device's first op starts at the same time in every schedule: the first stages are on devices of their own.
fn starts_are_fixed(open: &OpenSchedule) -> bool {
    let placement = &open.placement;
    let mut first: Vec<u32> = (0..placement.devices()).map(|stage| placement.device_of_stage(stage, 0)).collect();
    first.sort_unstable();
    first.dedup();
    placement.directions() == 1 && first.len() == placement.devices() as usize
}

fn lower_bound(open: &OpenSchedule, costs: &CostTable, graph: &TaskGraph) -> u64 {
    let cap = |program: &Program| match program {
        Program::Search { cap, .. } => *cap,
        _ => None,
    };
    let caps: Vec<Option<f64>> = open.programs.iter().map(cap).collect();
    let found = bounds_within(graph, costs, &caps);
    if open.goal == Goal::Span { found.work } else { found.best().0 }
}
