//! The measured experiment behind `run`, `profile` and the accuracy report: all schedules in one process, warmed, their
//! steps interleaved round-robin, predictions calibrated on one of them.

use super::Failure;
use super::model::ModelOptions;
use super::options::{CostOptions, OutputOptions};
use super::selection::{ScheduleOptions, unknown_costs};
use crate::check::check;
use crate::cost::{CostFile, CostTable, StepCosts};
use crate::delivery::Delivery;
use crate::exec::{Batch, Engine, Error, Session, Shared, Sizes, Timed, Worker};
use crate::experiment::calibrate::{Measure, calibrate};
use crate::experiment::outcome::{Iteration, Outcome, Place, extra_tables, iteration, judge};
use crate::experiment::provenance;
use crate::experiment::training::{Backend, Measured, Training, layers_of, settings};
use crate::graph::TaskGraph;
use crate::model::StageLayers;
use crate::ranks::Ranks;
use crate::report::Report;
use crate::sim;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::OnceCell;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

/// Steps that are measured for the costs that decide orders.
const FIRST_STEPS: u32 = 4;

/// What is to be measured.
#[derive(Clone)]
pub struct Experiment<'a> {
    /// Which schedules.
    pub schedules: &'a ScheduleOptions,
    /// What is trained.
    pub model: &'a ModelOptions,
    /// A cost file, where one is given.
    pub costs: &'a CostOptions,
    /// What the link promises.
    pub delivery: Delivery,
    /// The schedule to calibrate on.
    pub calibrate: &'a str,
    /// Measured steps of each schedule.
    pub steps: u32,
    /// Steps before them.
    pub warmup: u32,
    /// Measure one device too, interleaved with the others.
    pub baseline: bool,
    /// The processes that take part.
    pub ranks: Arc<Ranks>,
    /// For remarks.
    pub output: &'a OutputOptions,
}

/// What an experiment found.
pub struct Finding {
    /// What the predictions were calibrated on.
    pub calibrated_on: serde_json::Value,
    /// In the order asked for.
    pub outcomes: Vec<Outcome>,
    /// The same to look at.
    pub report: Report,
    /// The costs.
    pub costs: Option<CostFile>,
    /// One device with the same micro-batches, where that was asked for.
    pub baseline: Option<Iteration>,
    /// Why it ended early, where it did.
    pub failure: Option<Failure>,
}

impl Finding {
    /// Findings of several links as one, in which the link's name tells entries apart.
    pub fn merged(findings: Vec<(&'static str, Finding)>) -> Finding {
        let several = findings.len() > 1;
        let mut findings = findings.into_iter().map(|(link, mut finding)| {
            for entry in finding.report.entries.iter_mut().filter(|_| several) {
                entry.name = format!("{} ({link})", entry.name);
            }
            finding
        });
        let Some(mut all) = findings.next() else { unreachable!("there is a link") };
        for more in findings {
            all.outcomes.extend(more.outcomes);
            all.report.entries.extend(more.report.entries);
            all.failure = more.failure;
        }
        all.report.extra_tables = extra_tables(&all.outcomes, all.baseline);
        all
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Hang { .. } | Error::Dead { .. } | Error::Lost { .. } => Failure::Hang(error.to_string()),
            Error::Failed { .. } => Failure::Failed(error.into()),
        }
    }
}

