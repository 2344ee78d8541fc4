//! The best of many schedules: what `auto` means.
//!
//! Each candidate is a name that can be asked for by itself, and is evaluated as if it had been: with the same cap, machine, meaning
//! of overlapped pairs and search effort. On hardware the shortest iteration that fits into memory wins, else the shortest makespan.

use super::costs::Pricing;
use super::{Error, Selection, Warning};
use crate::cost::CostTable;
use crate::cost::analytic::Analytic;
use crate::dsl;
use crate::forecast::Forecast;
use crate::graph::TaskGraph;
use crate::op::Kind;
use crate::open::{OpenSchedule, Order, Program};
use crate::settle::{Effort, settle, settle_with};
use crate::sim;
use std::sync::{Mutex, PoisonError};

/// Stages per device that are tried where a schedule leaves them open, besides its own default.
const CHUNKS: [u32; 3] = [2, 3, 4];

/// What `auto` chose.
pub(super) struct Best {
    /// The name by which it can be asked for.
    pub name: String,
    /// Its order.
    pub graph: TaskGraph,
    /// That it does not fit either.
    pub warning: Option<Warning>,
}

/// One schedule that may be the best.
struct Candidate {
    name: String,
    order: Order,
    costs: CostTable,
}

/// Of all schedules that come with the program and exist for these numbers the best that keeps the cap; among equals the one with the
/// smaller span, then the smaller peak, then the earlier in the list. On the hardware of `analytic` iterations count, and
/// schedules must fit; where none does, the one that needs least memory is chosen.
pub(super) fn best<E: From<Error>>(
    selection: &Selection,
    costs: Pricing<'_, E>,
    analytic: Option<&Analytic>,
) -> Result<Best, E> {
    let (mut candidates, mut unfit) = (Vec::new(), None);
    for name in dsl::names().into_iter().flat_map(|name| names(selection, name)) {
        let Ok(found) = plain(selection).order(&name) else { continue };
        match costs(&name, found.order.placement()) {
            Ok(costs) => candidates.push(Candidate { name, order: selection.capped(found.order), costs }),
            // a model may have too few layers for so many stages
            Err(failure) => {
                unfit.get_or_insert(failure);
            }
        }
    }
    if let (true, Some(failure)) = (candidates.is_empty(), unfit) {
        return Err(failure);
    }
    let Selection { devices, microbatches, memory_cap: cap, .. } = *selection;
    let best = Contest { selection, analytic }.best(candidates);
    best.ok_or_else(|| Error::NoneFits { devices, microbatches, cap }.into())
}

/// What is asked of each candidate, whose name has all options.
pub(super) fn plain(selection: &Selection) -> Selection {
    Selection { lenient: false, ..selection.without_options() }
}

/// The names by which the schedule called `name` is tried.
fn names(selection: &Selection, name: &str) -> Vec<String> {
    let with = |chunks: u32| format!("{name}:v={chunks}");
    let chunks = |name: &str| plain(selection).order(name).ok().map(|found| found.order.placement().chunks());
    let own = chunks(name);
    if let Some(asked) = selection.chunks {
        return vec![if own == Some(asked) { name.to_string() } else { with(asked) }];
    }
    let mut names = vec![name.to_string()];
    names.extend(CHUNKS.into_iter().filter(|&v| own != Some(v)).map(with));
    names.extend(larger_search(selection).filter(|_| name == "zb-v-greedy"));
    names
}

/// A search on a V for more than the p activations of the named ones, where the cap leaves room for more.
fn larger_search(selection: &Selection) -> Option<String> {
    let (p, limit) = (f64::from(selection.devices), 2.0 * f64::from(selection.devices));
    let cap = selection.cap().map_or(limit, |cap| cap.min(limit)).floor();
    (cap > p && selection.chunks.is_none_or(|chunks| chunks == 2)).then(|| format!("zb-v-greedy:cap={cap}"))
}

/// A schedule that was judged.
struct Judged {
    rank: Rank,
    /// Its place in the list.
    number: usize,
    name: String,
    graph: TaskGraph,
}

/// What makes a schedule better, by importance. Times are billionths of the costs' unit, as placements differ in their ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Bytes of the fullest device where that does not fit; 0 where it does.
    misfit: u64,
    /// The iteration on hardware, else the makespan at the machine's typical speed.
    time: u64,
    span: u64,
    /// Of activations, in billionths.
    peak: u64,
}

/// By which rules candidates are compared.
struct Contest<'a> {
    selection: &'a Selection,
    analytic: Option<&'a Analytic>,
}

