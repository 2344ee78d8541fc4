//! Scheduling: from an open schedule and costs to one fixed order of ops per device. Only here do costs influence an order.
//!
//! - A program in **fixed** order is unchanged.
//! - A **fill** program keeps its order of F, I and B; the oldest pending W runs when the device would idle long enough, before an
//!   op that would exceed the cap, and at the end.
//! - A **greedy** program is list scheduling (`list_schedule`), which cannot deadlock under a cap that allows one micro-batch.
//! - A **search** looks for the best order. Its passes:
//!   1. *Starts*: closed forms (ZB-H1 to ZB-H2 and beyond, ZB-V: Qi et al., arXiv 2401.10241 sections 2, 3 and 6), the zero-bubble
//!      authors' rule for ZB-V (`rounds`), building blocks repeated once per period (Qi et al., arXiv 2405.15362 section 3) from a
//!      lattice of all blocks within the caps (`starts`), fill and drain of the repeated blocks justified (`justify`), and list
//!      schedules with the blocks' times as priorities under the cap.
//!   2. *Squeeze*: every start is replayed as soon as possible with the real costs and with W's in gaps (`trial`), with idle time
//!      shared by the devices if that is shorter.
//!   3. *Polish*: local search on the orders. Moves take ops on the critical path that wait for their device, and run them earlier
//!      or their predecessors later (the neighbourhood of job-shop scheduling, van Laarhoven et al. 1992); slightly worse orders
//!      are accepted at first. Many starts are polished a little, the better half further (a tournament); then the same with W's in
//!      the order, so that W's move, too.
//!   4. *Expansion*: passes 1 to 3 run for few micro-batches first, with the period in the middle fenced; repeating the period
//!      gives the order for many micro-batches, which is then polished again.
//!   5. *Published*: V-Half and V-Min exactly as their authors make them, in case that these are shorter.
//!
//! Work is counted in ops run, so the same input gives the same order on every machine.

mod float;
mod justify;
mod list_schedule;
mod pattern;
mod polish;
mod problem;
mod rounds;
mod search;
mod starts;
mod trial;
mod words;

