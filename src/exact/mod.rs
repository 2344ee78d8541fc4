//! Exactness: for small cases, a proof that no schedule with a placement, a split and caps is faster, or a better one.
//!
//! [`settle`] gives a schedule, [`crate::sim::bounds`] a bound. Where they meet there is nothing to prove; else a branch and
//! bound decides whether any schedule is faster than the best known.
//!
//! - *Branching* is over active schedules (Giffler & Thompson 1960): of all ops that could run next the one with the earliest
//!   end fixes device and time; one of that device's ops that can start before that end comes next. A cap breaks the
//!   argument where a forward could give way to another chunk's: there the device may also wait.
//! - *Bounding* is Carlier's (1982) preemptive one-machine relaxation on every device, with heads from all that is still to
//!   run and tails to the goal; a forward's head also has what must be released first (`relaxation`).
//! - *Dominance*: what has run, op by op, is how many of each stage and kind, for micro-batches are alike. Of two states with
//!   equal counts the one with every device and every input no later needs looking at, the other does not (`memo`).
//!
//! Work is counted in states, never in time, so that the same input gives the same proof on any machine.

mod memo;
mod relaxation;
mod search;
mod tables;

use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};
use crate::rough::{Goal, Program, Rough};
use crate::schedule::{Fault, Programs, Schedule};
use crate::settle::settle;
use crate::sim::bounds;
use search::{Outcome, Search};
use tables::Tables;

/// How much a proof may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most states to look at: some hundred thousand a second for 100 ops, and about 200 bytes each.
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
    /// An order or a rule is given.
    #[error("device {device} is given an order or a rule; only a search's optimum can be proven: ask for a search")]
    NotSearched {
        /// The first such device.
        device: u32,
    },
    /// A span that depends on more than when devices end.
    #[error("the shortest span in placement '{0}' cannot be proven: devices may begin with other stages first; ask for the makespan")]
    Span(String),
    /// Too much for a proof.
    #[error("{ops} ops of {microbatches} micro-batches are too many for a proof; take at most {MOST_OPS} and {MOST_MICROBATCHES}")]
    TooLarge {
        /// How many there are.
        ops: usize,
        /// m.
        microbatches: u32,
    },
}

/// Most ops of a proof: a state's depth in the search.
pub const MOST_OPS: usize = 2_000;
/// Most micro-batches of a proof.
pub const MOST_MICROBATCHES: u32 = 255;

/// Looks for the best schedule that `rough`, a search on every device, allows, within `limit`.
///
/// # Errors
/// See [`Error`].
pub fn prove(rough: &Rough, costs: &CostTable, limit: Budget) -> Result<Proof, Error> {
    let found = split_of(rough)?;
    let (ops, microbatches) = (op_count(rough, found), rough.microbatches);
    if ops > MOST_OPS || microbatches > MOST_MICROBATCHES {
        return Err(Error::TooLarge { ops, microbatches });
    }
    if rough.goal == Goal::Span && !starts_are_fixed(rough) {
        return Err(Error::Span(rough.placement.name().to_string()));
    }
    let schedule = settle(rough, costs)?;
    let graph = TaskGraph::new(schedule.clone()).map_err(crate::settle::Error::Cycle)?;
    let tables = Tables::new(rough, costs, found);
    let objective = tables.objective(&graph);
    let lower_bound = lower_bound(rough, costs, &graph).min(objective);
    let mut proof = Proof { schedule, objective, lower_bound, optimal: lower_bound == objective, states: 0 };
    if !proof.optimal {
        let words = improve(&tables, &mut proof, limit);
        proof.optimal = proof.lower_bound == proof.objective;
        if let Some(rows) = words {
            let mut programs = Programs::default();
            for row in rows {
                programs.ops.extend(row);
                programs.finish(Vec::new());
            }
            let better = Schedule::new(&rough.name, rough.placement.clone(), rough.microbatches, programs);
            better.validate()?;
            proof.schedule = better;
        }
    }
    Ok(proof)
}

/// First, with half the budget, whether anything is better at all; then bisection between the bound and the best.
fn improve(tables: &Tables, proof: &mut Proof, limit: Budget) -> Option<Vec<Vec<Op>>> {
    let step = tables.step;
    let mut best = None;
    let mut target = proof.objective - 1;
    let mut share = limit.states / 2;
    while proof.lower_bound < proof.objective && proof.states < limit.states && share > 0 {
        let mut search = Search::new(tables, target, share.min(limit.states - proof.states));
        let outcome = search.run();
        proof.states += search.states;
        if let Some((objective, rows)) = search.best {
            proof.objective = objective;
            best = Some(rows);
        }
        match outcome {
            Outcome::Exhausted => {
                // All below what was found, or all up to the target, is refuted.
                proof.lower_bound = proof.lower_bound.max(proof.objective.min(target + 1)).next_multiple_of(step);
                target = proof.objective - 1;
                share = limit.states - proof.states;
            }
            Outcome::Limit => {
                target = proof.lower_bound + (target.min(proof.objective - 1) - proof.lower_bound) / 2;
                share = (limit.states - proof.states) / 2;
            }
        }
        if share < 1_000 {
            break;
        }
    }
    best
}

