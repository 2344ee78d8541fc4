//! The best of many schedules under a memory cap: what `--schedule auto` means.

use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::op::Kind;
use crate::open::{OpenSchedule, Order, Program};
use crate::schedule::{Overlap, Schedule};
use crate::settle::settle;
use crate::sim;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One schedule that may be the best.
pub struct Candidate {
    /// Its order, or what settles it.
    pub order: Order,
    /// What its ops cost.
    pub costs: CostTable,
}

/// What makes a schedule better, in nanoseconds (placements differ in their ticks) and millionths of an activation: the
/// makespan, then the span, then the peak.
type Rank = (u64, u64, u64);

/// The best of `candidates` that holds at most `cap` activations; the earlier among equals. Orders that costs decide are
/// searched last and side by side, and only where a lower bound leaves them a chance.
pub fn best(candidates: Vec<Candidate>, overlap: Overlap, cap: Option<f64>) -> Option<TaskGraph> {
    let mut best: Vec<(Rank, usize, TaskGraph)> = Vec::new();
    let mut open: Vec<(usize, OpenSchedule, CostTable)> = Vec::new();
    for (number, Candidate { order, costs }) in candidates.into_iter().enumerate() {
        match order {
            Order::Fixed(schedule) => best.extend(judged(number, schedule, &costs, overlap, cap)),
            Order::Open(order) => open.push((number, order, costs)),
        }
    }
    let so_far = best.iter().map(|(rank, ..)| *rank).min();
    open.retain(|(_, open, costs)| so_far.is_none_or(|rank| may_beat(open, costs, overlap, cap, rank)));
    let (next, found) = (AtomicUsize::new(0), Mutex::new(&mut best));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(open.len()) {
            scope.spawn(|| {
                while let Some((number, open, costs)) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let settled = settle(open, costs).ok();
                    let judged = settled.and_then(|schedule| judged(*number, schedule, costs, overlap, cap));
                    found.lock().unwrap_or_else(PoisonError::into_inner).extend(judged);
                }
            });
        }
    });
    best.into_iter().min_by_key(|(rank, number, _)| (*rank, *number)).map(|(.., graph)| graph)
}

/// The graph with its rank; `None` where it holds too much or cannot run.
fn judged(
    number: usize,
    schedule: Schedule,
    costs: &CostTable,
    overlap: Overlap,
    cap: Option<f64>,
) -> Option<(Rank, usize, TaskGraph)> {
    let peak = schedule.peak(costs.keep);
    if cap.is_some_and(|cap| peak > cap + 1e-9) {
        return None;
    }
    let graph = TaskGraph::with_overlap(schedule, overlap).ok()?;
    let devices = sim::sweep(&graph, costs);
    let makespan = devices.iter().map(|d| d.last_end).max().unwrap_or(0);
    let span = devices.iter().map(|d| d.last_end - d.first_start).max().unwrap_or(0);
    Some(((costs.to_ns(makespan), costs.to_ns(span), (peak * 1e6) as u64), number, graph))
}

/// Whether some order of the ops of `open` may be better than `rank`: its makespan below that of the best so far, or as
/// short with a smaller span.
fn may_beat(open: &OpenSchedule, costs: &CostTable, overlap: Overlap, cap: Option<f64>, rank: Rank) -> bool {
    // Any order of these ops will do: bounds hold for all.
    let split = open.programs.iter().any(|program| matches!(program, Program::Search { split: true, .. }));
    let priority = if split { vec![Kind::I, Kind::F, Kind::W] } else { vec![Kind::B, Kind::F] };
    let programs = vec![Program::Greedy { priority, cap }; open.programs.len()];
    let any = settle(&OpenSchedule { programs, ..open.clone() }, costs).ok();
    let Some(graph) = any.and_then(|schedule| TaskGraph::with_overlap(schedule, overlap).ok()) else { return true };
    let bounds = sim::bounds(&graph, costs, cap);
    (costs.to_ns(bounds.best().0), costs.to_ns(bounds.work)) < (rank.0, rank.1)
}
