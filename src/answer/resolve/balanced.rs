//! `--balance`: the layers per stage with the shortest iteration of a schedule on hardware, or else the shortest makespan.

use super::machine::refused;
use super::{Costs, Error, Selection, usage};
use pipesim_cost::analytic::Analytic;
use pipesim_models::model_spec::Stage;
use pipesim_schedule::graph::TaskGraph;
use pipesim_sim as sim;
use pipesim_sim::balance::{Balance, Balanced, Problem, SplitTime, balance};

/// Maximum number of ops to simulate: about a second.
const MOST_OPS: u64 = 20_000_000;
/// Minimum and maximum number of splits to simulate.
const STEPS: (u64, u64) = (500, 20_000);
/// Approximate slowdown of the event engine compared with the sweep.
const EVENTS: u64 = 8;

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
    let (schedule, stages) = (graph.schedule(), Stage::of_layers(layers));
    let table = costs.of_stages(&schedule.placement, &stages, schedule.slices())?;
    let (table, machine) = selection.machine.equip(table, schedule.devices())?;
    // In the sweep a longer op never shortens a pipeline; with queued messages it may.
    let bound = |least: u64| if selection.machine.is_plain() { least } else { 0 };
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

/// Returns the layers per stage with the shortest iteration on hardware, or else the shortest makespan, the gain, and the graph under them if it changes. `again` makes the
/// graph under other costs. Without gain, layers and graph stay.
///
/// # Errors
/// Costs without a model's parts, a model that cannot be split into the stages, no split that fits into memory, or an error of
/// `again`.
pub(super) fn balanced(
    selection: &Selection,
    graph: &TaskGraph,
    costs: &Costs,
    again: &dyn Fn(&Costs) -> Result<TaskGraph, Error>,
) -> Result<(Option<TaskGraph>, Balanced), Error> {
    let found = search(selection, graph, costs)?;
    if found.layers == found.layers_before {
        return Ok((None, found));
    }
    // An order that depends on costs has to follow the new ones.
    let of_layers = costs.with_layers(found.layers.clone());
    let graph = again(&of_layers)?;
    let Simulated { makespan, iteration_s, .. } = simulated(selection, &graph, &of_layers, &found.layers)?;
    let now = Balanced { makespan, iteration_s, ..found };
    let (time, before) = now.times();
    if now.fits_before && time >= before {
        let (layers, makespan, iteration_s) = (now.layers_before.clone(), now.makespan_before, now.iteration_before_s);
        return Ok((None, Balanced { layers, makespan, iteration_s, is_optimal: false, ..now }));
    }
    Ok((Some(graph), now))
}

/// Returns the best split of the layers for the fixed order of `graph`.
fn search(selection: &Selection, graph: &TaskGraph, costs: &Costs) -> Result<Balanced, Error> {
    let (name, placement) = (&graph.schedule().name, &graph.schedule().placement);
    let start: Vec<usize> = costs.stages(name, placement)?.iter().map(|stage| stage.layers()).collect();
    // Errors under the initial split are errors of the request: a deadlock, an overflow.
    let initial = simulated(selection, graph, costs, &start)?;
    let step = |layers: &[usize]| simulated(selection, graph, costs, layers).ok();
    let fits = |layers: &[usize]| {
        let memory = |analytic: &Analytic| analytic.memory_of(&Stage::of_layers(layers), graph.schedule(), None);
        costs.analytic().is_none_or(|analytic| memory(analytic).is_ok_and(|memory| memory.fits))
    };
    let times = if selection.machine.is_plain() { 1 } else { EVENTS };
    let problem = Problem {
        layers: start.iter().sum(),
        start: start.clone(),
        step: &|layers| step(layers).map(|simulated| simulated.split),
        fits: &fits,
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
