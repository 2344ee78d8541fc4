//! The best of many schedules under a memory cap: what `auto` means.

use super::costs::Pricing;
use super::{Error, Host, Selection};
use crate::cost::CostTable;
use crate::dsl;
use crate::graph::TaskGraph;
use crate::op::Kind;
use crate::open::{Goal, OpenSchedule, Order, Program};
use crate::placement::Placement;
use crate::schedule::{Overlap, Schedule};
use crate::settle::{Effort, settle, settle_with};
use crate::sim;
use std::sync::{Mutex, PoisonError};

/// What `auto` calls its own search.
const LARGER_SEARCH: &str = "searched on a V";

/// One schedule that may be the best.
struct Candidate {
    /// Its order, or what settles it.
    order: Order,
    /// What its ops cost.
    costs: CostTable,
}

/// Of all schedules that come with the program and exist for these numbers the one with the smallest makespan that keeps the
/// cap; among equals the smaller span, then the smaller peak, then the earlier in the list.
pub(super) fn best<E: From<Error>>(selection: &Selection, costs: Pricing<'_, E>) -> Result<TaskGraph, E> {
    let (mut candidates, mut unfit) = (Vec::new(), None);
    let chunks = match selection.chunks {
        Some(chunks) => vec![Some(chunks)],
        None => vec![None, Some(3), Some(4)],
    };
    for (name, chunks) in dsl::names().into_iter().flat_map(|name| chunks.iter().map(move |&chunks| (name, chunks))) {
        let one = Selection { chunks, ..selection.without_options() };
        let Ok(found) = one.order(name) else { continue };
        match costs(name, found.order.placement()) {
            Ok(costs) => {
                let order = match chunks.filter(|_| selection.chunks.is_none()) {
                    Some(chunks) => with_chunks(found.order, chunks),
                    None => found.order,
                };
                candidates.push(Candidate { order: selection.capped(order), costs });
            }
            // a model may have too few layers for so many stages
            Err(failure) => {
                unfit.get_or_insert(failure);
            }
        }
    }
    if let (true, Some(failure)) = (candidates.is_empty(), unfit) {
        return Err(failure);
    }
    candidates.extend(larger_search(selection, costs));
    let Selection { devices, microbatches, overlap, host, effort, .. } = *selection;
    let cap = selection.cap();
    let best = Contest { overlap, cap, host, effort }.best(candidates);
    best.ok_or_else(|| Error::NoneFits { devices, microbatches, cap }.into())
}

/// `order`, called as the variant that it is, so that it can be asked for.
fn with_chunks(mut order: Order, chunks: u32) -> Order {
    let (Order::Fixed(Schedule { name, .. }) | Order::Open(OpenSchedule { name, .. })) = &mut order;
    name.push_str(&format!(":v={chunks}"));
    order
}

/// A search on a V for more than the p activations of the named ones, where the cap leaves room for more.
fn larger_search<E>(selection: &Selection, costs: Pricing<'_, E>) -> Option<Candidate> {
    let (p, limit) = (f64::from(selection.devices), 2.0 * f64::from(selection.devices));
    let cap = selection.cap().map_or(limit, |cap| cap.min(limit));
    if cap <= p || selection.chunks.is_some_and(|chunks| chunks != 2) {
        return None;
    }
    let placement = Placement::zigzag("V", selection.devices, 2);
    let costs = costs(LARGER_SEARCH, &placement).ok()?;
    let search = Program::Search { split: true, cap: Some(cap), start: None };
    let order = Order::Open(OpenSchedule {
        name: LARGER_SEARCH.to_string(),
        placement,
        microbatches: selection.microbatches,
        programs: vec![search; selection.devices as usize],
        goal: Goal::Makespan,
    });
    Some(Candidate { order, costs })
}

/// A schedule that was judged.
struct Judged {
    rank: Rank,
    /// Its place in the list.
    number: usize,
    graph: TaskGraph,
}

/// What makes a schedule better, in nanoseconds (placements differ in their ticks) and billionths of an activation: the
/// makespan at the machine's typical speed, then the span, then the peak.
type Rank = (u64, u64, u64);

/// By which rules candidates are compared.
struct Contest {
    overlap: Overlap,
    /// Most activations.
    cap: Option<f64>,
    host: &'static dyn Host,
    effort: u32,
}

impl Contest {
    /// The best that holds at most the cap; the earlier among equals. Orders that costs decide are searched last and side by
    /// side, and only where a lower bound leaves them a chance.
    fn best(&self, candidates: Vec<Candidate>) -> Option<TaskGraph> {
        let mut best: Vec<Judged> = Vec::new();
        let mut open: Vec<(usize, OpenSchedule, CostTable)> = Vec::new();
        for (number, Candidate { order, costs }) in candidates.into_iter().enumerate() {
            match order {
                Order::Fixed(schedule) => best.extend(self.judged(number, schedule, &costs)),
                Order::Open(order) => open.push((number, order, costs)),
            }
        }
        let so_far = best.iter().map(|judged| (judged.rank.0, judged.rank.1)).min();
        open.retain(|(_, open, costs)| so_far.is_none_or(|best| self.may_beat(open, costs, best)));
        let found = Mutex::new(&mut best);
        self.host.each(open.len(), &|which| {
            let (number, open, costs) = &open[which];
            let settled = settle_with(open, costs, Effort { times: self.effort, ..Effort::default() }).ok();
            let judged = settled.and_then(|schedule| self.judged(*number, schedule, costs));
            found.lock().unwrap_or_else(PoisonError::into_inner).extend(judged);
        });
        best.into_iter().min_by_key(|judged| (judged.rank, judged.number)).map(|judged| judged.graph)
    }

    /// The graph with the rank of its prediction; `None` where it holds too much or cannot run.
    fn judged(&self, number: usize, schedule: Schedule, costs: &CostTable) -> Option<Judged> {
        if self.cap.is_some_and(|cap| !schedule.keeps_cap(cap, costs.keep)) {
            return None;
        }
        let peak = (schedule.peak(costs.keep) * 1e9).round() as u64;
        let graph = TaskGraph::with_overlap(schedule, self.overlap).ok()?;
        let step = sim::typical_step(&graph, costs).ok()?;
        let span = step.devices.iter().map(|d| d.last_end - d.first_start).max().unwrap_or(0);
        let rank = (costs.to_ns(step.typical_makespan), costs.to_ns(span), peak);
        Some(Judged { rank, number, graph })
    }

    /// Whether some order of the ops of `open` may be better than the best so far, both at typical speed: its makespan below
    /// that one's, or as short with a smaller span.
    fn may_beat(&self, open: &OpenSchedule, costs: &CostTable, best: (u64, u64)) -> bool {
        // Any order of these ops will do: bounds hold for all.
        let split = open.programs.iter().any(|program| matches!(program, Program::Search { split: true, .. }));
        let priority = if split { vec![Kind::I, Kind::F, Kind::W] } else { vec![Kind::B, Kind::F] };
        let programs = vec![Program::Greedy { priority, cap: self.cap }; open.programs.len()];
        let any = settle(&OpenSchedule { programs, ..open.clone() }, costs).ok();
        let Some(graph) = any.and_then(|schedule| TaskGraph::with_overlap(schedule, self.overlap).ok()) else {
            return true;
        };
        let bounds = sim::bounds(&graph, costs, self.cap);
        (costs.to_ns(bounds.best().0), costs.to_ns(bounds.work)) < best
    }
}
