//! An experiment on devices that train: calibrated on one schedule, all predicted and measured.

use super::calibration_graphs::Calibrator;
use super::graphs::OrderCosts;
use super::requirements::{require_memory, require_threads};
use super::results::RunSetting;
use super::sessions::open_sessions;
use super::{
    Backend, Calibrating, Calibration, Error, Event, Experiment, Iteration, Observer, Results, Role, ScheduleRun,
    Steps, Training, measure, silent,
};
use pipesim_answer::resolve::{self, Costs, Selection, unknown_costs};
use pipesim_schedule::activation::Keep;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_sim::Setup;
use pipesim_system::cores;
use std::cell::OnceCell;

impl Experiment {
    /// Trains on CPU threads, one per device, without reporting progress.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn run(&self) -> Result<Results, Error> {
        self.train(Backend::default(), &silent)
    }

    /// Trains on `backend`.
    pub fn train(&self, backend: Backend, observer: Observer<'_>) -> Result<Results, Error> {
        let mut training = self.training_config.training(self.selection.microbatches, &self.ranks)?;
        training.backend = backend;
        let graphs = self.trainable(&training, observer)?;
        self.costs.file().map_or(Ok(()), |costs| training.require_costs(costs, &graphs))?;
        let mut runs = self.open(&training, graphs, observer)?;
        let failure = measure(&mut runs, self.extent(), observer)?;
        let mut results = Results { failure, ..Results::new(self.title(), &training) };
        let runs: Vec<Steps> = runs.into_iter().map(|run| run.steps).collect();
        observer(Event::Remark(&format!(
            "drift of the machine over the run: {:+.1} % (second half of the steps against the first)",
            100.0 * runs[0].drift()
        )));
        let baseline = runs.iter().find(|run| run.role == Role::Baseline);
        results.baseline = baseline.map(Iteration::of_iterations);
        let calibrating = self.costs.file().is_none().then(|| Calibrating::new(&training, &runs));
        results.calibration = calibrating.as_ref().map(|calibrating| Calibration::of(calibrating.main()));
        let costs = match &calibrating {
            Some(calibrating) => calibrating.costs(&training, &[])?,
            None => self.costs.file().expect("costs are given or measured").clone(),
        };
        for run in runs.iter().filter(|run| run.role.is_judged()) {
            let (table, steps) = training.tables(&costs, &run.graph)?;
            let setup = Setup { steps, memory_cap: self.selection.memory_cap, machine: None };
            let main = calibrating.as_ref().map(Calibrating::main);
            results.judge(run, &table, &setup, RunSetting::of(&training), main)?;
        }
        results.costs = Some(costs);
        results.tabulate();
        Ok(results)
    }

    /// Returns the graphs to measure; the model splits into the stages of each.
    fn trainable(&self, training: &Training, observer: Observer<'_>) -> Result<Vec<TaskGraph>, Error> {
        let given = matches!(self.costs, Costs::Measured(_)).then_some(&self.costs);
        let calibrating = (&*self.calibrate_on, &self.selection);
        let costs = OrderCosts { training, given, calibrating, warmup: self.warmup, measured: OnceCell::new() };
        let graphs = self.graphs(
            training.backend.transport.delivery,
            &|name, placement| costs.table(name, placement, observer),
            observer,
        )?;
        for graph in &graphs {
            training.stages(graph).map_err(|error| error.of(&graph.schedule().name))?;
            let above = self.selection.above_cap(graph, Keep::new(training.keep()));
            above.iter().for_each(|warning| observer(Event::Warning(warning)));
        }
        Ok(graphs)
    }

    /// Opens sessions of the schedules that calibrate, of `graphs`, and of the baseline, as far as they are needed, in this order.
    fn open<'a>(
        &self,
        training: &'a Training,
        graphs: Vec<TaskGraph>,
        observer: Observer<'_>,
    ) -> Result<Vec<ScheduleRun<'a>>, Error> {
        let mut runs: Vec<_> = graphs.into_iter().map(|graph| (graph, Role::Judged)).collect();
        if self.costs.file().is_none() {
            let selection = self.selection.without_options();
            let calibrator = Calibrator { training, name: &self.calibrate_on, selection: &selection };
            let mut calibrating = calibrator.graphs(&[])?;
            let judged = runs.iter().map(|(graph, _)| graph);
            calibrating.extend(calibrator.beyond(judged)?);
            runs.splice(0..0, calibrating);
        }
        let (mesh, cores) = (training.mesh(), cores());
        let workers = mesh.world(self.selection.devices);
        let sharing = training.check_sharing(runs.iter().map(|(graph, _)| graph), true)?;
        if mesh != Mesh::default() {
            observer(Event::Remark(&self.ranks.workers_in_words(mesh, self.selection.devices)));
        }
        sharing.iter().for_each(|text| observer(Event::Remark(text)));
        if workers > cores {
            let what = if mesh.is_single() { "devices" } else { "workers" };
            observer(Event::Remark(&format!(
                "warning: {workers} {what} share {cores} cores: results are right, but times and their errors mean little"
            )));
        }
        if self.baseline {
            let one = Selection { devices: 1, ..self.selection.without_options() };
            let graph = one.graph::<resolve::Error>("1f1b", &unknown_costs)?.graph;
            runs.push((graph, Role::Baseline));
        }
        require_threads(runs.iter().map(|(graph, _)| graph), training.mesh(), &training.ranks)?;
        require_memory(runs.iter().map(|(graph, _)| graph), Some(training))?;
        open_sessions(runs.into_iter().map(|(graph, role)| (training, graph, role)).collect())
    }

    fn title(&self) -> String {
        let Selection { devices, microbatches, .. } = self.selection;
        format!("Predicted and measured: {devices} devices, {microbatches} micro-batches")
    }
}
