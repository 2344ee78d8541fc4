//! Costs that decide the order of a schedule, measured if none are given.

use super::runnable::refuse_planned;
use super::{Error, Event, Extent, Observer, Training, profile, silent};
use crate::cost::{CostFile, CostTable};
use crate::placement::Placement;
use crate::resolve::{Costs, OrderedGraph, Selection, unknown_costs};
use std::cell::{Cell, OnceCell};

/// Steps measured for the costs that decide orders.
const STEPS: u32 = 4;

/// Unmeasured steps before them.
const WARMUP: u32 = 2;

/// The schedule to measure for [`graph_of`]. It has a fixed order for every number of devices and micro-batches.
const CALIBRATING: &str = "1f1b";

/// Costs for orders: given ones, or those of a few steps of a schedule, measured when they are first needed.
pub(super) struct OrderCosts<'a> {
    pub training: &'a Training,
    pub given: Option<&'a Costs>,
    /// The schedule to measure, and the numbers of devices and micro-batches.
    pub calibrating: (&'a str, &'a Selection),
    /// Unmeasured steps before the measured ones.
    pub warmup: u32,
    pub measured: OnceCell<Costs>,
}

impl OrderCosts<'_> {
    /// Returns the costs of the ops of the schedule `name` on `placement`. All ranks must call this together.
    pub fn table(&self, name: &str, placement: &Placement, observer: Observer<'_>) -> Result<CostTable, Error> {
        let microbatches = self.calibrating.1.microbatches;
        let costs = match (self.given, self.measured.get()) {
            (Some(costs), _) | (None, Some(costs)) => costs,
            (None, None) => {
                let layers = self.training.training_config.layers.clone();
                let costs = Costs::measured(self.measure(name, observer)?, layers);
                self.measured.get_or_init(|| costs)
            }
        };
        Ok(costs.table(name, placement, microbatches)?.0)
    }

    fn measure(&self, name: &str, observer: Observer<'_>) -> Result<CostFile, Error> {
        let (schedule, selection) = self.calibrating;
        observer(Event::Remark(&format!("measuring {schedule} first: costs decide the order of {name}")));
        let extent = Extent { warmup: self.warmup, steps: STEPS, until: None, back_to_back: 1 };
        match profile(self.training, &[], (schedule, &selection.without_options()), extent, &silent)? {
            (costs, None | Some(Error::Diverged { .. })) => Ok(costs),
            (_, Some(ended)) => Err(ended),
        }
    }
}

/// Returns the graph of the schedule `name` if costs do not decide its order.
///
/// # Errors
/// The schedule is unknown or invalid.
pub fn fixed_graph(selection: &Selection, name: &str) -> Result<Option<OrderedGraph>, Error> {
    let needs_costs = Cell::new(false);
    let graph = selection.graph::<Error>(name, &|name, placement| {
        needs_costs.set(true);
        Ok(unknown_costs(name, placement)?)
    });
    if needs_costs.get() { Ok(None) } else { graph.map(Some) }
}

/// Returns the graph of the schedule `name` for `training`. Costs that decide its order are `given`, or measured in a few steps of
/// 1F1B, which change neither model nor data. All ranks must call this together.
///
/// # Errors
/// The schedule is invalid, the costs are of another model, or the measurement fails.
pub fn graph_of(
    training: &Training,
    (selection, name): (&Selection, &str),
    given: Option<&CostFile>,
    observer: Observer<'_>,
) -> Result<OrderedGraph, Error> {
    refuse_planned(selection, name)?;
    let costs = given.map(|file| Costs::measured(file.clone(), training.training_config.layers.clone()));
    let (given_costs, calibrating) = (costs.as_ref(), (CALIBRATING, selection));
    let costs = OrderCosts { training, given: given_costs, calibrating, warmup: WARMUP, measured: OnceCell::new() };
    let ordered = selection.graph::<Error>(name, &|name, placement| costs.table(name, placement, observer))?;
    given.map_or(Ok(()), |costs| training.require_costs(costs, std::slice::from_ref(&ordered.graph)))?;
    Ok(ordered)
}
