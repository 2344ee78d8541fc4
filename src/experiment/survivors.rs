//! Which schedules an experiment measures: those asked for that the link does not stop.

use super::{Error, Event, Experiment, Observer, silent};
use crate::check::check;
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::placement::Placement;
use crate::resolve::unknown_costs;
use std::cell::Cell;

/// What decides the order of ops that float: the costs on a placement, for the schedule of a name.
pub(super) type Pricing<'a> = &'a dyn Fn(&str, &Placement) -> Result<CostTable, Error>;

impl Experiment {
    /// Refuses, before anything is measured, a schedule that the link's delivery would stop, as far as orders are known without
    /// costs.
    pub fn refuse_early(&self) -> Result<(), Error> {
        let known = |name: &String| {
            let undecided = Cell::new(false); // costs are to decide its order
            let settled = self.selection.graph::<Error>(name, &|name, placement| {
                undecided.set(true);
                Ok(unknown_costs(name, placement)?)
            });
            (!undecided.get()).then(|| settled.map(|settled| settled.graph))
        };
        let graphs = self.schedules.iter().filter_map(known).collect::<Result<Vec<_>, _>>()?;
        if graphs.is_empty() { Ok(()) } else { self.survivors(graphs, &silent).map(|_| ()) }
    }

    /// The graphs of all schedules, where costs decide orders those that `costs` gives.
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
        self.survivors(graphs, observer)
    }

    /// Those that the link's delivery does not stop.
    fn survivors(&self, graphs: Vec<TaskGraph>, observer: Observer<'_>) -> Result<Vec<TaskGraph>, Error> {
        let verdicts: Vec<_> = graphs.iter().map(|graph| check(graph, self.delivery).err()).collect();
        let names = graphs.iter().zip(&verdicts).filter(|(_, deadlock)| deadlock.is_none());
        let fit = names.map(|(graph, _)| graph.schedule().name.clone()).collect::<Vec<_>>().join(", ");
        let mut survivors = Vec::new();
        for (graph, deadlock) in graphs.into_iter().zip(verdicts) {
            let name = &graph.schedule().name;
            match deadlock {
                None => survivors.push(graph),
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
        Ok(survivors)
    }
}
