//! Resolution of a schedule's name to a graph with costs.

use super::auto::{CandidateStep, Levelled, Priced};
use super::balanced::{Reorder, balanced};
use super::costs::Pricing;
use super::machine::refused;
use super::order::OrderedGraph;
use super::{Costs, Error, Found, Selection, Variant, Warning, auto, usage};
use pipesim_cost::CostTable;
use pipesim_cost::analytic::Analytic;
use pipesim_schedule::deadlock::Deadlock;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::open::Order;
use pipesim_schedule::schedule::Overlap;
use pipesim_sim::balance::Balanced;
use pipesim_sim::event::EventError;
use pipesim_sim::ordering::{Effort, order_ops_with};
use pipesim_sim::{self as sim, Prediction, Setup, Step};

/// A graph with its costs.
#[derive(Debug)]
pub struct Resolved {
    pub graph: TaskGraph,
    pub costs: CostTable,
    /// Other inputs of the simulation.
    pub setup: Setup,
    /// Deviations from the request.
    pub warnings: Vec<Warning>,
    /// Optimized split of layers, if requested.
    pub balance: Option<Balanced>,
    /// Name of the schedule that `auto` chose, which can be requested by itself.
    pub chosen: Option<String>,
}

impl Resolved {
    /// Takes a graph and its costs as they are.
    pub(crate) fn new(graph: TaskGraph, costs: CostTable, setup: Setup) -> Resolved {
        Resolved { graph, costs, setup, warnings: Vec::new(), balance: None, chosen: None }
    }

    /// Predicts its step.
    ///
    /// # Errors
    /// The machine in the setup cannot run the schedule; without one there is no error.
    pub fn predict(&self) -> Result<Prediction<'_>, EventError> {
        sim::predict(&self.graph, &self.costs, &self.setup)
    }

    /// Returns what the devices do in a step, without a timeline.
    ///
    /// # Errors
    /// The machine cannot run the schedule.
    pub(super) fn step(&self) -> Result<Step, Error> {
        let step = sim::typical_step_on(&self.graph, &self.costs, self.setup.machine.as_ref());
        step.map_err(|error| refused(error, self.graph.schedule()))
    }

    /// Returns whether its balanced split is faster than another's.
    fn beats(&self, other: &Resolved) -> bool {
        let time = |resolved: &Resolved| resolved.balance.as_ref().map_or(f64::INFINITY, |found| found.times().0);
        time(self) < time(other)
    }

    fn tried(self) -> Result<CandidateStep, Error> {
        let step = self.step()?;
        Ok(CandidateStep { graph: self.graph, costs: self.costs, step })
    }
}