impl Contest<'_> {
    /// The best; the earlier among equals. Orders that costs decide are searched last and side by side, and only where lower bounds
    /// of their time and memory leave them a chance.
    fn best(&self, candidates: Vec<Candidate>) -> Option<Best> {
        let mut best: Vec<Judged> = Vec::new();
        let mut open: Vec<(usize, String, OpenSchedule, CostTable)> = Vec::new();
        for (number, Candidate { name, order, costs }) in candidates.into_iter().enumerate() {
            match order {
                Order::Fixed(schedule) => {
                    let graph = TaskGraph::with_overlap(schedule, self.selection.overlap).ok();
                    best.extend(graph.and_then(|graph| self.judged(number, name, graph, &costs)));
                }
                Order::Open(order) => open.push((number, name, order, costs)),
            }
        }
        let so_far = best.iter().map(|judged| judged.rank).min();
        open.retain(|(.., open, costs)| {
            self.may_fit(open) && so_far.is_none_or(|best| self.may_beat(open, costs, best))
        });
        let found = Mutex::new(&mut best);
        self.selection.host.each(open.len(), &|which| {
            let (number, name, open, costs) = &open[which];
            let effort = Effort { times: self.selection.effort, ..Effort::default() };
            let settled = settle_with(open, costs, effort).ok();
            let graph = settled.and_then(|schedule| TaskGraph::with_overlap(schedule, self.selection.overlap).ok());
            let judged = graph.and_then(|graph| self.judged(*number, name.clone(), graph, costs));
            found.lock().unwrap_or_else(PoisonError::into_inner).extend(judged);
        });
        let Judged { rank, name, graph, .. } = best.into_iter().min_by_key(|judged| (judged.rank, judged.number))?;
        let capacity = self.analytic.map_or(0, |analytic| analytic.machine.hardware.memory_bytes());
        let warning =
            (rank.misfit > 0).then(|| Warning::NoneFits { schedule: name.clone(), bytes: rank.misfit, capacity });
        Some(Best { name, graph, warning })
    }

    /// The graph with the rank of its prediction; `None` where it holds too much or cannot run.
    fn judged(&self, number: usize, name: String, graph: TaskGraph, costs: &CostTable) -> Option<Judged> {
        let schedule = graph.schedule();
        // On hardware memory in bytes decides, of which the room for activations is an estimate.
        let cap = if self.analytic.is_some() { self.selection.memory_cap } else { self.selection.cap() };
        if cap.is_some_and(|cap| !schedule.keeps_cap(cap, costs.keep)) {
            return None;
        }
        let peak = (schedule.peak(costs.keep) * 1e9).round() as u64;
        let (costs, machine) = self.selection.machine.equip(costs.clone(), schedule.devices()).ok()?;
        let step = sim::typical_step_on(&graph, &costs, machine.as_ref()).ok()?;
        let time = |ticks: u64| fine(ticks as f64 / costs.ticks_per_unit);
        let span = time(step.devices.iter().map(|d| d.last_end - d.first_start).max().unwrap_or(0));
        let rank = match self.analytic {
            None => Rank { misfit: 0, time: time(step.typical_makespan), span, peak },
            Some(analytic) => {
                let Forecast { iteration_s, memory, .. } = Forecast::of(analytic, schedule, &step.devices).ok()?;
                let misfit = if memory.fits { 0 } else { memory.fullest().total };
                Rank { misfit, time: fine(1e3 * iteration_s), span, peak }
            }
        };
        Some(Judged { rank, number, name, graph })
    }

    /// Whether some order of the ops of `open` may fit into memory.
    fn may_fit(&self, open: &OpenSchedule) -> bool {
        let Some(analytic) = self.analytic else { return true };
        analytic.least_memory(&open.placement).is_some_and(|memory| memory.fits)
    }

    /// Whether some order of the ops of `open` may be better than the best so far: its lower bound below that one's time, or as short
    /// with a smaller span.
    fn may_beat(&self, open: &OpenSchedule, costs: &CostTable, best: Rank) -> bool {
        // Any order of these ops will do: bounds hold for all.
        let split = open.programs.iter().any(|program| matches!(program, Program::Search { split: true, .. }));
        let priority = if split { vec![Kind::I, Kind::F, Kind::W] } else { vec![Kind::B, Kind::F] };
        let cap = self.selection.cap();
        let programs = vec![Program::Greedy { priority, cap }; open.programs.len()];
        let any = settle(&OpenSchedule { programs, ..open.clone() }, costs).ok();
        let Some(graph) = any.and_then(|schedule| TaskGraph::with_overlap(schedule, self.selection.overlap).ok())
        else {
            return true;
        };
        let bounds = sim::bounds(&graph, costs, cap);
        let time = |ticks: u64| fine(ticks as f64 / costs.ticks_per_unit);
        // Where steps overlap, an iteration lasts no longer than the span, whose bound is the work.
        let overlaps = self.analytic.is_some_and(|analytic| analytic.machine.stack.step_overlaps > 0.0);
        let shortest = if overlaps { bounds.work } else { bounds.best().0 };
        best.misfit > 0 || (time(shortest), time(bounds.work)) < (best.time, best.span)
    }
}

/// A time in billionths of its unit.
fn fine(time: f64) -> u64 {
    (time * 1e9).round() as u64
}
