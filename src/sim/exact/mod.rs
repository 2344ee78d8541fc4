//! Proofs for small cases: the fastest schedule with a placement, split backwards or not, and caps.
//!
//! [`order_ops`] finds a schedule, [`crate::bounds`] a lower bound. If they differ, branch and bound decides whether a faster
//! schedule exists.
//!
//! - *Branching* is over active schedules (Giffler & Thompson 1960): of all ops that could run next the one with the earliest
//!   end determines device and time; one of that device's ops that can start before that end runs next. The argument fails if a
//!   forward could give way to another chunk's under a cap, or if host overhead follows an op: then the device may also wait for
//!   that end.
//! - *Bounding* is Carlier's (1982) preemptive one-machine relaxation on every device, with heads from all ops that have not run
//!   and tails to the end; a forward's head includes what must be released first (`relaxation`).
//! - *Dominance*: micro-batches are alike, so a state is the number of ops of each stage and kind that have run. Of two states with
//!   equal counts, one is discarded if every device and every input is no earlier than in the other.
//!
//! Work is counted in states, not in time, so that the same input gives the same proof on every machine.

mod relaxation;
mod search;
mod tables;

use crate::ordering::order_ops;
use crate::{bounds_within, sweep};
use pipesim_cost::CostTable;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::makespan;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::{Goal, OpenSchedule, Program};
use pipesim_schedule::schedule::{Fault, Schedule};
use search::{ProofOutcome, ProofSearch};
use tables::Tables;

/// The fastest schedule, or what the search found out about it within its budget.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The best schedule found.
    pub schedule: Schedule,
    /// Its makespan, in ticks.
    pub objective: u64,
    /// Lower bound of the makespan of every schedule, in ticks.
    pub lower_bound: u64,
    /// Whether both are equal.
    pub optimal: bool,
    /// Number of states visited; 0 if the bounds alone prove it.
    pub states: u64,
}

/// Why a proof is impossible.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum Error {
    /// As [`order_ops`].
    #[error(transparent)]
    Ordering(#[from] crate::ordering::Error),
    /// As [`Schedule::validate`].
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// A device whose program is not a search.
    #[error("device {device} has a fixed order or a rule; only the optimum of a search can be proven: use search()")]
    NotSearched { device: u32 },
    /// An op of zero duration for which devices may wait.
    #[error("{0} takes no time, so a proof would not end; give it a cost")]
    Instant(Op),
    /// Overlapped pairs that are shorter than their ops.
    #[error(
        "its overlapped pairs take only as long as the longer op, but proofs are about single ops; omit `exact`, or choose another `overlap`"
    )]
    Overlapped,
    /// A mix of whole and split backwards that could be faster than either alone.
    #[error(
        "it mixes whole and split backwards, and {0} takes less time than its I and W; proofs are about one kind of backwards; omit `exact`"
    )]
    Mixed(Op),
    /// More ops than a proof supports.
    #[error(
        "{ops} ops of {microbatches} micro-batches are too many for a proof; take at most {MOST_OPS} and {MOST_MICROBATCHES}"
    )]
    TooLarge { ops: usize, microbatches: u32 },
}

/// Maximum number of ops of a proof: the depth of the search.
pub const MOST_OPS: usize = 2_000;
/// Maximum number of micro-batches of a proof.
pub const MOST_MICROBATCHES: u32 = 255;
/// Minimum number of states for another search.
const LEAST_SHARE: u64 = 100;

