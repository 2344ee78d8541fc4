//! `--balance`: the layers per stage with the shortest makespan of a schedule.

use super::machine::refused;
use super::{Costs, Error, Selection, usage};
use pipesim_cost::CostTable;
use pipesim_cost::analytic::Analytic;
use pipesim_models::model_spec::Stage;
use pipesim_schedule::graph::TaskGraph;
use pipesim_sim as sim;
use pipesim_sim::balance::{Balance, Balanced, Problem, balance};

/// Maximum number of ops to simulate: about a second.
const MOST_OPS: u64 = 20_000_000;
/// Minimum and maximum number of splits to simulate.
const STEPS: (u64, u64) = (500, 20_000);
/// Approximate slowdown of the event engine compared with the sweep.
const EVENTS: u64 = 8;

/// Returns the makespan on the selection's machine, in ticks and in time units.
fn makespan(selection: &Selection, graph: &TaskGraph, table: CostTable) -> Result<(u64, f64), Error> {
    let (table, machine) = selection.machine.equip(table, graph.schedule().devices())?;
    let steady = sim::steady_makespan(graph, &table, machine.as_ref());
    let ticks = steady.map_err(|error| refused(error, graph.schedule()))?;
    Ok((ticks, table.in_units(ticks)))
}

/// Returns the layers per stage with the shortest makespan, the gain, and the graph under them if it changes. `again` makes the
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
    let schedule = graph.schedule();
    let table = of_layers.of_stages(&schedule.placement, &Stage::of_layers(&found.layers), schedule.slices())?;
    let (_, makespan) = makespan(selection, &graph, table)?;
    if found.fits_before && makespan >= found.makespan_before {
        let (layers, makespan) = (found.layers_before.clone(), found.makespan_before);
        return Ok((None, Balanced { layers, makespan, is_optimal: false, ..found }));
    }
    Ok((Some(graph), Balanced { makespan, ..found }))
}

/// Returns the best split of the layers for the fixed order of `graph`.
fn search(selection: &Selection, graph: &TaskGraph, costs: &Costs) -> Result<Balanced, Error> {
    let (name, placement) = (&graph.schedule().name, &graph.schedule().placement);
    let start: Vec<usize> = costs.stages(name, placement)?.iter().map(|stage| stage.layers()).collect();
    let slices = graph.schedule().slices();
    let table = |layers: &[usize]| costs.of_stages(placement, &Stage::of_layers(layers), slices);
    // Errors under the initial split are errors of the request: a deadlock, an overflow.
    let (_, makespan_before) = makespan(selection, graph, table(&start)?)?;
    let step = |layers: &[usize]| makespan(selection, graph, table(layers).ok()?).ok();
    let fits = |layers: &[usize]| {
        let memory = |analytic: &Analytic| analytic.memory_of(&Stage::of_layers(layers), graph.schedule(), None);
        costs.analytic().is_none_or(|analytic| memory(analytic).is_ok_and(|memory| memory.fits))
    };
    // In the sweep a longer op never shortens a step; with queued messages it may.
    let is_plain = selection.machine.is_plain();
    let times = if is_plain { 1 } else { EVENTS };
    let problem = Problem {
        layers: start.iter().sum(),
        start: start.clone(),
        step: &|layers| step(layers).map(|(ticks, _)| ticks),
        fits: &fits,
        is_monotone: is_plain,
        budget: (MOST_OPS / times / graph.len().max(1) as u64).clamp(STEPS.0 / times, STEPS.1 / times),
    };
    let found = balance(&problem).ok_or_else(|| {
        usage(format!("{name}: expected a split of the layers that fits into memory, found none; take more `stages`"))
    })?;
    let Balance { layers, before, is_optimal, steps, .. } = found;
    let makespan = step(&layers).map_or(makespan_before, |(_, makespan)| makespan);
    Ok(Balanced {
        layers,
        makespan,
        layers_before: start,
        makespan_before,
        fits_before: before.is_none_or(|(_, fits)| fits),
        is_optimal,
        simulated: steps,
    })
}
