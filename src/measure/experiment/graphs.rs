//! The graphs to measure or train with: orders that costs decide, and what devices and links can run.

use super::training::check_ops;
use super::{Error, Event, Experiment, Extent, Observer, Training, profile, silent};
use pipesim_answer::resolve::{Costs, OrderedGraph, Selection, unknown_costs};
use pipesim_cost::{CostFile, CostTable};
use pipesim_schedule::check::check;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::open::{Order, Program};
use pipesim_schedule::placement::Placement;
use std::cell::{Cell, OnceCell};

/// Steps measured for the costs that decide orders.
const STEPS: u32 = 4;

/// Unmeasured steps before them.
const WARMUP: u32 = 2;

/// The schedule to measure for [`graph_of`]. It has a fixed order for every number of devices and micro-batches.
const CALIBRATING: &str = "1f1b";

/// Costs for orders: given costs, or costs from a few steps of a schedule, measured when they are first needed.
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
        let extent = Extent { warmup: self.warmup, steps: STEPS, until: None, least: 1, back_to_back: 1 };
        match profile(self.training, &[], schedule, &selection.without_options(), extent, &silent)? {
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
    selection: &Selection,
    name: &str,
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

/// Returns the costs of the named schedule on a placement, for orders that depend on costs.
type Pricing<'a> = &'a dyn Fn(&str, &Placement) -> Result<CostTable, Error>;

/// Refuses a schedule whose copies are planned by costs, before anything is measured: only schedules that copy measure the time of a copy.
///
/// # Errors
/// The copies of `name` are planned.
fn refuse_planned(selection: &Selection, name: &str) -> Result<(), Error> {
    match selection.order(name).map(|found| found.order) {
        Ok(Order::Open(open)) if open.programs.iter().any(|program| matches!(program, Program::Offload { .. })) => {
            Err(Error::Schedule(format!(
                "{name}: devices cannot run copies that are planned by costs (offload_plan); predict works; take offload(word, ...), or leave \
                 planned out"
            )))
        }
        _ => Ok(()),
    }
}

impl Experiment {
    /// Checks, before anything is measured, that no schedule deadlocks under `delivery`, as far as orders are known without
    /// costs.
    ///
    /// # Errors
    /// A schedule deadlocks or does not resolve.
    pub fn refuse_early(&self, delivery: Delivery) -> Result<(), Error> {
        self.schedules.iter().try_for_each(|name| refuse_planned(&self.selection, name))?;
        let fixed = |name: &String| fixed_graph(&self.selection, name).map(|fixed| fixed.map(|fixed| fixed.graph));
        let graphs = self.schedules.iter().filter_map(|name| fixed(name).transpose()).collect::<Result<Vec<_>, _>>()?;
        if graphs.is_empty() { Ok(()) } else { self.runnable(graphs, delivery, &silent).map(|_| ()) }
    }

    /// Returns the graphs of all schedules; `costs` decides orders that depend on costs.
    pub(super) fn graphs(
        &self,
        delivery: Delivery,
        costs: Pricing<'_>,
        observer: Observer<'_>,
    ) -> Result<Vec<TaskGraph>, Error> {
        if self.schedules.is_empty() || self.steps == 0 {
            let found = (self.schedules.len(), self.steps);
            return Err(Error::Usage(format!(
                "expected a schedule and a step or more to measure, found {found:?}; add one"
            )));
        }
        let mut graphs = Vec::new();
        for name in &self.schedules {
            let ordered = self.selection.graph(name, costs)?;
            ordered.warnings.iter().for_each(|warning| observer(Event::Warning(warning)));
            graphs.push(ordered.graph);
        }
        self.runnable(graphs, delivery, observer)
    }

    /// Returns the graphs that do not deadlock under `delivery`.
    fn runnable(
        &self,
        graphs: Vec<TaskGraph>,
        delivery: Delivery,
        observer: Observer<'_>,
    ) -> Result<Vec<TaskGraph>, Error> {
        for graph in &graphs {
            check_ops(graph).map_err(|why| Error::Schedule(format!("{}: {why}", graph.schedule().name)))?;
        }
        let verdicts: Vec<_> = graphs.iter().map(|graph| check(graph, delivery).err()).collect();
        let names = graphs.iter().zip(&verdicts).filter(|(_, deadlock)| deadlock.is_none());
        let fit = names.map(|(graph, _)| graph.schedule().name.clone()).collect::<Vec<_>>().join(", ");
        let mut runnable = Vec::new();
        for (graph, deadlock) in graphs.into_iter().zip(verdicts) {
            let name = &graph.schedule().name;
            match deadlock {
                None => runnable.push(graph),
                Some(_) if self.leave_out && !fit.is_empty() => observer(Event::Remark(&format!(
                    "{name} is left out: under {delivery} delivery its devices would wait for one another in a circle"
                ))),
                Some(deadlock) => {
                    let fit = if fit.is_empty() { "none of the others" } else { &fit };
                    return Err(Error::Schedule(format!(
                        "{name}: {deadlock}take another `link`, `delivery` or schedule (of those asked for, {fit} can run so)"
                    )));
                }
            }
        }
        Ok(runnable)
    }
}