/// Searches for the schedule of `open`, a search on every device, with the smallest makespan (whatever its goal), visiting at most
/// `states` states.
pub fn prove(open: &OpenSchedule, costs: &CostTable, states: u64) -> Result<Proof, Error> {
    let split = split_of(open)?;
    let microbatches = open.microbatches;
    let ops = open.placement.stages() as usize * microbatches as usize * Kind::of_microbatch(split).len();
    if ops > MOST_OPS || microbatches > MOST_MICROBATCHES {
        return Err(Error::TooLarge { ops, microbatches });
    }
    let schedule = order_ops(&OpenSchedule { goal: Goal::Makespan, ..open.clone() }, costs)?;
    let graph = TaskGraph::new(schedule.clone()).map_err(crate::ordering::Error::Cycle)?;
    let tables = Tables::new(open, costs, split);
    if let Some(op) = tables.instant() {
        return Err(Error::Instant(op));
    }
    let objective = makespan(&sweep(&graph, costs));
    let lower_bound = lower_bound(open, costs, &graph).next_multiple_of(tables.step);
    assert!(lower_bound <= objective, "the bound {lower_bound} is above an order that takes {objective}");
    let mut proof = Proof { schedule, objective, lower_bound, optimal: true, states: 0 };
    if let Some(rows) = improve(&tables, &mut proof, states) {
        proof.schedule =
            Schedule::new(&open.name, open.placement.clone(), open.microbatches, rows.into_iter().collect());
        proof.schedule.validate()?;
    }
    proof.optimal = proof.lower_bound == proof.objective;
    Ok(proof)
}

/// Searches for the order of the ops of `graph` with the smallest makespan in which no device holds more than it does there.
/// Overlapped pairs are separated; if some backwards are split, all are.
pub fn prove_against(graph: &TaskGraph, costs: &CostTable, states: u64) -> Result<Proof, Error> {
    let schedule = graph.schedule();
    if schedule.has_pairs() && graph.overlap().is_shorter() {
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
    let proof = prove(&question(schedule, costs), costs, states)?;
    let own = makespan(&sweep(graph, costs));
    assert!(proof.objective <= own, "the best order found takes {}, the given one {own}", proof.objective);
    Ok(proof)
}

/// Returns the search with which `schedule` is compared: the same placement, backwards split if some are split there, each device's
/// cap at its own peak there. Overlapped pairs are separated.
pub fn question(schedule: &Schedule, costs: &CostTable) -> OpenSchedule {
    let split = schedule.splits_backward();
    let cap = |device: u32| Some(schedule.peak_activations(device, costs.keep));
    let apart = schedule.clone().without_pairs();
    let apart = if apart.mixes_backwards() { apart.with_split_backwards() } else { apart };
    OpenSchedule::of(schedule, |device| Program::Search {
        split,
        cap: cap(device),
        start: Some(Box::new(Program::Fixed(apart.program(device).to_vec()))),
    })
}

/// Searches, with half of `most` states, for anything better; then bisects between the bound and the best.
fn improve(tables: &Tables, proof: &mut Proof, most: u64) -> Option<Vec<Vec<Op>>> {
    let mut best = None;
    let all_or_nothing = proof.objective - proof.lower_bound <= tables.step;
    let mut share = if all_or_nothing { most } else { most / 2 };
    let mut target = proof.objective.saturating_sub(1);
    while proof.lower_bound < proof.objective && share >= LEAST_SHARE {
        let mut search = ProofSearch::new(tables, target, share);
        let outcome = search.run();
        proof.states += search.states;
        if let Some((objective, rows)) = search.best {
            proof.objective = objective;
            best = Some(rows);
        }
        let left = most - proof.states;
        match outcome {
            ProofOutcome::Exhausted => {
                // Nothing is better than what was found, or nothing reaches the target.
                let refuted = proof.objective.min(target + 1);
                proof.lower_bound = proof.lower_bound.max(refuted.next_multiple_of(tables.step));
                (target, share) = (proof.objective - 1, left);
            }
            ProofOutcome::Limit if target == proof.lower_bound => break,
            ProofOutcome::Limit => {
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

fn lower_bound(open: &OpenSchedule, costs: &CostTable, graph: &TaskGraph) -> u64 {
    let cap = |program: &Program| match program {
        Program::Search { cap, .. } => *cap,
        _ => None,
    };
    let caps: Vec<Option<f64>> = open.programs.iter().map(cap).collect();
    bounds_within(graph, costs, &caps).best().0
}