impl Experiment<'_> {
    /// Trains on `backend`, whose messages go by `link`.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn train(&self, backend: Backend, link: &'static str) -> Result<Finding, Failure> {
        let mut training = self.model.training(self.schedules.micro, self.costs.layers.clone(), &self.ranks)?;
        training.backend = backend;
        let given = self.cost_file()?;
        let first = OnceCell::new(); // costs that decide orders, measured only where some order asks for them
        let graphs = self.schedules.graphs(&|name, placement| {
            let file = match (&given, first.get()) {
                (Some(file), _) | (None, Some(file)) => file,
                (None, None) => {
                    let file = self.first_costs(&training, name)?;
                    first.get_or_init(|| file)
                }
            };
            Ok(self.costs.measured(file.clone())?.table(name, placement, self.schedules.micro)?.0)
        })?;
        let graphs = self.survivors(graphs)?;
        for graph in &graphs {
            training.stages(graph).map_err(|e| Failure::Usage(format!("{}: {e:#}", graph.schedule().name)))?;
            self.schedules.remark_cap(graph, training.keep(), self.output);
        }
        let calibration = if given.is_some() { None } else { Some(self.calibration_graph(&training)?) };
        let calibrated = calibration.as_ref().map_or_else(String::new, |graph| graph.schedule().name.clone());
        self.remark_cores();
        let mut runs = Vec::new();
        let one = ScheduleOptions { stages: 1, ..self.schedules.without_options() };
        let baseline = if self.baseline { Some(one.graph("1f1b", &unknown_costs)?) } else { None };
        // what is calibrated on is measured for its costs, whatever the delivery
        let named = |graph: TaskGraph| (graph.renamed(|name| format!("{name} (calibrating)")), Delivery::OneSided);
        let calibration = calibration.into_iter().map(named);
        for (graph, delivery) in
            calibration.chain(graphs.into_iter().chain(baseline).map(|graph| (graph, self.delivery)))
        {
            let graph = Arc::new(graph);
            let session = training.session_delivering(&graph, delivery)?;
            runs.push(Measured { session, graph, records: Vec::new() });
        }
        let bar = self.bar(runs.len());
        let measured = measure(&training, &mut runs, self.warmup, self.steps, &bar, |line| self.output.remark(line));
        // What was measured until a device was gone is worth something, unless nothing was.
        let mut failure = measured.err();
        if runs.iter().any(|run| run.records.is_empty())
            && let Some(failure) = failure.take()
        {
            return Err(failure);
        }
        let drift = 100.0 * runs[0].drift();
        self.output.remark(&format!(
            "drift of the machine over the run: {drift:+.1} % (second half of the steps against the first)"
        ));
        let mut calibrated_on = serde_json::json!({"file": self.costs.profile});
        let costs = match given {
            Some(costs) => costs,
            None => {
                let run = runs.remove(0);
                calibrated_on = serde_json::json!({
                    "schedule": calibrated, "devices": run.graph.schedule().devices(),
                    "microbatches": run.graph.schedule().microbatches, "steps": run.records.len()});
                calibrate_on(&training, &run)?
            }
        };
        let baseline = if self.baseline { runs.pop().map(|run| iteration(&run)) } else { None };
        let mut finding = Finding {
            calibrated_on,
            outcomes: Vec::new(),
            report: self.header(&training),
            costs: None,
            baseline,
            failure,
        };
        let mut provenance = provenance::of(&training);
        provenance.insert("link".to_string(), link.to_string());
        finding.report.provenance = provenance.clone();
        let place = Place { device_kind: training.device_kind(), link, provenance };
        for run in &runs {
            let stages = training.stages(&run.graph)?;
            let (table, steps) = tables(&costs, &training, run, &stages).map_err(Failure::Usage)?;
            let tokens = training.sequences * training.sequence_tokens;
            let (outcome, entry) = judge(run, &table, &steps, &place, tokens);
            finding.outcomes.push(outcome);
            finding.report.entries.push(entry);
        }
        finding.costs = Some(costs);
        finding.report.extra_tables = extra_tables(&finding.outcomes, finding.baseline);
        Ok(finding)
    }

    /// Runs on timed devices: one unit of cost lasts `unit_ms`, a profile's times last themselves.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn timed(&self, unit_ms: f64, link: &'static str) -> Result<Finding, Failure> {
        if !unit_ms.is_finite() || unit_ms <= 0.0 || unit_ms > 1e6 {
            return Err(Failure::Usage(format!("expected --unit-ms above 0 and at most a million, found {unit_ms}")));
        }
        let m = self.schedules.micro;
        let mut runs = Vec::new();
        let mut tables = Vec::new();
        let given = self.costs.given()?;
        for graph in self.survivors(self.schedules.graphs(&given.of_orders(m))?)? {
            let graph = Arc::new(graph);
            let (table, _) = given.table(&graph.schedule().name, &graph.schedule().placement, m)?;
            let table = Arc::new(table.in_milliseconds(unit_ms));
            let devices = graph.schedule().devices();
            let (prediction, _, _) = sim::predict(&graph, &table, &StepCosts::default());
            let timeout = self.model.timeout(prediction.metrics.makespan / 1e3);
            let spin =
                if devices <= crate::experiment::training::cores() { Duration::from_millis(1) } else { Duration::ZERO };
            let mut settings = settings(devices, timeout, self.model.inject);
            settings.pin = false;
            settings.delivery = self.delivery;
            let sizes = Sizes { hidden: 1, ..Sizes::default() };
            let shared = Arc::new(Shared::new(graph.clone(), sizes, &settings, self.ranks.clone())?);
            let engine = |number| -> (u32, Box<dyn Engine>) {
                let device = Box::new(Timed::new(table.clone(), spin));
                (number, Box::new(Worker::new(number, device, shared.clone(), self.model.inject)))
            };
            let engines = self.ranks.devices(devices).map(engine).collect();
            let session = Session::of_engines(shared, engines, settings)?;
            tables.push(table);
            runs.push(Measured { graph, session, records: Vec::new() });
        }
        let bar = self.bar(runs.len());
        let batch = Arc::new(Batch::default());
        for step in 0..self.steps {
            for run in &mut runs {
                let record = run.session.step(&batch, None)?;
                if step >= self.warmup.min(self.steps - 1) {
                    run.records.push(record);
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let provenance = provenance::here();
        let report = Report {
            title: format!("Timed devices: {} devices, {m} micro-batches", self.schedules.stages),
            subtitle: "each op lasts as long as its cost says; waits and transfers are real".to_string(),
            provenance,
            ..Report::default()
        };
        let mut finding = Finding {
            calibrated_on: serde_json::json!({"costs": "given"}),
            outcomes: Vec::new(),
            report,
            costs: None,
            baseline: None,
            failure: None,
        };
        let place = Place { device_kind: "timed", link, provenance: provenance::here() };
        for (run, table) in runs.iter().zip(&tables) {
            let (outcome, entry) = judge(run, table, &StepCosts::default(), &place, 0);
            finding.outcomes.push(outcome);
            finding.report.entries.push(entry);
        }
        Ok(finding)
    }

    /// Refuses, before anything is measured, a schedule that the link's delivery would stop, as far as orders are known without
    /// costs.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn refuse_early(&self) -> Result<(), Failure> {
        let known = |name: &String| match self.schedules.graph(name, &|_, _| Err(Failure::Told(0))) {
            Err(Failure::Told(0)) => None, // costs are to decide its order
            graph => Some(graph),
        };
        let graphs = self.schedules.names().iter().filter_map(known).collect::<Result<Vec<_>, _>>()?;
        if graphs.is_empty() { Ok(()) } else { self.survivors(graphs).map(|_| ()) }
    }

    /// Those that the link's delivery does not stop. A schedule that the user named and that would be stopped is refused; of the
    /// defaults it is left out.
    fn survivors(&self, graphs: Vec<TaskGraph>) -> Result<Vec<TaskGraph>, Failure> {
        let verdicts: Vec<_> = graphs.iter().map(|graph| check(graph, self.delivery).err()).collect();
        let names = graphs.iter().zip(&verdicts).filter(|(_, deadlock)| deadlock.is_none());
        let fit = names.map(|(graph, _)| graph.schedule().name.clone()).collect::<Vec<_>>().join(", ");
        let mut survivors = Vec::new();
        for (graph, deadlock) in graphs.into_iter().zip(verdicts) {
            let name = graph.schedule().name.clone();
            match deadlock {
                None => survivors.push(graph),
                Some(_) if self.schedules.schedule.is_empty() && !fit.is_empty() => self.output.remark(&format!(
                    "{name} is left out: under {} delivery its devices would wait for one another in a circle",
                    self.delivery
                )),
                Some(deadlock) => {
                    let fit = if fit.is_empty() { "none of the others" } else { &fit };
                    return Err(Failure::Schedule(format!(
                        "{name}: {deadlock}take another --link, --delivery or schedule (of those asked for, {fit} can run so)"
                    )));
                }
            }
        }
        Ok(survivors)
    }

    fn cost_file(&self) -> Result<Option<CostFile>, Failure> {
        self.costs.file()
    }

    /// Costs from a few steps of the schedule to calibrate on, for schedules whose order depends on costs.
    fn first_costs(&self, training: &Training, name: &str) -> Result<CostFile, Failure> {
        self.output.remark(&format!("measuring {} first: costs decide the order of {name}", self.calibrate));
        let graph = Arc::new(self.calibration_graph(training)?);
        let mut runs = [Measured { session: training.session(&graph)?, graph, records: Vec::new() }];
        measure(training, &mut runs, self.warmup, FIRST_STEPS, &ProgressBar::hidden(), |_| ())?;
        calibrate_on(training, &runs[0])
    }

    /// The schedule to calibrate on; where it does not exist for these numbers, 1F1B.
    fn calibration_graph(&self, training: &Training) -> Result<TaskGraph, Failure> {
        let graph = self.schedules.without_options().graph(self.calibrate, &unknown_costs)?;
        training.stages(&graph).map_err(|e| Failure::Usage(format!("calibrating on {}: {e:#}", self.calibrate)))?;
        Ok(graph)
    }

    fn remark_cores(&self) {
        let (p, cores) = (self.schedules.stages, crate::experiment::training::cores());
        if p > cores {
            self.output.remark(&format!(
                "warning: {p} devices share {cores} cores: results are right, but times and their errors mean little"
            ));
        }
    }

    fn bar(&self, runs: usize) -> ProgressBar {
        let bar = ProgressBar::new(u64::from(self.steps) * runs as u64);
        if self.output.quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} steps, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    }

    fn header(&self, training: &Training) -> Report {
        let c = training.config();
        let provenance = provenance::of(training);
        Report {
            title: format!(
                "Predicted and measured: {} devices, {} micro-batches",
                self.schedules.stages, self.schedules.micro
            ),
            subtitle: format!(
                "GPT-2 with {} blocks, {} heads, {} channels, vocabulary {}; micro-batches of {} x {} tokens; {}; {}",
                c.layers,
                c.heads,
                c.channels,
                c.vocabulary,
                training.sequences,
                training.sequence_tokens,
                training.devices_in_words(),
                provenance.get("machine").map_or("", String::as_str)
            ),
            provenance,
            ..Report::default()
        }
    }
}

