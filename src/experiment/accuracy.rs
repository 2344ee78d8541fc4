//! The accuracy of predictions: calibrated on one schedule at one number of micro-batches, all others predicted for several, all
//! measured.

use super::calibrate::{calibrating_graphs, sized_graphs, sliced_graphs};
use super::copied::copied_graphs;
use super::recorded::{Recorded, SHAPE, TRAINING};
use super::results::Setting;
use super::sessions::open_sessions;
use super::summary::tables;
use super::{Calibrating, Calibration, Error, Extent, Observer, Results, Role, Steps, Training, measure};
use crate::cost::{CostFile, CostTable, StepCosts};
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::report::Report;
use crate::resolve::{self, Selection, unknown_costs};
use crate::sim::Setup;

/// Another training that is predicted from the same costs.
pub struct Transfer {
    /// How the training differs, as in `batch=2`.
    pub name: String,
    /// What is trained.
    pub training: Training,
    /// Numbers of devices and micro-batches.
    pub selection: Selection,
}

/// What to measure. Micro-batches keep their size.
pub struct Accuracy {
    /// Names or paths of the schedules to predict.
    pub schedules: Vec<String>,
    /// Numbers of micro-batches to predict for.
    pub microbatches: Vec<u32>,
    /// The schedule that calibrates.
    pub calibrate_on: String,
    /// The training with other micro-batch sizes to calibrate.
    pub sizes: Vec<Training>,
    /// Number of devices, and number of micro-batches of the schedule that calibrates.
    pub selection: Selection,
    /// Other trainings to predict the schedules in.
    pub transfers: Vec<Transfer>,
    /// How much to measure of each schedule.
    pub extent: Extent,
}

impl Accuracy {
    /// Measures with `training`. Returns the steps, and what ended the measurement early or spoils it.
    pub fn measure(&self, training: &Training, observer: Observer<'_>) -> Result<(Vec<Steps>, Option<Error>), Error> {
        let planned = |(graph, role)| (self.training_of(training, role), graph, Delivery::OneSided, role);
        let mut runs = open_sessions(self.graphs(training)?.into_iter().map(planned).collect())?;
        let failure = measure(&mut runs, self.extent, observer)?;
        Ok((runs.into_iter().map(|run| run.steps).collect(), failure))
    }

    fn training_of<'a>(&'a self, training: &'a Training, role: Role) -> &'a Training {
        match role {
            Role::Transferred(number) => &self.transfers[number].training,
            Role::CalibratesSize(number) => &self.sizes[number],
            _ => training,
        }
    }

    /// The graphs to measure, in this order: those that calibrate, all schedules at each number of micro-batches, and all schedules
    /// in each other training.
    fn graphs(&self, training: &Training) -> Result<Vec<(TaskGraph, Role)>, Error> {
        let mut graphs = calibrating_graphs(training, &self.calibrate_on, &self.selection)?;
        graphs.extend(sized_graphs(&self.sizes, &self.calibrate_on, &self.selection)?);
        let calibrating = graphs.len();
        let mut add = |selection: &Selection, role: Role| {
            for name in &self.schedules {
                let graph = selection.graph::<resolve::Error>(name, &unknown_costs)?.graph;
                self.training_of(training, role).stages(&graph).map_err(|error| error.of(name))?;
                graphs.push((graph, role));
            }
            Ok::<(), Error>(())
        };
        for &microbatches in &self.microbatches {
            add(&Selection { microbatches, ..self.selection.clone() }, Role::Judged)?;
        }
        for (number, transfer) in self.transfers.iter().enumerate() {
            add(&transfer.selection, Role::Transferred(number))?;
        }
        let judged = || graphs[calibrating..].iter().map(|(graph, _)| graph);
        let mut beyond = sliced_graphs(training, (&self.calibrate_on, &self.selection), judged())?;
        beyond.extend(copied_graphs(training, (&self.calibrate_on, &self.selection), judged())?);
        graphs.splice(calibrating..calibrating, beyond);
        Ok(graphs)
    }

    /// Returns the steps as a file.
    pub fn record(training: &Training, runs: &[Steps]) -> Result<Vec<u8>, Error> {
        let mut provenance = training.provenance();
        provenance.insert(TRAINING.to_string(), training.in_words());
        provenance.insert(SHAPE.to_string(), training.shape());
        Recorded::new(provenance, runs).write()
    }

    /// Reads steps from a file that [`Accuracy::record`] wrote.
    ///
    /// # Errors
    /// Other data, or steps of another experiment.
    pub fn recorded(&self, training: &Training, bytes: &[u8]) -> Result<Vec<Steps>, Error> {
        let recorded = Recorded::read(bytes)?;
        recorded.require_training(&training.in_words(), &training.shape())?;
        recorded.steps(self.graphs(training)?)
    }

    /// Predicts every measured schedule from the calibrating steps alone and compares the prediction with the measurement.
    pub fn judge(&self, training: &Training, link: &'static str, runs: &[Steps]) -> Result<Results, Error> {
        let calibrating = Calibrating::new(training, runs);
        let main = calibrating.main();
        let report = Report { provenance: training.provenance(), ..self.header(training) };
        let mut finding = Results { report, calibration: Some(Calibration::of(main)), ..Results::default() };
        let costs = calibrating.costs(training, &self.sizes)?;
        for run in runs.iter().filter(|run| run.role.is_judged()) {
            let (table, steps) = self.tables(&costs, training, run)?;
            let setup = Setup { steps, ..Setup::default() };
            let setting = Setting::of(self.training_of(training, run.role), link);
            finding.judge(run, &table, &setup, (setting, Some(main)))?;
            let Some(outcome) = finding.outcomes.last_mut() else { continue };
            outcome.error.makespan = outcome.makespan_error_over_steps();
            if let Role::Transferred(number) = run.role {
                outcome.transfer = Some(self.transfers[number].name.clone());
            }
        }
        for (entry, outcome) in finding.report.entries.iter_mut().zip(&finding.outcomes) {
            let other = outcome.transfer.as_ref().map_or_else(String::new, |name| format!(" {name}"));
            entry.name = format!("{} m={}{other}", outcome.schedule, outcome.microbatches);
        }
        let judged: Vec<_> = runs.iter().filter(|run| run.role.is_judged()).zip(&finding.outcomes).collect();
        finding.report.extra_tables = tables(&judged, (&self.calibrate_on, main), &costs);
        finding.costs = Some(costs);
        Ok(finding)
    }

    /// Costs of the ops and step ops of `run`, by the `costs` of `training`.
    fn tables(&self, costs: &CostFile, training: &Training, run: &Steps) -> Result<(CostTable, StepCosts), Error> {
        match run.role {
            Role::Transferred(number) => {
                let other = &self.transfers[number].training;
                other.tables(&other.costs_from(costs), &run.graph)
            }
            _ => training.tables(costs, &run.graph),
        }
    }

    fn header(&self, training: &Training) -> Report {
        let Selection { devices, microbatches, .. } = self.selection;
        let config = training.config();
        Report {
            title: format!("Accuracy: {devices} devices, calibrated on {} at m = {microbatches}", self.calibrate_on),
            subtitle: format!(
                "GPT-2 with {} blocks, {} channels; micro-batches of 1 x {} tokens; {} steps each, interleaved; {}",
                config.layers,
                config.channels,
                training.micro_batch.tokens,
                self.extent.steps,
                training.devices_in_words()
            ),
            ..Report::default()
        }
    }
}
