//! The runnable schedules of an experiment: those that do not deadlock under the link's delivery.

use super::{Error, Event, Experiment, Observer, silent};
use crate::check::check;
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::open::{Order, Program};
use crate::placement::Placement;
use crate::resolve::{Selection, unknown_costs};
use std::cell::Cell;

/// Returns the costs of the named schedule on a placement, for orders that depend on costs.
pub(super) type Pricing<'a> = &'a dyn Fn(&str, &Placement) -> Result<CostTable, Error>;

/// Refuses a schedule whose copies are planned by costs, before anything is measured: only schedules that copy measure the time of a copy.
///
/// # Errors
/// The copies of `name` are planned.
pub(super) fn refuse_planned(selection: &Selection, name: &str) -> Result<(), Error> {
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
    /// Checks, before anything is measured, that no schedule deadlocks under the link's delivery, as far as orders are known without
    /// costs.
    ///
    /// # Errors
    /// A schedule deadlocks or does not resolve.
    pub fn refuse_early(&self) -> Result<(), Error> {
        self.schedules.iter().try_for_each(|name| refuse_planned(&self.selection, name))?;
        let known = |name: &String| {
            let undecided = Cell::new(false); // whether its order depends on costs
            let settled = self.selection.graph::<Error>(name, &|name, placement| {
                undecided.set(true);
                Ok(unknown_costs(name, placement)?)
            });
            (!undecided.get()).then(|| settled.map(|settled| settled.graph))
        };
        let graphs = self.schedules.iter().filter_map(known).collect::<Result<Vec<_>, _>>()?;
        if graphs.is_empty() { Ok(()) } else { self.runnable(graphs, &silent).map(|_| ()) }
    }

    /// Returns the graphs of all schedules; `costs` decides orders that depend on costs.
    pub(super) fn graphs(&self, costs: Pricing<'_>, observer: Observer<'_>) -> Result<Vec<TaskGraph>, Error> {
        if self.schedules.is_empty() || self.steps == 0 {
            let found = (self.schedules.len(), self.steps);
            return Err(Error::Usage(format!(
                "expected a schedule and a step or more to measure, found {found:?}; add one"
            )));
        }
        let mut graphs = Vec::new();
        for name in &self.schedules {
            let settled = self.selection.graph(name, costs)?;
            settled.warnings.iter().for_each(|warning| observer(Event::Warning(warning)));
            graphs.push(settled.graph);
        }
        self.runnable(graphs, observer)
    }

    /// Returns the graphs that do not deadlock under the link's delivery.
    fn runnable(&self, graphs: Vec<TaskGraph>, observer: Observer<'_>) -> Result<Vec<TaskGraph>, Error> {
        for schedule in graphs.iter().map(TaskGraph::schedule) {
            if let Some(op) = schedule.ops().iter().find(|op| !op.kind().is_executed()) {
                return Err(Error::Schedule(format!(
                    "{}: devices cannot run {} ({}); predict works; run another schedule",
                    schedule.name,
                    op.feature(),
                    op.alone()
                )));
            }
        }
        let verdicts: Vec<_> = graphs.iter().map(|graph| check(graph, self.delivery).err()).collect();
        let names = graphs.iter().zip(&verdicts).filter(|(_, deadlock)| deadlock.is_none());
        let fit = names.map(|(graph, _)| graph.schedule().name.clone()).collect::<Vec<_>>().join(", ");
        let mut runnable = Vec::new();
        for (graph, deadlock) in graphs.into_iter().zip(verdicts) {
            let name = &graph.schedule().name;
            match deadlock {
                None => runnable.push(graph),
                Some(_) if self.leave_out && !fit.is_empty() => observer(Event::Remark(&format!(
                    "{name} is left out: under {} delivery its devices would wait for one another in a circle",
                    self.delivery
                ))),
                Some(deadlock) => {
                    let fit = if fit.is_empty() { "none of the others" } else { &fit };
                    return Err(Error::Schedule(format!(
                        "{name}: {deadlock}take another --link, --delivery or schedule (of those asked for, {fit} can run so)"
                    )));
                }
            }
        }
        Ok(runnable)
    }
}
