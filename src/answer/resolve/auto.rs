//! `auto`: the best of many schedules.
//!
//! Each candidate is a name that can be requested by itself, and is evaluated as if it had been: with the same cap, machine,
//! meaning of overlapped pairs and search effort. On hardware the shortest iteration that fits into memory wins, otherwise the
//! shortest makespan.

use super::costs::Pricing;
use super::order::OrderedGraph;
use super::{Error, Selection, Variant, Warning};
use crate::step_estimate::StepEstimate;
use pipesim_cost::CostTable;
use pipesim_cost::analytic::Analytic;
use pipesim_language as dsl;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::Kind;
use pipesim_schedule::open::{OpenSchedule, Order, Program};
use pipesim_schedule::schedule::Schedule;
use pipesim_sim::ordering::{Effort, order_ops, order_ops_with};
use pipesim_sim::{self as sim, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Most stages per device to try: on hardware, where each costs messages, and elsewhere, where they cost nothing.
const MOST_CHUNKS: [u32; 2] = [8, 4];

/// Number of the best schedules whose layers are balanced to find the best of these.
pub(super) const MOST_BALANCED: usize = 12;

/// Number of variants of one schedule among them.
const MOST_ALIKE: usize = 2;

/// Predicts a candidate; the table is that which may have decided its order.
pub(super) type Priced<'a> = &'a (dyn Fn(TaskGraph, &CostTable) -> Result<CandidateStep, Error> + Sync);

/// Predicts a candidate with layers per stage that make its busiest device the lightest, if layers are balanced on hardware.
pub(super) type Levelled<'a> = &'a (dyn Fn(&str, &Order) -> Option<(CandidateStep, Analytic)> + Sync);

/// A candidate's step with all costs of a prediction.
pub(super) struct CandidateStep {
    pub graph: TaskGraph,
    pub costs: CostTable,
    pub step: Step,
}

struct ScheduleCandidate {
    name: String,
    order: Order,
    costs: CostTable,
}

/// Returns the `count` best of all embedded schedules that exist for these numbers and keep the cap, the best first. Ties are broken by smaller span,
/// then smaller peak, then order in the list. With `analytic`, iteration times are compared and schedules must fit into memory;
/// if none fits, the one that needs the least memory wins.
pub(super) fn best<E: From<Error>>(
    selection: &Selection,
    costs: Pricing<'_, E>,
    priced: Priced<'_>,
    levelled: Levelled<'_>,
    analytic: Option<&Analytic>,
    count: usize,
) -> Result<Vec<OrderedGraph>, E> {
    let (mut candidates, mut unfit) = (Vec::new(), None);
    let most_chunks = if analytic.is_some() { MOST_CHUNKS[0] } else { MOST_CHUNKS[1] };
    let most_chunks = selection.chunks.map_or(most_chunks, |asked| most_chunks.max(asked));
    for name in dsl::names_of_whole().into_iter().flat_map(|name| names(selection, name, most_chunks)) {
        let Ok(found) = plain(selection).order(&name) else { continue };
        match costs(&name, found.order.placement()) {
            Ok(costs) => candidates.push(ScheduleCandidate { name, order: selection.capped(found.order), costs }),
            // a model may have too few layers for the stages
            Err(failure) => {
                unfit.get_or_insert(failure);
            }
        }
    }
    if let (true, Some(failure)) = (candidates.is_empty(), unfit) {
        return Err(failure);
    }
    let Selection { devices, microbatches, memory_cap: cap, .. } = *selection;
    let best = Ranking { selection, priced, levelled, analytic, count }.best(candidates);
    if best.is_empty() { Err(Error::NoneFits { devices, microbatches, cap }.into()) } else { Ok(best) }
}

/// Returns the selection for candidates, whose names contain all options.
pub(super) fn plain(selection: &Selection) -> Selection {
    Selection { lenient: false, ..selection.without_options() }
}

/// Returns the names under which to try the schedule `name`: with its defaults, then with other stages per device and other values of
/// its own options, in all combinations.
fn names(selection: &Selection, name: &str, most_chunks: u32) -> Vec<String> {
    let plain = plain(selection);
    let variant = Variant { base: name.to_string(), options: BTreeMap::new() };
    let chunks =
        |variant: &Variant| plain.order(&variant.to_string()).ok().map(|found| found.order.placement().chunks());
    let (Ok(takes), own) = (plain.takes(&variant), chunks(&variant)) else { return vec![name.to_string()] };
    let v =
        takes.chunks.then(|| ("v".to_string(), (2..=most_chunks).filter(|&v| own != Some(v)).map(f64::from).collect()));
    let options = takes.options.into_iter().filter(|option| option != "v");
    let options = options.map(|option| {
        let values = values(selection, &option, most_chunks);
        (option, values)
    });
    let mut all = vec![variant];
    for (option, values) in v.into_iter().chain(options) {
        let with = |value: &f64, variant: &Variant| {
            let mut variant = variant.clone();
            variant.options.insert(option.clone(), value.to_string());
            variant
        };
        let more: Vec<Variant> = values.iter().flat_map(|value| all.iter().map(|one| with(value, one))).collect();
        all.extend(more);
    }
    if let Some(asked) = selection.chunks {
        all.retain(|variant| chunks(variant) == Some(asked));
    }
    all.iter().map(ToString::to_string).collect()
}

/// Returns the values of a schedule's own option to try besides its default.
fn values(selection: &Selection, option: &str, most_chunks: u32) -> Vec<f64> {
    let p = selection.devices;
    match option {
        "waves" => (2..=most_chunks / 2).map(f64::from).collect(),
        // between half of the devices and all, the default
        "group" => {
            BTreeSet::from([p.div_ceil(2), (3 * p).div_ceil(4)]).into_iter().filter(|&g| g < p).map(f64::from).collect()
        }
        // more than the default, the activations of 1F1B, if the cap allows it
        "cap" => {
            let (p, most) = (f64::from(p), 2.0 * f64::from(p));
            let cap = selection.cap().map_or(most, |cap| cap.min(most)).floor();
            if cap > p { vec![cap] } else { Vec::new() }
        }
        _ => Vec::new(),
    }
}

struct Ranked {
    rank: ScheduleRank,
    /// Index in the list.
    number: usize,
    name: String,
    graph: TaskGraph,
}

/// Quality of a schedule; smaller is better. Times are in billionths of the time unit, as ticks differ between placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ScheduleRank {
    /// Bytes of the fullest device if it does not fit, otherwise 0.
    excess: u64,
    /// Iteration time on hardware, otherwise the makespan at the machine's median speed.
    time: u64,
    span: u64,
    /// Peak of activations, in billionths.
    peak: u64,
}

