//! `--balance`: the layers per stage with the shortest iteration of a schedule on hardware, or else the shortest makespan.

use super::machine::refused;
use super::order::OrderedGraph;
use super::{Costs, Error, Selection, usage};
use pipesim_cost::analytic::Analytic;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::open::Order;
use pipesim_sim as sim;
use pipesim_sim::balance::{Balance, Balanced, Problem, SplitTime, balance};
use std::cell::RefCell;

/// Maximum number of ops to simulate: about a second.
const MOST_OPS: u64 = 20_000_000;
/// Minimum and maximum number of splits to simulate.
const STEPS: (u64, u64) = (500, 20_000);
/// Approximate slowdown of the event engine compared with the sweep.
const EVENTS: u64 = 8;
/// Largest number of times that layers are balanced for the order of the layers before.
const ROUNDS: usize = 4;
/// Simulations that it takes to find an order by rules, and by a search.
const RULED: u64 = 8;
const SEARCHED: u64 = 20_000;

/// A simulated split.
#[derive(Clone, Copy)]
struct Simulated {
    /// In time units.
    makespan: f64,
    /// On hardware, in seconds.
    iteration_s: Option<f64>,
    /// What the search compares: nanoseconds of an iteration on hardware, otherwise ticks of the makespan.
    split: SplitTime,
}

/// Simulates a split on the selection's machine.
fn simulated(selection: &Selection, graph: &TaskGraph, costs: &Costs, layers: &[usize]) -> Result<Simulated, Error> {
    let (schedule, stages) = (graph.schedule(), costs.first_layers(layers));
    let table = costs.of_stages(&schedule.placement, &stages, schedule.slices())?;
    let (table, machine) = selection.machine.equip(table, schedule.devices())?;
    // In the sweep a longer op never shortens a pipeline; with queued messages it may, and a layer more may change the kinds of others.
    let is_even = costs.analytic().is_none_or(|analytic| analytic.spec.outline().is_even());
    let bound = |least: u64| if selection.machine.is_plain() && is_even { least } else { 0 };
    let Some(analytic) = costs.analytic() else {
        let steady = sim::steady_makespan(graph, &table, machine.as_ref());
        let time = steady.map_err(|error| refused(error, schedule))?;
        let split = SplitTime { time, least: bound(time) };
        return Ok(Simulated { makespan: table.in_units(time), iteration_s: None, split });
    };
    let step = sim::typical_step_on(graph, &table, machine.as_ref()).map_err(|error| refused(error, schedule))?;
    let iteration_s = analytic.step_of(schedule, &stages, &step.devices)?.iteration();
    let least_s = analytic.least_step(schedule, &stages, &step.devices);
    let ns = |seconds: f64| (seconds * 1e9).round() as u64;
    let split = SplitTime { time: ns(iteration_s), least: bound(ns(least_s)) };
    Ok(Simulated { makespan: table.in_units(step.typical_makespan), iteration_s: Some(iteration_s), split })
}

/// How a schedule's order follows from costs.
pub(super) struct Reorder<'a> {
    /// Makes the graph under other costs.
    pub again: &'a dyn Fn(&Costs) -> Result<OrderedGraph, Error>,
    /// How many simulations of the graph that takes about; 0 if the order is fixed.
    pub simulations: u64,
}

impl Reorder<'_> {
    /// Returns how many simulations of a graph it takes to find an order.
    pub fn simulations(order: &Order) -> u64 {
        match order {
            Order::Fixed(_) => 0,
            Order::Open(_) if order.is_searched() => SEARCHED,
            Order::Open(_) => RULED,
        }
    }

    /// Simulates a split with the order that follows from it.
    fn simulated(
        &self,
        selection: &Selection,
        costs: &Costs,
        layers: &[usize],
    ) -> Result<(TaskGraph, Simulated), Error> {
        let costs = costs.with_layers(layers.to_vec());
        let graph = (self.again)(&costs)?.graph;
        let found = simulated(selection, &graph, &costs, layers)?;
        Ok((graph, found))
    }
}

/// Returns the layers per stage with the shortest iteration on hardware, or else the shortest makespan, the gain, and the graph under them
/// if it changes. Without gain, layers and graph stay.
///
/// # Errors
/// Costs without a model's parts, a model that cannot be split into the stages, no split that fits into memory, or an error of
/// `reorder`.
pub(super) fn balanced(
    selection: &Selection,
    graph: &TaskGraph,
    costs: &Costs,
    reorder: &Reorder<'_>,
) -> Result<(Option<TaskGraph>, Balanced), Error> {
    let found = search(selection, graph, costs)?;
    if reorder.simulations > 0 {
        return following(selection, graph, costs, reorder, found);
    }
    if found.layers == found.layers_before {
        return Ok((None, found));
    }
    let (graph, Simulated { makespan, iteration_s, .. }) = reorder.simulated(selection, costs, &found.layers)?;
    let now = Balanced { makespan, iteration_s, ..found };
    let (time, before) = now.times();
    if now.fits_before && time >= before { Ok((None, unchanged(now))) } else { Ok((Some(graph), now)) }
}

