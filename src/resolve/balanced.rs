//! `--balance`: the layers of each stage under which the step of a schedule is shortest.

use super::{Costs, Error};
use crate::anatomy::{BLOCK, Stage};
use crate::balance::{Balance, Balanced, Problem, balance};
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::memory::Ledger;
use crate::sim::sweep;

/// Ops that a search may simulate: about a second.
const MOST_OPS: u64 = 20_000_000;
/// Splits that it may simulate at least, and at most.
const STEPS: (u64, u64) = (500, 20_000);

/// Stages with these numbers of layers, the first with the embedding, the last with the head. Only how many they are counts.
fn stages(layers: &[usize]) -> Vec<Stage> {
    let stage =
        |(number, &count): (usize, &usize)| Stage::transformer(number == 0, 0..count, number + 1 == layers.len());
    layers.iter().enumerate().map(stage).collect()
}

fn makespan(graph: &TaskGraph, table: &CostTable) -> u64 {
    sweep(graph, table).iter().map(|device| device.last_end).max().unwrap_or(0)
}

/// The layers of each stage under which the step of `graph`, whose order stays, is shortest, and what that gains.
///
/// # Errors
/// Costs without a model's parts; a model that does not split so; no split fits into memory.
pub(super) fn balanced(graph: &TaskGraph, costs: &Costs) -> Result<Balanced, Error> {
    let (name, placement) = (&graph.schedule().name, &graph.schedule().placement);
    let start: Vec<usize> = costs.stages(name, placement)?.iter().map(|stage| stage.count(BLOCK)).collect();
    let table = |layers: &[usize]| costs.of_stages(placement, &stages(layers));
    let unit = table(&start)?.ticks_per_unit;
    let ledger = costs.ledger();
    let fits = |layers: &[usize]| {
        let fits = |(ledger, bytes): &(Ledger, u64)| ledger.memory(*bytes, &stages(layers), graph.schedule()).fits;
        ledger.as_ref().is_none_or(fits)
    };
    let problem = Problem {
        layers: start.iter().sum(),
        start: start.clone(),
        step: &|layers| Some(makespan(graph, &table(layers).ok()?)),
        fits: &fits,
        is_monotone: true,
        budget: (MOST_OPS / graph.len().max(1) as u64).clamp(STEPS.0, STEPS.1),
    };
    let found = balance(&problem).ok_or_else(|| {
        Error::Usage(format!(
            "{name}: expected a split of the layers that fits into memory, found none; take more --stages"
        ))
    })?;
    let Balance { layers, step, before, is_optimal, steps } = found;
    let (before, fits_before) = before.unwrap_or((step, true));
    Ok(Balanced {
        layers,
        makespan: step as f64 / unit,
        layers_before: start,
        makespan_before: before as f64 / unit,
        fits_before,
        is_optimal,
        simulated: steps,
    })
}