use crate::{OffloadRefused, planned_offload, sweep};
use list_schedule::{Course, Policy, Rank, list_schedule};
use pipesim_cost::CostTable;
use pipesim_schedule::activation::{self, Holding, Keep, UNLIMITED, WHOLE};
use pipesim_schedule::deadlock::Deadlock;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::makespan;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::{Goal, OpenSchedule, Program};
use pipesim_schedule::schedule::{Fault, Programs, Schedule};
use pipesim_schedule::slices::Slices;
pub use problem::Effort;
use problem::OrderingProblem;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Why no order exists.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum Error {
    /// A cap that no order, or not the given one, keeps; what needs more, and the smallest cap that works.
    #[error("device {device} may hold {cap} activations at once, but {why} needs {needed}; raise the cap to {needed}")]
    Cap { device: u32, cap: f64, why: &'static str, needed: f64 },
    /// An op that its device cannot run.
    #[error("device {device} lists {op}, which {what}; list only ops of its own stages and micro-batches")]
    Foreign { device: u32, op: Op, what: &'static str },
    /// A mix of searches and other programs, or of different searches: the first device that differs from device 0.
    #[error("device {device} is {found}, device 0 is {expected}; use the same search for all devices, or none")]
    Mixed { device: u32, found: &'static str, expected: &'static str },
    /// Fixed and greedy programs that wait for each other.
    #[error("a deadlock: {0}; move the op that it waits for to an earlier place")]
    Stuck(String),
    /// A search or greedy program with what only fixed orders can have.
    #[error(
        "greedy and search order whole micro-batches, without {what}; write a word, or fill(word, W) or fill(word, R)"
    )]
    Beyond { what: &'static str },
    /// More ops than the tables support.
    #[error("{stages} stages times {microbatches} micro-batches are too many to schedule; take fewer micro-batches")]
    TooLarge { stages: u32, microbatches: u32 },
    /// No plan of copies.
    #[error(transparent)]
    Offload(#[from] OffloadRefused),
    /// As [`Schedule::validate`].
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// As [`TaskGraph::new`].
    #[error(transparent)]
    Cycle(#[from] Deadlock),
}

/// Orders the ops of `open` under `costs` with the default effort.
///
/// # Errors
/// As [`order_ops_with`].
pub fn order_ops(open: &OpenSchedule, costs: &CostTable) -> Result<Schedule, Error> {
    order_ops_with(open, costs, Effort::default())
}

/// Orders the ops of `open` under `costs`: one fixed order per device, valid and without wait cycles. Overlapped pairs stay
/// together; to find gaps, their ops count as if they ran one after the other.
pub fn order_ops_with(open: &OpenSchedule, costs: &CostTable, effort: Effort<'_>) -> Result<Schedule, Error> {
    let programs = Programs::from_iter(rows(open, costs, effort)?);
    let schedule = Schedule::new(&open.name, open.placement.clone(), open.microbatches, programs);
    let schedule = schedule.with_slices(open.slices.clone());
    schedule.validate()?;
    Ok(TaskGraph::new(schedule)?.schedule().clone())
}

fn rows(open: &OpenSchedule, costs: &CostTable, effort: Effort<'_>) -> Result<Vec<Vec<Op>>, Error> {
    check_size(open)?;
    check_ops(open)?;
    let caps: Vec<Option<f64>> = open.programs.iter().map(cap_of).collect();
    check_caps(open, costs.keep)?;
    if open.microbatches == 0 {
        return Ok(vec![Vec::new(); open.programs.len()]);
    }
    if let Some(chunks) = open.programs.iter().find_map(offloaded_chunks) {
        return offloaded_rows(open, costs, chunks);
    }
    if let Some(op) = open.programs.iter().flat_map(Program::listed).find(|op| !op.feature().is_empty()) {
        return beyond_rows(open, costs, *op);
    }
    if open.slices.is_cut() {
        return Err(Error::Beyond { what: "slices" });
    }
    let problem = OrderingProblem::new(&open.placement, open.microbatches, costs, &caps);
    match searched(open)? {
        Some(split) => Ok(search_rows(open, costs, &problem, split, effort)),
        None => dispatch_rows(open, &problem),
    }
}

/// Returns the rows of programs with slices or recompute, such as `found`.
fn beyond_rows(open: &OpenSchedule, costs: &CostTable, found: Op) -> Result<Vec<Vec<Op>>, Error> {
    let chosen = |program: &Program| matches!(program, Program::Greedy { .. } | Program::Search { .. });
    if open.programs.iter().any(chosen) {
        return Err(Error::Beyond { what: found.feature() });
    }
    if let Some(rows) = float::rows(open, costs) {
        return Ok(rows);
    }
    // The task graph reports the cycle.
    let lists: Vec<Vec<Op>> = open.programs.iter().map(|program| weights(program.listed())).collect();
    Ok(open.programs.iter().zip(&lists).map(|(program, listed)| eager(program, listed)).collect())
}

/// Returns how many chunks of a device go to the host, if a plan decides about copies.
fn offloaded_chunks(program: &Program) -> Option<u32> {
    if let Program::Offload { chunks, .. } = program { Some(*chunks) } else { None }
}

/// Returns the rows of programs with planned copies, all of the first `chunks` chunks.
fn offloaded_rows(open: &OpenSchedule, costs: &CostTable, chunks: u32) -> Result<Vec<Vec<Op>>, Error> {
    if let Some(device) = open.programs.iter().position(|program| offloaded_chunks(program) != Some(chunks)) {
        let (found, expected) = ("another program", "a plan of copies of as many chunks");
        return Err(Error::Mixed { device: device as u32, found, expected });
    }
    let listed: Programs = open.programs.iter().map(|program| program.listed().to_vec()).collect();
    let schedule = Schedule::new(&open.name, open.placement.clone(), open.microbatches, listed);
    schedule.validate()?;
    let graph = TaskGraph::new(schedule)?;
    let planned = planned_offload(&graph, costs, chunks)?;
    Ok((0..planned.devices()).map(|device| planned.program(device).to_vec()).collect())
}

fn cap_of(program: &Program) -> Option<f64> {
    match program {
        Program::Fixed(_) | Program::Offload { .. } => None,
        Program::Fill { cap, .. } | Program::Greedy { cap, .. } | Program::Search { cap, .. } => *cap,
    }
}

fn check_size(open: &OpenSchedule) -> Result<(), Error> {
    let (stages, microbatches) = (open.placement.stages(), open.microbatches);
    let rows = 2 + 2 * u64::from(stages) * u64::from(open.placement.directions());
    if rows * (u64::from(microbatches) + 24) > u64::from(u32::MAX) {
        return Err(Error::TooLarge { stages, microbatches });
    }
    Ok(())
}

/// Checks that listed ops belong to their device.
fn check_ops(open: &OpenSchedule) -> Result<(), Error> {
    let placement = &open.placement;
    for (device, program) in (0..).zip(&open.programs) {
        for &op in program.listed() {
            let foreign = |what| Err(Error::Foreign { device, op, what });
            if op.stage() >= placement.stages() || op.direction() >= placement.directions() {
                return foreign("no device holds");
            }
            if placement.device_of(op) != device {
                return foreign("another device holds");
            }
            if !placement.microbatches_of(op.direction(), open.microbatches).contains(&op.microbatch()) {
                return foreign("names a micro-batch of the other direction, or none");
            }
        }
    }
    Ok(())
}

/// Checks that each cap allows one micro-batch on all chunks, or the given order.
fn check_caps(open: &OpenSchedule, keep: Keep) -> Result<(), Error> {
    for (device, program) in (0..).zip(&open.programs) {
        let Some(cap) = cap_of(program) else { continue };
        let (why, needed) = match program {
            Program::Fill { ops, .. } => ("its order", peak(ops, keep, &open.slices)),
            _ => ("one micro-batch on all its chunks", open.placement.held_by(device).len() as i128 * WHOLE),
        };
        let chunks = open.placement.chunks() * open.slices.total();
        if activation::cap(cap, chunks) < needed {
            let needed = activation::units(needed, chunks);
            return Err(Error::Cap { device, cap, why, needed });
        }
    }
    Ok(())
}

/// Returns the peak of a list whose W's that are not listed run as early as possible: with their I's, as in a B.
fn peak(ops: &[Op], keep: Keep, slices: &Slices) -> i128 {
    let weights: Vec<Op> = weights(ops);
    if ops.iter().any(|op| !op.feature().is_empty()) {
        let holding = Holding::new(keep, slices);
        let recomputed: BTreeSet<Op> = ops.iter().filter(|op| op.kind() == Kind::R).map(|op| op.alone()).collect();
        let (mut held, mut peak) = (0, 0);
        for op in ops {
            let is_whole = op.kind() == Kind::I && weights.binary_search(&op.of_kind(Kind::W)).is_err();
            let op = if is_whole { op.of_kind(Kind::B) } else { *op };
            let (start, end) = holding.of(op, recomputed.contains(&op.of_kind(Kind::R)));
            peak = peak.max(held + start);
            held += start + end;
        }
        return peak;
    }
    let kind = |op: &Op| match op.kind() {
        Kind::I if weights.binary_search(&op.of_kind(Kind::W)).is_err() => Kind::B,
        kind => kind,
    };
    activation::peak(ops.iter().map(kind), keep)
}

/// Returns the W's among `ops`, sorted.
fn weights(ops: &[Op]) -> Vec<Op> {
    let mut weights: Vec<Op> = ops.iter().filter(|op| op.kind() == Kind::W).map(|op| op.alone()).collect();
    weights.sort_unstable();
    weights
}

/// Returns whether to search for split backwards; `None` if there is no search.
fn searched(open: &OpenSchedule) -> Result<Option<bool>, Error> {
    let what = |program: &Program| match program {
        Program::Search { split: true, .. } => "a search with split backwards",
        Program::Search { .. } => "a search with full backwards",
        _ => "a fixed order or a rule",
    };
    let expected = open.programs.first().map_or("", what);
    match open.programs.iter().position(|program| what(program) != expected) {
        Some(device) => Err(Error::Mixed { device: device as u32, found: what(&open.programs[device]), expected }),
        None => Ok(match open.programs.first() {
            Some(Program::Search { split, .. }) => Some(*split),
            _ => None,
        }),
    }
}

/// Returns the best order found, or the given start if that is better.
fn search_rows(
    open: &OpenSchedule,
    costs: &CostTable,
    problem: &OrderingProblem,
    split: bool,
    effort: Effort<'_>,
) -> Vec<Vec<Op>> {
    let start = given_start(open, costs, split);
    let words = start.as_ref().filter(|start| takes_in_order(start)).map(|start| words::words_of(&rows_of(start)));
    let words = search::search(problem, costs, open.goal, split, words, effort);
    let words = words.expect("the list schedule among the starts cannot get stuck, and keeps the caps");
    let row = |device: usize| -> Vec<Op> {
        let mut counts = vec![0; problem.rules.len()];
        let number = |slot: &u32| {
            counts[*slot as usize] += 1;
            words::op_of(problem, *slot, counts[*slot as usize] - 1)
        };
        words.word(device).iter().map(number).collect()
    };
    let rows: Vec<Vec<Op>> = (0..problem.devices()).map(row).collect();
    let found = || Schedule::new(&open.name, open.placement.clone(), open.microbatches, rows.iter().cloned().collect());
    match start {
        Some(start) if reached(&start, costs, open.goal) < reached(&found(), costs, open.goal) => rows_of(&start),
        _ => rows,
    }
}

/// Returns makespan and span, the goal first; the maximum for a deadlock.
fn reached(schedule: &Schedule, costs: &CostTable, goal: Goal) -> (u64, u64) {
    let Ok(graph) = TaskGraph::new(schedule.clone()) else { return (u64::MAX, u64::MAX) };
    let devices = sweep(&graph, costs);
    let makespan = makespan(&devices);
    let span = devices.iter().map(|d| d.last_end - d.first_start).max().unwrap_or(0);
    if goal == Goal::Span { (span, makespan) } else { (makespan, span) }
}

fn rows_of(schedule: &Schedule) -> Vec<Vec<Op>> {
    (0..schedule.devices()).map(|device| schedule.program(device).to_vec()).collect()
}

/// Returns the order to start from if every device has one, all can be scheduled, and they have the right kind of backwards within
/// the caps.
fn given_start(open: &OpenSchedule, costs: &CostTable, split: bool) -> Option<Schedule> {
    let start = |program: &Program| match program {
        Program::Search { start, .. } => start.as_deref().cloned(),
        _ => None,
    };
    let programs: Vec<Program> = open.programs.iter().map(start).collect::<Option<_>>()?;
    let schedule = order_ops(&OpenSchedule { programs, ..open.clone() }, costs).ok()?.without_pairs();
    let wrong = if split { Kind::B } else { Kind::I };
    let within = |(device, program): (u32, &Program)| {
        let cap = cap_of(program).map_or(UNLIMITED, |cap| activation::cap(cap, open.placement.chunks()));
        schedule.most_held(device, costs.keep) <= cap
    };
    let fits = schedule.ops().iter().all(|op| op.kind() != wrong) && (0..).zip(&open.programs).all(within);
    fits.then_some(schedule)
}

/// Whether every device runs the micro-batches of each (stage, direction, kind) in order, as words imply.
fn takes_in_order(schedule: &Schedule) -> bool {
    let mut next = vec![None; schedule.placement.slots()];
    schedule.ops().iter().all(|op| {
        let first = schedule.placement.microbatches_of(op.direction(), schedule.microbatches).start;
        let expected = next[op.slot()].map_or(first, |last: u32| last + 1);
        next[op.slot()] = Some(op.microbatch());
        op.microbatch() == expected
    })
}

/// Runs all devices by list scheduling.
fn dispatch_rows(open: &OpenSchedule, problem: &OrderingProblem) -> Result<Vec<Vec<Op>>, Error> {
    let lists: Vec<Vec<Op>> = open.programs.iter().map(|program| weights(program.listed())).collect();
    let policies: Vec<Option<Policy>> = open.programs.iter().map(policy).collect();
    let course = |device: usize| match (&open.programs[device], &policies[device]) {
        (_, Some(policy)) => Course::Choose(policy),
        (Program::Fill { ops, .. }, _) => Course::Fill(ops, &lists[device]),
        (program, _) => Course::Fixed(program.listed()),
    };
    let courses: Vec<Course> = (0..open.programs.len()).map(course).collect();
    match list_schedule(problem, &courses) {
        Ok(rows) => Ok(rows),
        // The task graph reports the cycle.
        Err(_) if policies.iter().all(Option::is_none) => {
            Ok(open.programs.iter().zip(&lists).map(|(program, listed)| eager(program, listed)).collect())
        }
        Err(stuck) => {
            let mut text = format!("device {} has not finished", stuck.device);
            if let Some(op) = stuck.op {
                let _ = write!(text, ", it waits at {op}");
            }
            Err(Error::Stuck(text))
        }
    }
}

/// Returns a listed program with each floating W right after its I.
fn eager(program: &Program, weights: &[Op]) -> Vec<Op> {
    let fills = matches!(program, Program::Fill { .. });
    let mut row = Vec::new();
    for &op in program.listed() {
        row.push(op);
        let w = op.of_kind(Kind::W);
        if fills && op.kind() == Kind::I && weights.binary_search(&w).is_err() {
            row.push(w);
        }
    }
    row
}

fn policy(program: &Program) -> Option<Policy> {
    let Program::Greedy { priority, .. } = program else { return None };
    Some(Policy {
        rank: Rank::Kinds(priority.clone()),
        split: priority.contains(&Kind::I),
        compete: priority.contains(&Kind::W),
        slack: 0,
        patience: 0,
    })
}