/// Returns the result that keeps the layers.
fn unchanged(found: Balanced) -> Balanced {
    let (layers, makespan, iteration_s) =
        (found.layers_before.clone(), found.makespan_before, found.iteration_before_s);
    Balanced { layers, makespan, iteration_s, is_optimal: false, ..found }
}

/// Returns [`balanced`] of an order that follows from costs; `found` is the best split for the order before. Each split has an order of its
/// own, for which another split may be better.
fn following(
    selection: &Selection,
    graph: &TaskGraph,
    costs: &Costs,
    reorder: &Reorder<'_>,
    mut found: Balanced,
) -> Result<(Option<TaskGraph>, Balanced), Error> {
    let mut layers = found.layers.clone();
    let mut best: Option<(TaskGraph, Balanced)> = None;
    for _ in 0..ROUNDS {
        if layers == found.layers_before {
            break;
        }
        let (graph, Simulated { makespan, iteration_s, .. }) = reorder.simulated(selection, costs, &layers)?;
        let now = Balanced { layers: layers.clone(), makespan, iteration_s, is_optimal: false, ..found.clone() };
        let least = best.as_ref().map_or(f64::INFINITY, |(_, best)| best.times().0);
        let fits = fits(costs, &graph, &layers);
        if fits && now.times().0 < least {
            best = Some((graph.clone(), now));
        } else if best.is_some() {
            break;
        }
        let next = search(selection, &graph, &costs.with_layers(layers.clone()))?;
        found.simulated += next.simulated;
        if next.layers == layers {
            break;
        }
        layers = next.layers;
    }
    let start = best.as_ref().map_or(&found.layers_before, |(_, best)| &best.layers).clone();
    let budget = MOST_OPS / graph.len().max(1) as u64 / reorder.simulations;
    if budget >= 2 * start.len() as u64 {
        let last: RefCell<Option<(Vec<usize>, TaskGraph)>> = RefCell::new(None);
        let step = |layers: &[usize]| {
            let (graph, found) = reorder.simulated(selection, costs, layers).ok()?;
            last.replace(Some((layers.to_vec(), graph)));
            Some(SplitTime { least: 0, ..found.split })
        };
        let fits = |layers: &[usize]| match &*last.borrow() {
            Some((own, graph)) if own == layers => fits(costs, graph, layers),
            _ => true,
        };
        let (layers, budget) = (start.iter().sum(), budget.min(STEPS.0));
        let problem = Problem { layers, start, step: &step, fits: &fits, budget };
        if let Some(Balance { layers, steps, .. }) = balance(&problem) {
            found.simulated += steps;
            let (graph, Simulated { makespan, iteration_s, .. }) = reorder.simulated(selection, costs, &layers)?;
            let now = Balanced { layers, makespan, iteration_s, is_optimal: false, ..found.clone() };
            if best.as_ref().is_none_or(|(_, best)| now.times().0 < best.times().0) {
                best = Some((graph, now));
            }
        }
    }
    match best {
        Some((graph, now)) if !now.fits_before || now.times().0 < now.times().1 => {
            let simulated = found.simulated;
            Ok((Some(graph), Balanced { simulated, ..now }))
        }
        _ => Ok((None, unchanged(found))),
    }
}

/// Returns whether these layers per stage fit into memory.
fn fits(costs: &Costs, graph: &TaskGraph, layers: &[usize]) -> bool {
    let memory = |analytic: &Analytic| analytic.memory_of(&costs.first_layers(layers), graph.schedule(), None);
    costs.analytic().is_none_or(|analytic| memory(analytic).is_ok_and(|memory| memory.fits))
}

/// Returns the best split of the layers for the fixed order of `graph`.
fn search(selection: &Selection, graph: &TaskGraph, costs: &Costs) -> Result<Balanced, Error> {
    let (name, placement) = (&graph.schedule().name, &graph.schedule().placement);
    let start: Vec<usize> = costs.stages(name, placement)?.iter().map(|stage| stage.layers()).collect();
    // Errors under the initial split are errors of the request: a deadlock, an overflow.
    let initial = simulated(selection, graph, costs, &start)?;
    let step = |layers: &[usize]| simulated(selection, graph, costs, layers).ok();
    let times = if selection.machine.is_plain() { 1 } else { EVENTS };
    let problem = Problem {
        layers: start.iter().sum(),
        start: start.clone(),
        step: &|layers| step(layers).map(|simulated| simulated.split),
        fits: &|layers| fits(costs, graph, layers),
        budget: (MOST_OPS / times / graph.len().max(1) as u64).clamp(STEPS.0 / times, STEPS.1 / times),
    };
    let found = balance(&problem).ok_or_else(|| {
        usage(format!("{name}: expected a split of the layers that fits into memory, found none; take more `stages`"))
    })?;
    let Balance { layers, before, is_optimal, steps, .. } = found;
    let now = step(&layers).unwrap_or(initial);
    Ok(Balanced {
        layers,
        makespan: now.makespan,
        iteration_s: now.iteration_s,
        layers_before: start,
        makespan_before: initial.makespan,
        iteration_before_s: initial.iteration_s,
        fits_before: before.is_none_or(|(_, fits)| fits),
        is_optimal,
        simulated: steps,
    })
}
