//! An experiment on devices that train: calibrated on one schedule, all predicted and measured.

use super::calibrate::calibrating_graphs;
use super::finding::Place;
use super::outcome::iteration;
use super::room::{Resident, require_memory, require_threads, resident_bytes};
use super::{
    Backend, Calibrating, Calibration, Error, Event, Experiment, Extent, Finding, Measured, Observer, Role, Seen,
    Steps, Training, cores, measure, profile, silent,
};
use crate::activation::Keep;
use crate::cost::CostFile;
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::resolve::{self, Costs, Selection, unknown_costs};
use crate::sim::Setup;
use std::cell::OnceCell;

/// Steps that are measured for the costs that decide orders.
const FIRST_STEPS: u32 = 4;

impl Experiment {
    /// Trains on CPU threads, a thread a device, and keeps silent.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn run(&self) -> Result<Finding, Error> {
        self.train(Backend::Cpu, "local", &silent)
    }

    /// Trains on `backend`, whose messages go by `link`.
    pub fn train(&self, backend: Backend, link: &'static str, observer: Observer<'_>) -> Result<Finding, Error> {
        let mut training = self.recipe.training(self.selection.microbatches, &self.ranks)?;
        training.backend = backend;
        let graphs = self.trainable(&training, observer)?;
        self.given().map_or(Ok(()), |costs| training.require_costs(costs, &graphs))?;
        let mut runs = self.sessions(&training, graphs, observer)?;
        let trained = runs.iter().filter(|run| run.training.is_some());
        let predicted = resident_bytes(&training, trained.map(|run| &**run.graph()), self.warmup)?;
        // What was measured until a device was gone, or somebody wanted the end, is worth something.
        let wanted = runs.len();
        let failure = measure(&mut runs, self.extent(), observer)?;
        let is_whole = runs.len() == wanted;
        let mut runs: Vec<Steps> = runs.into_iter().map(|run| run.steps).collect();
        let drift = 100.0 * runs[0].drift();
        observer(Event::Remark(&format!(
            "drift of the machine over the run: {drift:+.1} % (second half of the steps against the first)"
        )));
        runs[0]
            .jumps()
            .iter()
            .for_each(|jump| observer(Event::Remark(&format!("the machine's speed jumped: steps took {jump}"))));
        if let Some(seen) = Seen::of(&runs).in_words() {
            observer(Event::Remark(&seen));
        }
        let mut finding = Finding::new(self.title(), &training, link);
        finding.failure = failure;
        if matches!(training.backend, Backend::Cpu) {
            finding.memory = Resident::against(predicted);
        }
        if self.baseline && is_whole {
            finding.baseline = runs.pop().map(|run| iteration(&run));
        }
        let calibrating = self.given().is_none().then(|| Calibrating::new(&training, &runs));
        finding.calibration = calibrating.as_ref().map(|calibrating| Calibration::of(calibrating.main()));
        let costs = match &calibrating {
            Some(calibrating) => calibrating.costs(&training, &[])?,
            None => self.given().expect("costs are given or measured").clone(),
        };
        for run in runs.iter().filter(|run| !run.calibrates()) {
            let (table, steps) = training.tables(&costs, &run.graph)?;
            let setup = Setup { steps, memory_cap: self.selection.memory_cap, machine: None };
            let main = calibrating.as_ref().map(Calibrating::main);
            finding.judge(run, &table, &setup, (Place::of(&training, link), main))?;
        }
        finding.costs = Some(costs);
        finding.tabulate();
        Ok(finding)
    }

    /// Measured costs, where they are given.
    fn given(&self) -> Option<&CostFile> {
        match &self.costs {
            Costs::Measured(measured) => Some(&measured.file),
            Costs::Given { .. } | Costs::Analytic(_) => None,
        }
    }

    /// The graphs to measure, all of which the model splits into.
    fn trainable(&self, training: &Training, observer: Observer<'_>) -> Result<Vec<TaskGraph>, Error> {
        let first = OnceCell::new(); // costs that decide orders, measured only where some order asks for them
        let graphs = self.graphs(
            &|name, placement| {
                let costs = match (&self.costs, first.get()) {
                    (costs @ Costs::Measured(_), _) | (_, Some(costs)) => costs,
                    _ => {
                        let costs =
                            Costs::measured(self.first_costs(training, name, observer)?, self.recipe.layers.clone());
                        first.get_or_init(|| costs)
                    }
                };
                Ok(costs.table(name, placement, self.selection.microbatches)?.0)
            },
            observer,
        )?;
        for graph in &graphs {
            training.stages(graph).map_err(|error| error.of(&graph.schedule().name))?;
            let above = self.selection.above_cap(graph, Keep::new(training.keep()));
            above.iter().for_each(|warning| observer(Event::Warning(warning)));
        }
        Ok(graphs)
    }

    /// Costs from a few steps of the schedule to calibrate on, for schedules whose order depends on costs.
    fn first_costs(&self, training: &Training, name: &str, observer: Observer<'_>) -> Result<CostFile, Error> {
        observer(Event::Remark(&format!("measuring {} first: costs decide the order of {name}", self.calibrate_on)));
        let calibrating = (&*self.calibrate_on, &self.selection.without_options());
        let extent = Extent { steps: FIRST_STEPS, until: None, ..self.extent() };
        match profile(training, &[], calibrating, extent, &silent)? {
            (costs, None | Some(Error::Diverged { .. })) => Ok(costs),
            (_, Some(ended)) => Err(ended),
        }
    }

    /// Sessions of what is calibrated on, of `graphs`, and of the baseline, as far as they are asked for, in this order.
    fn sessions<'a>(
        &self,
        training: &'a Training,
        graphs: Vec<TaskGraph>,
        observer: Observer<'_>,
    ) -> Result<Vec<Measured<'a>>, Error> {
        let mut wanted: Vec<_> = graphs.into_iter().map(|graph| (graph, self.delivery, Role::Judged)).collect();
        if self.given().is_none() {
            // it is measured for its costs, whatever the delivery
            let calibrating = calibrating_graphs(training, &self.calibrate_on, &self.selection.without_options())?;
            wanted.splice(0..0, calibrating.into_iter().map(|(graph, role)| (graph, Delivery::OneSided, role)));
        }
        let (devices, cores) = (self.selection.devices, cores());
        if devices > cores {
            observer(Event::Remark(&format!(
                "warning: {devices} devices share {cores} cores: results are right, but times and their errors mean little"
            )));
        }
        if self.baseline {
            let one = Selection { devices: 1, ..self.selection.without_options() };
            let graph = one.graph::<resolve::Error>("1f1b", &unknown_costs)?.graph;
            wanted.push((graph.renamed(|_| "one device".to_string()), self.delivery, Role::Judged));
        }
        require_threads(wanted.iter().map(|(graph, ..)| graph), &training.ranks)?;
        let trained = wanted.iter().filter(|(.., role)| *role != Role::CalibratesLinks);
        require_memory(trained.map(|(graph, ..)| graph), Some(training))?;
        wanted.into_iter().map(|(graph, delivery, role)| Measured::new(training, graph, delivery, role)).collect()
    }

    fn title(&self) -> String {
        let Selection { devices, microbatches, .. } = self.selection;
        format!("Predicted and measured: {devices} devices, {microbatches} micro-batches")
    }
}