impl Selection {
    /// Resolves `name` (a name, a path, or `auto`, optionally with options: `interleaved-1f1b:v=4`) to a graph with costs.
    ///
    /// # Errors
    /// Unknown, invalid or deadlocking schedules, or costs that do not fit.
    pub fn resolve(&self, name: &str, costs: &Costs) -> Result<Resolved, Error> {
        let variant = Variant::parse(name)?;
        let own = self.of(&variant)?;
        if !variant.is_auto() {
            let simulations = Reorder::simulations(&own.order_of(&variant)?.order);
            let again = |costs: &Costs| own.settled_of(&variant, costs);
            return own.with_costs(again(costs)?, costs, &Reorder { again: &again, simulations });
        }
        let plain = auto::plain(&own);
        let unbalanced = Selection { balance: false, ..plain.clone() };
        let never = |_: &Costs| Err(usage("nothing is ordered again here"));
        let priced = |graph: TaskGraph, _: &CostTable| {
            let ordered = OrderedGraph { graph, chosen: None, warnings: Vec::new() };
            unbalanced.with_costs(ordered, costs, &Reorder { again: &never, simulations: 0 })?.tried()
        };
        let levelled = |name: &str, order: &Order| {
            let (analytic, placement) = (costs.analytic().filter(|_| own.balance)?, order.placement());
            let times = analytic.split_times(order.splits_backward());
            let layers = times.lightest(placement, &vec![usize::MAX; placement.devices() as usize])?;
            let costs = costs.with_layers(layers);
            Some((unbalanced.resolve(name, &costs).ok()?.tried().ok()?, costs.analytic()?.clone()))
        };
        let count = if own.balance { auto::MOST_BALANCED } else { 1 };
        let pricing = costs.of_orders(self.microbatches);
        let best = own.best::<Error>(&pricing, &priced, &levelled, costs.analytic(), count)?;
        let mut failure = None;
        let mut chosen: Option<Resolved> = None;
        for one in best {
            let name = one.chosen.clone().unwrap_or_default();
            let own_variant = Variant::parse(&name)?;
            let own = plain.of(&own_variant)?;
            let simulations = Reorder::simulations(&own.order_of(&own_variant)?.order);
            let again = |costs: &Costs| own.settled_of(&own_variant, costs);
            // of errors, none is of this schedule alone
            let one = OrderedGraph { graph: one.graph.renamed(|_| variant.to_string()), ..one };
            match own.with_costs(one, costs, &Reorder { again: &again, simulations }) {
                Ok(resolved) if chosen.as_ref().is_none_or(|best| resolved.beats(best)) => {
                    let graph = resolved.graph.renamed(|_| variant.choosing(&name));
                    chosen = Some(Resolved { graph, ..resolved });
                }
                Ok(_) => {}
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        chosen.ok_or_else(|| failure.unwrap_or_else(|| usage("auto found no schedule")))
    }

    /// Resolves the schedule file `text`, named `name`, to a graph with costs.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    pub fn resolve_text(&self, name: &str, text: &str, costs: &Costs) -> Result<Resolved, Error> {
        let simulations = Reorder::simulations(&self.order_of_text(name, text)?.order);
        let again = |costs: &Costs| {
            let found = self.order_of_text(name, text)?;
            self.settled::<Error>(name, found, &costs.of_orders(self.microbatches), Some(costs))
        };
        self.with_costs(again(costs)?, costs, &Reorder { again: &again, simulations })
    }

    /// Returns the graph of a variant under costs that may decide its order.
    fn settled_of(&self, variant: &Variant, costs: &Costs) -> Result<OrderedGraph, Error> {
        self.settled(&variant.base, self.order_of(variant)?, &costs.of_orders(self.microbatches), Some(costs))
    }

    fn with_costs(&self, settled: OrderedGraph, costs: &Costs, reorder: &Reorder<'_>) -> Result<Resolved, Error> {
        let (OrderedGraph { mut graph, mut warnings, chosen }, mut balance) = (settled, None);
        if let Some(analytic) = costs.analytic() {
            analytic.check(graph.schedule()).map_err(usage)?;
            if self.balance && graph.schedule().has_copies() {
                return Err(usage(format!(
                    "{}: `balance` knows no memory of copies to the host; leave it out",
                    graph.schedule().name
                )));
            }
        }
        if self.balance {
            let (other, found) = balanced(self, &graph, costs, reorder)?;
            graph = other.unwrap_or(graph);
            balance = Some(found);
        }
        let of_layers = balance.as_ref().map(|found| costs.with_layers(found.layers.clone()));
        let schedule = graph.schedule();
        let priced = of_layers.as_ref().unwrap_or(costs);
        let (name, slices) = (&schedule.name, schedule.slices());
        let (table, steps) = priced.sliced_table(name, &schedule.placement, slices, self.microbatches)?;
        let table = costs.analytic().map_or(table.clone(), |analytic| analytic.with_shares(table, schedule));
        if let Some(file) = costs.file() {
            file.require_copies(schedule)?;
        }
        if self.overlap == Overlap::Streams && schedule.has_pairs() && table.extras.pairs.is_none() {
            return Err(usage(costs.without_sub_ops()));
        }
        if self.overlap == Overlap::Streams && schedule.has_pairs() && schedule.slices().is_cut() {
            let what =
                "`overlap` streams knows the sub-ops of whole micro-batches, not of slices; take `overlap` atomic";
            return Err(usage(what));
        }
        if self.machine.devices_per_host_link.is_some() && !schedule.has_copies() {
            let what = "`host-link-devices` is about copies to the host, and there are none; give a schedule with some, such as pipeoffload";
            return Err(usage(what));
        }
        let platform = self.machine.beside(costs.analytic(), schedule);
        let (costs, steps) = steps.begun_early(&graph, table);
        warnings.extend(self.above_cap(&graph, costs.keep));
        let (costs, machine) = platform.equip(costs, schedule.devices())?;
        let setup = Setup { steps, memory_cap: self.memory_cap, machine };
        Ok(Resolved { graph, costs, setup, warnings, balance, chosen })
    }

    /// Resolves `name` to a graph. `costs` are called if they decide its order.
    ///
    /// # Errors
    /// As [`Selection::resolve`], or an error of `costs`.
    pub fn graph<E: From<Error>>(&self, name: &str, costs: Pricing<'_, E>) -> Result<OrderedGraph, E> {
        let variant = Variant::parse(name)?;
        let own = self.of(&variant)?;
        if variant.is_auto() {
            let priced = |graph: TaskGraph, table: &CostTable| {
                let (costs, machine) = own.machine.equip(table.clone(), graph.schedule().devices())?;
                let setup = Setup { machine, ..Setup::default() };
                Resolved::new(graph, costs, setup).tried()
            };
            let best = own.best(costs, &priced, &|_, _| None, None, 1)?.swap_remove(0);
            let name = variant.choosing(best.chosen.as_deref().unwrap_or_default());
            return Ok(OrderedGraph { graph: best.graph.renamed(|_| name), ..best });
        }
        own.settled(&variant.base, own.order_of(&variant)?, costs, None)
    }

    fn best<E: From<Error>>(
        &self,
        costs: Pricing<'_, E>,
        priced: Priced<'_>,
        levelled: Levelled<'_>,
        analytic: Option<&Analytic>,
        count: usize,
    ) -> Result<Vec<OrderedGraph>, E> {
        self.no_options("auto tries all schedules, within a cap or with v stages a device")?;
        auto::best(self, costs, priced, levelled, analytic, count)
    }

    /// Returns the graph of an order, which `costs` may decide; `owner` prices slices, if it is known.
    fn settled<E: From<Error>>(
        &self,
        name: &str,
        found: Found,
        costs: Pricing<'_, E>,
        owner: Option<&Costs>,
    ) -> Result<OrderedGraph, E> {
        let Found { order, source, warnings } = found;
        let schedule = match self.capped(order) {
            Order::Fixed(schedule) => schedule,
            Order::Open(open) => {
                let table = match owner.filter(|costs| costs.analytic().is_some()) {
                    Some(costs) => {
                        let table = costs.sliced_table(&open.name, &open.placement, &open.slices, self.microbatches);
                        table?.0
                    }
                    None => {
                        let table = costs(&open.name, &open.placement)?;
                        table.sliced(&open.placement, &open.slices, self.microbatches).map_err(Error::from)?
                    }
                };
                order_ops_with(
                    &open,
                    &table,
                    Effort { each: &|count, work| self.host.each(count, work), times: self.effort },
                )
                .map_err(|error| Error::Ordering { name: open.name.clone(), error })?
            }
        };
        let schedule = self.sharded(schedule).map_err(|error| usage(format!("{name}: {error}")))?;
        let locate = |cycle: Deadlock| {
            let written = source.as_ref().zip(cycle.place());
            let place = written.map_or_else(|| name.to_string(), |(s, (device, number))| s.location(device, number));
            let Selection { devices, microbatches, .. } = *self;
            Error::Deadlock { place, devices, microbatches, cycle }
        };
        let graph = TaskGraph::with_overlap(schedule, self.overlap).map_err(locate)?;
        Ok(OrderedGraph { graph, chosen: None, warnings })
    }
}