fn split_of(rough: &Rough) -> Result<bool, Error> {
    let mut split = false;
    for (device, program) in (0..).zip(&rough.programs) {
        match program {
            Program::Search { split: given, .. } => split = *given,
            _ => return Err(Error::NotSearched { device }),
        }
    }
    Ok(split)
}

fn op_count(rough: &Rough, split: bool) -> usize {
    let kinds = if split { 3 } else { 2 };
    rough.placement.stages() as usize * rough.microbatches as usize * kinds
}

/// Whether every device's first op starts at the same time in every schedule: the first stages are on devices of their own.
fn starts_are_fixed(rough: &Rough) -> bool {
    let placement = &rough.placement;
    let mut first: Vec<u32> = (0..placement.devices()).map(|stage| placement.device_of_stage(stage, 0)).collect();
    first.sort_unstable();
    first.dedup();
    placement.directions() == 1 && first.len() == placement.devices() as usize
}

fn lower_bound(rough: &Rough, costs: &CostTable, graph: &TaskGraph) -> u64 {
    let cap = |program: &Program| match program {
        Program::Search { cap, .. } => *cap,
        _ => None,
    };
    let caps: Option<Vec<f64>> = rough.programs.iter().map(cap).collect();
    let found = bounds(graph, costs, caps.map(|caps| caps.into_iter().fold(0.0, f64::max)));
    if rough.goal == Goal::Span { found.work } else { found.best().0 }
}

/// F, and what follows it.
fn kinds(split: bool) -> &'static [Kind] {
    if split { &[Kind::F, Kind::I, Kind::W] } else { &[Kind::F, Kind::B] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{GivenCosts, Slow};
    use crate::placement::Placement;
    use serde_json::Value;

    fn searched(row: &Value) -> (Rough, CostTable) {
        let whole = |key: &str| row[key].as_u64().unwrap() as u32;
        let (p, m) = (whole("devices"), whole("microbatches"));
        let placement = if row["placement"] == "V" { Placement::zigzag("V", p, 2) } else { Placement::linear(p) };
        let goal = if row["goal"] == "span" { Goal::Span } else { Goal::Makespan };
        let given = row["costs"].as_object().unwrap().iter().map(|(key, cost)| format!("{key}={cost},"));
        let given = given.collect::<String>() + &format!("keep={}", row["keep"]);
        let costs = given.parse::<GivenCosts>().unwrap().table(&placement, m, &Slow::new()).unwrap();
        let program = Program::Search { split: row["split"].as_bool().unwrap(), cap: row["cap"].as_f64(), start: None };
        let programs = vec![program; p as usize];
        (Rough { name: "searched".to_string(), placement, microbatches: m, programs, goal }, costs)
    }

    /// With no help from the search of `settle` and from bounds: an optimum that CP-SAT proved is found when asked for, and a
    /// step less is refuted. What takes longer than a moment is left out.
    #[test]
    fn optima_are_found_and_less_is_refuted() {
        let path = format!("{}/tests/golden/optima.json", env!("CARGO_MANIFEST_DIR"));
        let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let (mut found, mut refuted) = (0, 0);
        for row in rows.iter().filter(|row| row["proven"] == true) {
            let (rough, costs) = searched(row);
            let optimum = (row["optimum"].as_f64().unwrap() * costs.ticks_per_unit).round() as u64;
            let tables = Tables::new(&rough, &costs, split_of(&rough).unwrap());
            let mut search = Search::new(&tables, optimum, 30_000);
            search.run();
            if let Some((objective, _)) = &search.best {
                assert_eq!(*objective, optimum, "{row}");
                found += 1;
            } else {
                assert_eq!(search.states, 30_000, "refuted, but proven: {row}");
            }
            let mut search = Search::new(&tables, optimum - tables.step, 30_000);
            refuted += usize::from(search.run() == Outcome::Exhausted);
            assert!(search.best.is_none(), "better than proven: {row}");
        }
        println!("of {} optima {found} were found, {refuted} confirmed", rows.len());
        assert!(found >= rows.len() / 2 && refuted >= rows.len() / 2, "{found} {refuted}");
    }
}
