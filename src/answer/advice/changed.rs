//! A schedule under changed costs: with a new order if a rule or a search makes it from costs, otherwise the same.

use crate::resolve::{Selection, results};
use pipesim_cost::CostTable;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::open::{OpenSchedule, Order};
use pipesim_sim::ordering::{Effort, order_ops_with};
use pipesim_sim::{self as sim, CostShare, Prediction, Sensitivity, typical_step_on};
use serde::Serialize;

/// Maximum number of ops of all orders for the sensitivities of one schedule.
const MOST_OPS: usize = 8_000_000;

/// Savings from reducing the time of each part by 1 %.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sensitivities {
    /// Largest saving first; negative if the new order is longer.
    #[serde(rename = "sensitivities")]
    pub list: Vec<Sensitivity>,
    /// Whether costs decide the order, but the sensitivities are of the unchanged order.
    #[serde(rename = "sensitivities_hold_order_fixed", skip_serializing_if = "std::ops::Not::not")]
    pub order_held_fixed: bool,
}

/// Origin of a graph's order.
enum OrderSource {
    /// Independent of costs.
    Fixed,
    /// Made from costs by a rule or a search.
    Open(OpenSchedule),
    /// Made from costs by a choice among schedules.
    Chosen,
}

/// A graph and how its order depends on costs.
pub(super) struct Changed<'a> {
    graph: &'a TaskGraph,
    selection: &'a Selection,
    source: OrderSource,
}

/// Returns the makespan of a step in ticks; `None` if the machine cannot run it.
pub(super) fn typical_ticks(graph: &TaskGraph, costs: &CostTable) -> Option<u64> {
    typical_step_on(graph, costs, None).ok().map(|step| step.makespan())
}

impl<'a> Changed<'a> {
    /// Takes the schedule requested as `name`, with its graph under the current costs.
    pub fn new(selection: &'a Selection, name: &str, graph: &'a TaskGraph) -> Changed<'a> {
        let source = match selection.order(name).map(|found| selection.capped(found.order)) {
            Ok(Order::Fixed(_)) => OrderSource::Fixed,
            Ok(Order::Open(open)) => OrderSource::Open(open),
            Err(_) => OrderSource::Chosen,
        };
        Changed { graph, selection, source }
    }

    /// Returns whether the order depends on costs but is not recomputed when they change.
    pub fn holds_order(&self) -> bool {
        matches!(self.source, OrderSource::Chosen)
    }

    /// Returns the makespan in ticks of the order that `costs` give.
    pub fn makespan(&self, costs: &CostTable) -> Option<u64> {
        let OrderSource::Open(open) = &self.source else { return typical_ticks(self.graph, costs) };
        let effort = Effort { times: self.selection.effort, ..Effort::default() };
        let graph = TaskGraph::with_overlap(order_ops_with(open, costs, effort).ok()?, self.graph.overlap()).ok()?;
        typical_ticks(&graph, costs)
    }

    /// Returns the saving from reducing each part's time by 1 %. A rule makes a new order under each change; searched orders and
    /// those with too many ops are kept.
    pub fn sensitivities(&self, predicted: &Prediction<'_>) -> Sensitivities {
        let (shares, costs) = (CostShare::all(self.graph), predicted.costs);
        let few = self.graph.len().saturating_mul(shares.len()) <= MOST_OPS;
        let anew = matches!(&self.source, OrderSource::Open(open) if !open.is_searched()) && few;
        let mut list = match anew {
            true => self.again(predicted.makespan(), costs, &shares),
            false => {
                let lasting = predicted.durations();
                sim::sensitivities(self.graph, costs, lasting.as_deref(), &shares)
            }
        };
        list.sort_by(|a, b| b.percent.total_cmp(&a.percent));
        Sensitivities { list, order_held_fixed: !anew && !matches!(self.source, OrderSource::Fixed) }
    }

    fn again(&self, whole: u64, costs: &CostTable, shares: &[CostShare]) -> Vec<Sensitivity> {
        let (placement, scale) = (&self.graph.schedule().placement, sim::finer_by(sim::PERCENT, self.graph, costs, 0));
        let fine = costs.finer(scale);
        let whole = whole.saturating_mul(scale.into());
        let found = results(self.selection.host, shares.len(), |number| {
            let then = self.makespan(&fine.with_times(placement, |op, time| shares[number].less(placement, op, time)));
            let saved = then.map_or(0.0, |then| whole as f64 - then as f64);
            if whole > 0 { 100.0 * saved / whole as f64 } else { 0.0 }
        });
        shares.iter().zip(found).map(|(share, percent)| Sensitivity { part: share.to_string(), percent }).collect()
    }
}
