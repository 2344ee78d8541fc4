//! How far predictions are from measurements: calibrated on one schedule at one number of micro-batches, all others predicted for
//! several, all measured.

use super::calibrate::{calibrating_graphs, sized_graphs};
use super::finding::{Place, error_over_steps};
use super::recorded::{Recorded, TRAINING};
use super::tables::{Judged, tables};
use super::{
    Calibrating, Calibration, Error, Extent, Finding, Measured, Observer, Role, Seen, Steps, Training, measure,
    provenance,
};
use crate::cost::{Contention, CostFile, CostTable, StepCosts};
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::report::Report;
use crate::resolve::{self, Selection, unknown_costs};
use crate::sim::Setup;

/// Another training that is predicted from the same costs.
pub struct Transfer {
    /// How it differs, in words.
    pub name: String,
    /// What is trained.
    pub training: Training,
    /// For how many devices and micro-batches.
    pub selection: Selection,
}

/// What is to be measured. Micro-batches keep their size.
pub struct Accuracy {
    /// Names or paths of the schedules to predict.
    pub schedules: Vec<String>,
    /// At which numbers of micro-batches.
    pub microbatches: Vec<u32>,
    /// The schedule that calibrates.
    pub calibrate_on: String,
    /// The training with micro-batches of other sizes, that are calibrated, too.
    pub sizes: Vec<Training>,
    /// For how many devices all this is, and the number of micro-batches of what calibrates.
    pub selection: Selection,
    /// Other trainings in which the schedules are predicted, too.
    pub transfers: Vec<Transfer>,
    /// How much is measured of each.
    pub extent: Extent,
}

impl Accuracy {
    /// Measures with `training`; the steps, and what ended them early or spoils them.
    pub fn measure(&self, training: &Training, observer: Observer<'_>) -> Result<(Vec<Steps>, Option<Error>), Error> {
        let session = |(graph, role)| Measured::new(self.training_of(training, role), graph, Delivery::OneSided, role);
        let mut runs = self.graphs(training)?.into_iter().map(session).collect::<Result<Vec<_>, Error>>()?;
        let failure = measure(&mut runs, self.extent, observer)?;
        Ok((runs.into_iter().map(|run| run.steps).collect(), failure))
    }

    fn training_of<'a>(&'a self, training: &'a Training, role: Role) -> &'a Training {
        match role {
            Role::Transferred(number) => &self.transfers[number].training,
            Role::CalibratesSize(number) => &self.sizes[number],
            Role::Calibrates | Role::CalibratesLinks | Role::Judged => training,
        }
    }

    /// What is measured, in this order: what calibrates, all schedules at each number of micro-batches, and in each other training.
    fn graphs(&self, training: &Training) -> Result<Vec<(TaskGraph, Role)>, Error> {
        let mut graphs = calibrating_graphs(training, &self.calibrate_on, &self.selection)?;
        graphs.extend(sized_graphs(&self.sizes, &self.calibrate_on, &self.selection)?);
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
        Ok(graphs)
    }

    /// The steps as they are written down.
    pub fn record(training: &Training, runs: &[Steps]) -> Result<Vec<u8>, Error> {
        let mut provenance = provenance::of(training);
        provenance.insert(TRAINING.to_string(), training.in_words());
        Recorded::new(provenance, runs).write()
    }

    /// The steps that were measured so and written down.
    pub fn recorded(&self, training: &Training, bytes: &[u8]) -> Result<Vec<Steps>, Error> {
        let recorded = Recorded::read(bytes)?;
        recorded.require_training(&training.in_words())?;
        recorded.steps(self.graphs(training)?)
    }

    /// Predicts what was measured, each schedule from the calibrating steps beside its own alone, and holds it against that.
    pub fn judge(&self, training: &Training, link: &'static str, runs: &[Steps]) -> Result<Finding, Error> {
        let calibrating = Calibrating::new(training, runs);
        let report = Report { provenance: provenance::of(training), ..self.header(training) };
        let calibration = Some(Calibration::of(calibrating.main()));
        let mut finding = Finding { report, calibration, ..Finding::default() };
        let costs = calibrating.costs(training, &self.sizes)?;
        let uncontended = calibrating.without_neighbours().costs(training, &self.sizes)?;
        for run in runs.iter().filter(|run| !run.calibrates()) {
            let of_run = self.training_of(training, run.role);
            let (table, steps) = self.tables(&costs, training, run)?;
            let setup = Setup { steps, ..Setup::default() };
            finding.judge(run, &table, &setup, (Place::of(of_run, link), Some(calibrating.main())))?;
            let Some(outcome) = finding.outcomes.last_mut() else { continue };
            if let Role::Transferred(number) = run.role {
                outcome.transfer = Some(self.transfers[number].name.clone());
            }
            let is_known =
                |contention: &Contention| contention.per_mille.len() > 1 || contention.matters(outcome.devices);
            if table.contention.as_ref().is_some_and(is_known) || table.puts.is_some() {
                let (table, _) = self.tables(&uncontended, training, run)?;
                outcome.error.uncontended_makespan = Some(error_over_steps(run, &table, &setup, calibrating.main())?);
            }
        }
        for (entry, outcome) in finding.report.entries.iter_mut().zip(&finding.outcomes) {
            let other = outcome.transfer.as_ref().map_or_else(String::new, |name| format!(" {name}"));
            entry.name = format!("{} m={}{other}", outcome.schedule, outcome.microbatches);
        }
        let judged: Vec<Judged<'_>> = runs.iter().filter(|run| !run.calibrates()).zip(&finding.outcomes).collect();
        finding.report.extra_tables = {
            let calibrating = (&*self.calibrate_on, calibrating.main());
            tables(&judged, calibrating, &costs, &Seen::of(runs))
        };
        finding.costs = Some(costs);
        Ok(finding)
    }

    /// What ops and step ops of `run` cost by `costs`, those of `training`.
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