/// How candidates are compared.
struct Ranking<'a> {
    selection: &'a Selection,
    priced: Priced<'a>,
    levelled: Levelled<'a>,
    analytic: Option<&'a Analytic>,
    /// How many to return.
    count: usize,
}

impl Ranking<'_> {
    /// Returns the best candidates, the earlier one of equals first. Open orders are searched last and in parallel, and only if
    /// lower bounds of their time and memory leave them a chance.
    fn best(&self, candidates: Vec<ScheduleCandidate>) -> Vec<OrderedGraph> {
        let mut best: Vec<Ranked> = Vec::new();
        let mut open: Vec<(usize, String, OpenSchedule, CostTable)> = Vec::new();
        for (number, ScheduleCandidate { name, order, costs }) in candidates.into_iter().enumerate() {
            match order {
                Order::Fixed(schedule) => {
                    let ranked =
                        self.graph(schedule.clone()).and_then(|graph| self.ranked(number, name, graph, &costs));
                    best.extend(ranked.map(|ranked| self.balanced(ranked, &Order::Fixed(schedule))));
                }
                Order::Open(order) => open.push((number, name, order, costs)),
            }
        }
        best.sort_by_key(|ranked| (ranked.rank, ranked.number));
        let so_far = best.get(self.count - 1).map(|ranked| ranked.rank);
        open.retain(|(.., open, costs)| {
            self.may_fit(open) && so_far.is_none_or(|best| self.may_beat(open, costs, best))
        });
        let found = Mutex::new(&mut best);
        self.selection.host.each(open.len(), &|which| {
            let (number, name, open, costs) = &open[which];
            let effort = Effort { times: self.selection.effort, ..Effort::default() };
            let fixed = order_ops_with(open, costs, effort).ok();
            let graph = fixed.and_then(|schedule| self.graph(schedule));
            let ranked = graph.and_then(|graph| self.ranked(*number, name.clone(), graph, costs));
            let ranked = ranked.map(|ranked| self.balanced(ranked, &Order::Open(open.clone())));
            found.lock().unwrap_or_else(PoisonError::into_inner).extend(ranked);
        });
        best.sort_by_key(|ranked| (ranked.rank, ranked.number));
        let capacity = self.analytic.map_or(0, |analytic| analytic.machine.hardware.memory_bytes());
        let ordered = |Ranked { rank, name, graph, .. }: Ranked| {
            let warning =
                (rank.excess > 0).then(|| Warning::NoneFits { schedule: name.clone(), bytes: rank.excess, capacity });
            OrderedGraph { graph, chosen: Some(name), warnings: warning.into_iter().collect() }
        };
        // several are for what follows, in which variants of one schedule are alike
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        let is_other = |ranked: &Ranked| {
            let base = ranked.name.split(':').next().unwrap_or_default();
            let count = taken.entry(base.to_string()).or_default();
            *count += 1;
            *count <= MOST_ALIKE
        };
        best.into_iter().filter(is_other).take(self.count).map(ordered).collect()
    }

    /// Returns the graph of a candidate; `None` if it cannot run as asked for.
    fn graph(&self, schedule: Schedule) -> Option<TaskGraph> {
        TaskGraph::with_overlap(self.selection.sharded(schedule).ok()?, self.selection.overlap).ok()
    }

    /// Ranks the graph by its prediction; `None` if it exceeds the cap or cannot run.
    fn ranked(&self, number: usize, name: String, graph: TaskGraph, costs: &CostTable) -> Option<Ranked> {
        let found = (self.priced)(graph, costs).ok()?;
        let rank = self.rank(&found, self.analytic)?;
        Some(Ranked { rank, number, name, graph: found.graph })
    }

    /// Ranks a candidate with lighter devices if that is better: what it takes with balanced layers is hardly longer.
    fn balanced(&self, ranked: Ranked, order: &Order) -> Ranked {
        let levelled = (self.levelled)(&ranked.name, order);
        let other = levelled.and_then(|(found, analytic)| self.rank(&found, Some(&analytic)));
        Ranked { rank: other.map_or(ranked.rank, |other| other.min(ranked.rank)), ..ranked }
    }

    /// Returns the rank of a step; `None` if it exceeds the cap.
    fn rank(
        &self,
        CandidateStep { graph, costs, step }: &CandidateStep,
        analytic: Option<&Analytic>,
    ) -> Option<ScheduleRank> {
        let schedule = graph.schedule();
        // On hardware the memory in bytes decides; the room for activations is only an estimate.
        let cap = if analytic.is_some() { self.selection.memory_cap } else { self.selection.cap() };
        if cap.is_some_and(|cap| !schedule.keeps_cap(cap, costs.keep)) {
            return None;
        }
        let peak = (schedule.peak(costs.keep) * 1e9).round() as u64;
        let time = |ticks: u64| fine(costs.in_units(ticks));
        let span = time(step.devices.iter().map(|d| d.last_end - d.first_start).max().unwrap_or(0));
        Some(match analytic {
            None => ScheduleRank { excess: 0, time: time(step.typical_makespan), span, peak },
            Some(analytic) => {
                let StepEstimate { iteration_s, memory, .. } =
                    StepEstimate::of(analytic, schedule, &step.devices).ok()?;
                let excess = if memory.fits { 0 } else { memory.fullest().total };
                ScheduleRank { excess, time: fine(1e3 * iteration_s), span, peak }
            }
        })
    }

    /// Returns whether some order of the ops of `open` may fit into memory.
    fn may_fit(&self, open: &OpenSchedule) -> bool {
        let Some(analytic) = self.analytic else { return true };
        analytic.least_memory(&open.placement).is_some_and(|memory| memory.fits)
    }

    /// Returns whether some order of the ops of `open` may beat `best`: its lower bound is below the best time, or equal with a
    /// smaller span.
    fn may_beat(&self, open: &OpenSchedule, costs: &CostTable, best: ScheduleRank) -> bool {
        // Bounds hold for all orders of these ops, so any order will do.
        let split = open.programs.iter().any(|program| matches!(program, Program::Search { split: true, .. }));
        let priority = if split { vec![Kind::I, Kind::F, Kind::W] } else { vec![Kind::B, Kind::F] };
        let cap = self.selection.cap();
        let programs = vec![Program::Greedy { priority, cap }; open.programs.len()];
        let any = order_ops(&OpenSchedule { programs, ..open.clone() }, costs).ok();
        let Some(graph) = any.and_then(|schedule| TaskGraph::with_overlap(schedule, self.selection.overlap).ok())
        else {
            return true;
        };
        let bounds = sim::bounds(&graph, costs, cap);
        let time = |ticks: u64| fine(costs.in_units(ticks));
        // If steps overlap, an iteration is at most as long as the span, whose bound is the work.
        let overlaps = self.analytic.is_some_and(|analytic| analytic.machine.stack.step_overlaps > 0.0);
        let shortest = if overlaps { bounds.work } else { bounds.best().0 };
        best.excess > 0 || (time(shortest), time(bounds.work)) < (best.time, best.span)
    }
}

/// Converts a time to billionths of its unit.
fn fine(time: f64) -> u64 {
    (time * 1e9).round() as u64
}
