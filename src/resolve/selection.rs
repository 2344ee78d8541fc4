//! What is asked of a schedule, and the way from its name to a graph with costs.

use super::{Costs, Error, Files, Found, Host, auto};
use crate::cost::CostTable;
use crate::deadlock::Deadlock;
use crate::dsl::Budget;
use crate::graph::TaskGraph;
use crate::open::Order;
use crate::placement::Placement;
use crate::schedule::Overlap;
use crate::settle::settle;
use crate::sim::event::EventError;
use crate::sim::{self, Predicted, Setup};
use std::collections::BTreeMap;
use std::fmt;

/// For how many devices and micro-batches a schedule is wanted, with which options.
#[derive(Clone, Debug)]
pub struct Selection {
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// Stages a device, where the schedule leaves it open.
    pub chunks: Option<u32>,
    /// Options of the schedule's own.
    pub options: BTreeMap<String, String>,
    /// Most activations that a device may hold, in units of its whole share of layers for one micro-batch: bounds what is
    /// searched.
    pub memory_cap: Option<f64>,
    /// What overlapped pairs mean.
    pub overlap: Overlap,
    /// What evaluating a schedule file may use up.
    pub budget: Budget,
    /// What the machine does for it.
    pub host: &'static dyn Host,
}

/// A graph, and what there is to say about it.
#[derive(Debug)]
pub struct Settled {
    /// The graph of one fixed order.
    pub graph: TaskGraph,
    /// What was understood otherwise than it was written.
    pub warnings: Vec<Warning>,
}

/// A graph with its costs.
#[derive(Debug)]
pub struct Resolved {
    /// The graph of one fixed order.
    pub graph: TaskGraph,
    /// What its ops cost.
    pub costs: CostTable,
    /// What else its step depends on.
    pub setup: Setup,
    /// What is not as it was asked for.
    pub warnings: Vec<Warning>,
}

impl Resolved {
    /// The prediction of its step.
    ///
    /// # Errors
    /// Those of a machine in the setup; by itself there is none.
    pub fn predict(&self) -> Result<Predicted<'_>, EventError> {
        sim::predict(&self.graph, &self.costs, &self.setup)
    }
}

/// Something that is not as one may expect, and no error.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A file's text was understood otherwise than it stands there, or left out.
    Imported(String),
    /// A schedule that costs do not decide holds more than the cap.
    AboveCap {
        /// Its name.
        schedule: String,
        /// Activations that it holds.
        peak: f64,
        /// The cap.
        cap: f64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Imported(text) => write!(f, "{text}"),
            Warning::AboveCap { schedule, peak, cap } => {
                write!(f, "{schedule} holds {peak} activations, above --memory-cap {cap}; its order is fixed")
            }
        }
    }
}

/// What decides the order of ops that float, in the caller's own errors: the costs on a placement, for the schedule of a name.
pub type Pricing<'a, E> = &'a dyn Fn(&str, &Placement) -> Result<CostTable, E>;

impl Selection {
    /// `devices` and `microbatches`, everything else as the schedule has it; files are read, nothing is watched.
    pub fn new(devices: u32, microbatches: u32) -> Selection {
        Selection {
            devices,
            microbatches,
            chunks: None,
            options: BTreeMap::new(),
            memory_cap: None,
            overlap: Overlap::default(),
            budget: Budget::default(),
            host: &Files,
        }
    }

    /// The same without chunks and options of a schedule's own: for another schedule than the one asked for.
    pub fn without_options(&self) -> Selection {
        Selection { chunks: None, options: BTreeMap::new(), ..self.clone() }
    }

    /// The schedule that `name` stands for (a name, a path, or `auto`), with its costs.
    ///
    /// # Errors
    /// Unknown, invalid or deadlocking schedules; costs that do not fit it.
    pub fn resolve(&self, name: &str, costs: &Costs) -> Result<Resolved, Error> {
        let settled = self.graph::<Error>(name, &costs.of_orders(self.microbatches))?;
        self.with_costs(settled, costs)
    }

    /// The schedule of a file's `text`, under a name of its own, with its costs.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    pub fn resolve_text(&self, name: &str, text: &str, costs: &Costs) -> Result<Resolved, Error> {
        let found = self.order_of_text(name, text)?;
        self.with_costs(self.settled::<Error>(name, found, &costs.of_orders(self.microbatches))?, costs)
    }

    fn with_costs(&self, settled: Settled, costs: &Costs) -> Result<Resolved, Error> {
        let Settled { graph, mut warnings } = settled;
        let schedule = graph.schedule();
        let (costs, steps) = costs.table(&schedule.name, &schedule.placement, self.microbatches)?;
        warnings.extend(self.above_cap(&graph, costs.keep));
        let setup = Setup { steps, memory_cap: self.memory_cap, machine: None };
        Ok(Resolved { graph, costs, setup, warnings })
    }

    /// The graph of the schedule that `name` stands for. `costs` are asked for where they decide its order.
    ///
    /// # Errors
    /// As [`Selection::resolve`], and those of `costs`.
    pub fn graph<E: From<Error>>(&self, name: &str, costs: Pricing<'_, E>) -> Result<Settled, E> {
        if is_auto(name) {
            self.no_options("auto tries all schedules")?;
            return Ok(Settled { graph: auto::best(self, costs)?, warnings: Vec::new() });
        }
        self.settled(name, self.order(name)?, costs)
    }

    fn settled<E: From<Error>>(&self, name: &str, found: Found, costs: Pricing<'_, E>) -> Result<Settled, E> {
        let Found { order, source, warnings } = found;
        let schedule = match self.capped(order) {
            Order::Fixed(schedule) => schedule,
            Order::Open(open) => {
                let table = costs(&open.name, &open.placement)?;
                settle(&open, &table).map_err(|error| Error::Settle { name: open.name.clone(), error })?
            }
        };
        let locate = |cycle: Deadlock| {
            let written = source.as_ref().zip(cycle.place());
            let place = written.map_or_else(|| name.to_string(), |(s, (device, number))| s.location(device, number));
            let Selection { devices, microbatches, .. } = *self;
            Error::Deadlock { place, devices, microbatches, cycle }
        };
        let graph = TaskGraph::with_overlap(schedule, self.overlap).map_err(locate)?;
        Ok(Settled { graph, warnings })
    }

    /// The same order; what is searched or scheduled in it keeps the cap.
    pub(super) fn capped(&self, order: Order) -> Order {
        match (order, self.memory_cap) {
            (Order::Open(open), Some(cap)) => Order::Open(open.capped(cap)),
            (order, _) => order,
        }
    }

    /// Refuses options of a schedule's own where there is none to have them.
    pub(super) fn no_options(&self, why: &str) -> Result<(), Error> {
        match self.options.keys().next() {
            Some(key) => Err(Error::Usage(format!("no option '{key}' here: {why}; leave --set out"))),
            None => Ok(()),
        }
    }

    /// Says so where a schedule whose order costs do not decide exceeds the cap.
    pub fn above_cap(&self, graph: &TaskGraph, keep: f64) -> Option<Warning> {
        let (cap, schedule, peak) = (self.memory_cap?, graph.schedule(), graph.schedule().peak(keep));
        (peak > cap + 1e-9).then(|| Warning::AboveCap { schedule: schedule.name.clone(), peak, cap })
    }
}

/// Whether a schedule's name asks for the best one.
fn is_auto(name: &str) -> bool {
    name.eq_ignore_ascii_case("auto")
}
