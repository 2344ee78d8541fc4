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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{GivenCosts, OpTime, Slow};
    use crate::placement::Placement;
    use serde_json::Value;
    use std::collections::BTreeSet;
    use tables::State;

    fn searched(row: &Value) -> (OpenSchedule, CostTable) {
        let whole = |key: &str| row[key].as_u64().unwrap() as u32;
        let (p, m) = (whole("devices"), whole("microbatches"));
        let placement = if row["placement"] == "V" { Placement::zigzag("V", p, 2) } else { Placement::linear(p) };
        let goal = if row["goal"] == "span" { Goal::Span } else { Goal::Makespan };
        let given = row["costs"].as_object().unwrap().iter().map(|(key, cost)| format!("{key}={cost},"));
        let given = given.collect::<String>() + &format!("keep={}", row["keep"]);
        let costs = given.parse::<GivenCosts>().unwrap().table(&placement, m, &Slow::new()).unwrap();
        let program = Program::Search { split: row["split"].as_bool().unwrap(), cap: row["cap"].as_f64(), start: None };
        let programs = vec![program; p as usize];
        (OpenSchedule { name: "searched".to_string(), placement, microbatches: m, programs, goal }, costs)
    }

    /// With no help from the search of `settle` and from bounds: an optimum that CP-SAT proved is found when asked for, and a
    /// step less is refuted. What takes longer than a moment is left out.
    #[test]
    fn optima_are_found_and_less_is_refuted() {
        let path = format!("{}/tests/golden/optima.json", env!("CARGO_MANIFEST_DIR"));
        let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let (mut found, mut refuted) = (0, 0);
        for row in rows.iter().filter(|row| row["proven"] == true) {
            let (open, costs) = searched(row);
            let optimum = (row["optimum"].as_f64().unwrap() * costs.ticks_per_unit).round() as u64;
            let tables = Tables::new(&open, &costs, split_of(&open).unwrap());
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

    /// Counts, when devices are free, when ops ended.
    type Seen = BTreeSet<(Vec<u8>, Vec<i64>, Vec<Vec<i64>>)>;

    /// Every order there is, one op after the other, each as soon as it can: the least that any reaches.
    fn least(tables: &Tables, state: &mut State, seen: &mut Seen) -> i64 {
        if !seen.insert((state.counts.clone(), state.free.clone(), state.ends.clone())) {
            return i64::MAX;
        }
        let mut least_of_all = i64::MAX;
        for (number, row) in tables.rows.iter().enumerate() {
            let (k, change) = (state.done(number), tables.changes[row.op.kind() as usize]);
            let input = row.input.map_or(Some(0), |(from, lag)| state.ends[from].get(k).map(|end| end + lag));
            let own = row.own.is_none_or(|own| k < state.done(own));
            let (Some(input), true) = (input, own && k < row.count) else { continue };
            if state.live[row.device] + change > tables.caps[row.device].max(state.live[row.device]) {
                continue;
            }
            let free = state.free[row.device];
            let start = input.max(free);
            state.live[row.device] += change;
            state.free[row.device] = start + row.hold;
            state.counts[number] += 1;
            state.ends[number].push(start + row.duration);
            least_of_all = least_of_all.min(least(tables, state, seen));
            state.ends[number].pop();
            state.counts[number] -= 1;
            state.free[row.device] = free;
            state.live[row.device] -= change;
        }
        if state.counts.iter().zip(&tables.rows).all(|(&count, row)| usize::from(count) == row.count) {
            let ends = state.ends.iter().zip(&tables.rows);
            return ends.map(|(ends, row)| ends[row.count - 1] - tables.origins[row.device]).max().unwrap();
        }
        least_of_all
    }

    /// With costs that differ everywhere, host overhead and latency, against the enumeration of all orders.
    #[test]
    fn proofs_hold_against_enumeration() {
        let mut seed = 1_u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let (mut improved, mut waited) = (0, 0);
        for number in 0..40 {
            let (placement, m) = match number % 4 {
                0 => (Placement::linear(2), 3),
                1 => (Placement::linear(3), 2),
                2 => (Placement::looped("loop", 1, 2), 2),
                _ => (Placement::bidirectional(2, 1).unwrap(), 2),
            };
            let v = f64::from(placement.chunks());
            let times: Vec<[u64; 3]> = (0..64).map(|_| [1 + random(5), random(3), random(4)]).collect();
            let plain = number % 3 == 0;
            let mut summary = GivenCosts::default().summary();
            summary.keep = [1.0, 1.0, 0.5][random(3) as usize];
            let costs = CostTable::new(&placement, (1.0, "unit", 1), summary, |op| {
                let [duration, after, arrival] = times[op.slot()];
                OpTime { duration, after: if plain { 0 } else { after }, arrival }
            });
            let split = number % 5 != 0;
            let cap = Some(1.0_f64.max(f64::from(placement.directions())) + random(3) as f64 / v);
            let programs = vec![Program::Search { split, cap, start: None }; placement.devices() as usize];
            let goal = if placement.directions() == 1 && random(2) == 0 { Goal::Span } else { Goal::Makespan };
            let open = OpenSchedule { name: "random".to_string(), placement, microbatches: m, programs, goal };
            let tables = Tables::new(&open, &costs, split);
            let devices = open.placement.devices() as usize;
            let mut state = State {
                counts: vec![0; tables.rows.len()],
                ends: vec![Vec::new(); tables.rows.len()],
                free: vec![0; devices],
                live: vec![0; devices],
            };
            let least = least(&tables, &mut state, &mut BTreeSet::new()) as u64;
            let mut search = Search::new(&tables, 4 * least + 100, 1_000_000);
            assert_eq!(search.run(), Outcome::Exhausted);
            assert_eq!(search.best.map(|(objective, _)| objective), Some(least), "case {number}");
            let proof = prove(&open, &costs, Budget::default()).unwrap();
            assert!(proof.optimal);
            assert_eq!(proof.objective, least, "case {number}");
            improved += usize::from(proof.states > 1);
            waited += usize::from(!plain);
        }
        println!("{improved} needed a search, {waited} with overhead");
    }
}
