//! `--balance`: the layers of each stage under which the makespan of a schedule is shortest.

use super::machine::refused;
use super::{Costs, Error, Selection};
use crate::anatomy::{BLOCK, Stage};
use crate::balance::{Balance, Balanced, Problem, balance};
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::memory::Ledger;
use crate::sim;

/// Ops that a search may simulate: about a second.
const MOST_OPS: u64 = 20_000_000;
/// Splits that it may simulate at least, and at most.
const STEPS: (u64, u64) = (500, 20_000);
/// How many times as long the event engine takes as the sweep, about.
const EVENTS: u64 = 8;

/// Stages with these numbers of layers, the first with the embedding, the last with the head. Only how many they are counts.
fn stages(layers: &[usize]) -> Vec<Stage> {
    let stage =
        |(number, &count): (usize, &usize)| Stage::transformer(number == 0, 0..count, number + 1 == layers.len());
    layers.iter().enumerate().map(stage).collect()
}

/// The makespan on the selection's machine, in ticks and in the costs' unit.
fn makespan(selection: &Selection, graph: &TaskGraph, table: CostTable) -> Result<(u64, f64), Error> {
    let (table, machine) = selection.machine.equip(table, graph.schedule().devices())?;
    let steady = sim::steady_makespan(graph, &table, machine.as_ref());
    let ticks = steady.map_err(|error| refused(error, graph.schedule()))?;
    Ok((ticks, ticks as f64 / table.ticks_per_unit))
}

/// The layers of each stage under which the makespan is shortest, what that gains, and the order under them, where it is another one;
/// `again` makes the order under other costs. Where that gains nothing, layers and order stay.
///
/// # Errors
/// Costs without a model's parts; a model that does not split so; no split fits into memory; those of `again`.
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
    // An order that follows from costs follows from these.
    let of_layers = costs.with_layers(found.layers.clone());
    let graph = again(&of_layers)?;
    let table = of_layers.of_stages(&graph.schedule().placement, &stages(&found.layers))?;
    let (_, makespan) = makespan(selection, &graph, table)?;
    if found.fits_before && makespan >= found.makespan_before {
        let (layers, makespan) = (found.layers_before.clone(), found.makespan_before);
        return Ok((None, Balanced { layers, makespan, is_optimal: false, ..found }));
    }
    Ok((Some(graph), Balanced { makespan, ..found }))
}

/// The best split of the layers for the order of `graph`, which stays.
fn search(selection: &Selection, graph: &TaskGraph, costs: &Costs) -> Result<Balanced, Error> {
    let (name, placement) = (&graph.schedule().name, &graph.schedule().placement);
    let start: Vec<usize> = costs.stages(name, placement)?.iter().map(|stage| stage.count(BLOCK)).collect();
    let table = |layers: &[usize]| costs.of_stages(placement, &stages(layers));
    // What fails under the first split fails: a deadlock, a clock that overflows.
    let (_, makespan_before) = makespan(selection, graph, table(&start)?)?;
    let step = |layers: &[usize]| makespan(selection, graph, table(layers).ok()?).ok();
    let ledger = costs.ledger();
    let fits = |layers: &[usize]| {
        let fits = |(ledger, bytes): &(Ledger, u64)| ledger.memory(*bytes, &stages(layers), graph.schedule()).fits;
        ledger.as_ref().is_none_or(fits)
    };
    // A longer op never shortens a step by the sweep; where messages queue it may.
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
        Error::Usage(format!(
            "{name}: expected a split of the layers that fits into memory, found none; take more --stages"
        ))
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