/// Warms all runs up, then measures `steps` training steps of each, one step of each in turn. `tell` hears of each.
///
/// # Errors
/// A device failed, died or hung.
pub fn measure(
    training: &Training,
    runs: &mut [Measured],
    warmup: u32,
    steps: u32,
    bar: &ProgressBar,
    tell: impl Fn(&str),
) -> Result<(), Failure> {
    let tokens = (training.sequences * training.sequence_tokens) as f64;
    for run in runs.iter_mut() {
        bar.set_message(format!("warming up {}", run.graph.schedule().name));
        let batch = training.batch(0, run.graph.schedule().microbatches)?;
        training.warm_up(&mut run.session, &batch, warmup as usize)?;
    }
    for step in 0..steps as usize {
        for run in runs.iter_mut() {
            bar.set_message(run.graph.schedule().name.clone());
            let batch = training.batch(step, run.graph.schedule().microbatches)?;
            let record = run.session.step(&batch, Some(training.update(step)))?;
            let (ms, schedule) = (record.iteration_ns() as f64 / 1e6, run.graph.schedule());
            let speed = f64::from(schedule.microbatches) * tokens / (ms / 1e3);
            let loss = record.loss.unwrap_or_default();
            let line = format!("step {step} {:<18} loss {loss:.6}  {ms:.1} ms  {speed:.0} tokens/s", schedule.name);
            bar.suspend(|| tell(&line));
            run.records.push(record);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// The cost file of one measured run.
///
/// # Errors
/// The data is too short.
pub fn calibrate_on(training: &Training, run: &Measured) -> Result<CostFile, Failure> {
    let stages = training.stages(&run.graph)?;
    let config = training.config();
    let placement = &run.graph.schedule().placement;
    let count = |stage: &StageLayers| -> u64 {
        let block = (12 * config.channels + 13) * config.channels;
        let ends = if stage.embedding || stage.head { config.padded_vocabulary() * config.channels } else { 0 };
        (stage.blocks.len() * block + ends) as u64
    };
    let of_device = |device| placement.stages_of(device).map(|stage| count(&stages[stage as usize])).sum();
    let device_parameters: Vec<u64> = (0..placement.devices()).map(of_device).collect();
    let measure = Measure {
        config,
        size: (training.sequences as u32, training.sequence_tokens as u32),
        keep: training.keep(),
        layers: &layers_of(&stages),
        device_parameters: &device_parameters,
    };
    let mut provenance = provenance::of(training);
    let schedule = run.graph.schedule();
    provenance.insert("schedule".to_string(), schedule.name.clone());
    provenance.insert("devices".to_string(), schedule.devices().to_string());
    provenance.insert("microbatches".to_string(), schedule.microbatches.to_string());
    provenance.insert("steps".to_string(), run.records.len().to_string());
    calibrate(&run.graph, &run.records, measure, provenance).map_err(|e| Failure::Failed(anyhow::anyhow!(e)))
}

/// The cost table and step costs of `run` from a cost file.
///
/// # Errors
/// The file lacks a part at this micro-batch size.
pub fn tables(
    costs: &CostFile,
    training: &Training,
    run: &Measured,
    stages: &[StageLayers],
) -> Result<(CostTable, StepCosts), String> {
    let layers = layers_of(stages);
    let placement = &run.graph.schedule().placement;
    let table = costs.table(placement, &layers, (training.sequences as u32, training.sequence_tokens as u32))?;
    Ok((table, costs.step_costs(placement, &layers, training.clip.is_some())))
}
