//! Predictions from a graph and costs: figures, bounds, times of ops, and a timeline.

use super::bound::{Bounds, bounds, shared_cores};
use super::event::{Config, Each, EventError, Jitter, Network, Prepared, Record, monte_carlo, simulate};
use super::explain::explain;
use super::gates::CollectiveSpan;
use super::idle::IdleSpan;
use super::machine::{late, machine, measured_network};
use super::memory::memory;
use super::prediction::{PredictionFigures, Spread};
use super::spans::{StepSpan, collective_spans, early_spans, free_again, spans, step_spans};
use super::step::{Step, lasting, sweep_at_speed, typical_run, typical_sweep};
use super::streams::{StreamSpan, stream_spans};
use super::successive::{MOST_STEPS, Successive};
use super::sweep::{sweep_from, sweep_lasting};
use super::waits::{OpTimes, TimedGraph, hold_up};
use pipesim_cost::{CostTable, StepCosts};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::{Activity, Metrics, makespan};
use pipesim_schedule::timeline::{SCHEMA_VERSION, Source, Timeline};
use std::cell::Cell;
use std::collections::BTreeMap;

/// Maximum number of ops of a step whose idle time is explained and whose successors are simulated.
const MOST_EXPLAINED: usize = 500_000;

/// What a prediction depends on besides a graph and costs.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Costs of the step ops after the last backward.
    pub steps: StepCosts,
    /// Maximum number of activations per device; lower bounds consider it if the schedule keeps it.
    pub memory_cap: Option<f64>,
    /// Contention of the machine, simulated by the event engine; `None` means none, simulated by the sweep.
    pub machine: Option<Config>,
}

/// A graph's predicted step.
///
/// At constant speed it is one simulation; if the machine's speed was measured, the step is simulated at each measured speed, and the
/// one nearest to the median makespan counts. Bounds, and the makespan that they are compared with ([`Metrics::gap`]), are at the
/// machine's median speed.
#[derive(Clone, Debug)]
pub struct Prediction<'a> {
    /// What was simulated.
    pub graph: &'a TaskGraph,
    /// Costs of its ops.
    pub costs: &'a CostTable,
    /// Its figures.
    pub prediction: PredictionFigures,
    /// Lower bounds of the makespan; the figures have the largest.
    pub bounds: Bounds,
    /// Step ops, by device and time.
    pub steps: Vec<StepSpan>,
    /// What ends the step, with its costs.
    pub step_costs: StepCosts,
    /// Maximum number of activations per device, if given.
    pub memory_cap: Option<f64>,
    step: Step,
    machine: Option<Config>,
    /// Times of ops and transfers, if simulated by the event engine.
    record: Option<Box<Record>>,
}

/// Predicts the step of `graph` under `costs`.
///
/// # Errors
/// The machine does not fit the graph, the schedule deadlocks on it, or times overflow the clock; none without a machine.
pub fn predict<'a>(graph: &'a TaskGraph, costs: &'a CostTable, setup: &Setup) -> Result<Prediction<'a>, EventError> {
    let machine = machine(graph, costs, setup.machine.as_ref());
    let (step, record) = match &machine {
        None => (typical_sweep(graph, costs), None),
        Some(config) => {
            let mut record = Box::new(Record::new(graph));
            let step = if costs.effects.speeds.is_empty() {
                Step::steady(simulate(graph, costs, config, &mut *record)?)
            } else {
                typical_run(&Prepared::new(graph, costs, config)?, costs, &mut record)?
            };
            (step, Some(record))
        }
    };
    // A bound under the cap does not apply to a schedule that exceeds it.
    let kept = setup.memory_cap.filter(|&cap| graph.schedule().keeps_cap(cap, costs.keep));
    let cores = machine.as_ref().and_then(|machine| shared_cores(graph, costs, &machine.processors));
    let bounds = Bounds { cores, ..bounds(graph, costs, kept) };
    let prediction = PredictionFigures::new(graph, costs, &step, &bounds);
    let steps = step_spans(&step.devices, &setup.steps);
    let (step_costs, memory_cap) = (setup.steps.clone(), setup.memory_cap);
    let mut predicted =
        Prediction { graph, costs, prediction, bounds, steps, step_costs, memory_cap, step, machine, record };
    if graph.schedule().has_copies() {
        let curves = memory(graph, costs, &predicted.op_times(), None);
        let peaks = predicted.prediction.metrics.per_device.iter_mut().zip(curves);
        peaks.for_each(|(device, curve)| device.peak_activations = curve.peak);
    }
    if predicted.step_costs.is_whole && graph.len() <= MOST_EXPLAINED {
        let successive = predicted.successive(MOST_STEPS)?;
        // At the speed of the makespan. Successive steps are at the median speed: scale their period to the iteration.
        let ends = predicted.steps.iter().map(|step| step.end);
        let iteration = costs.in_units(ends.fold(predicted.step.makespan(), u64::max));
        let typical = successive.ends.first().copied().unwrap_or(0).max(1) as f64;
        predicted.prediction.iteration = Some(iteration);
        predicted.prediction.period = successive.period().map(|period| period as f64 / typical * iteration);
    }
    Ok(predicted)
}

impl Prediction<'_> {
    /// Returns the figures.
    pub fn metrics(&self) -> &Metrics {
        &self.prediction.metrics
    }

    /// Returns the end of the last op, in ticks.
    pub fn makespan(&self) -> u64 {
        self.step.makespan()
    }

    /// Returns the makespan at each measured speed, in ticks; nothing at constant speed.
    pub fn at_speeds(&self) -> &[u64] {
        &self.step.at_speeds
    }

    /// Returns what the devices did, in ticks.
    pub fn devices(&self) -> &[Activity] {
        &self.step.devices
    }

    /// Simulates `samples` steps with random durations, on the machine and at the speed of the prediction.
    ///
    /// # Errors
    /// As [`predict`].
    pub fn spread(&self, jitter: Jitter, samples: u32, each: Each<'_>) -> Result<Spread, EventError> {
        let speed = self.step.speed(self.costs);
        let config = Config { jitter: Some(jitter), ..self.machine.clone().unwrap_or_default() };
        let lasts = |device, start, duration| lasting(speed, device, start, duration);
        let makespans = monte_carlo(&Prepared::new(self.graph, self.costs, &config)?, lasts, samples, each)?;
        Ok(Spread::new(&makespans, jitter.seed, self.costs))
    }

    /// Returns when each op runs.
    pub fn op_times(&self) -> OpTimes {
        self.all_times().0
    }

    /// Returns when each op runs, and when parameters are gathered and gradients reduced between them.
    fn all_times(&self) -> (OpTimes, Vec<CollectiveSpan>) {
        let mut times = OpTimes::of(self.graph);
        let mut note = |index: usize, start, end| (times.start[index], times.end[index]) = (start, end);
        match &self.record {
            Some(record) => record.ops.iter().enumerate().for_each(|(index, &(start, end))| note(index, start, end)),
            None => drop(sweep_at_speed(self.graph, self.costs, self.step.speed(self.costs), |_, _| (), note)),
        }
        if let (Some(record), true) = (&self.record, self.shares_links()) {
            times.delays = late(self.graph, self.costs, record);
        }
        let collectives = hold_up(self.graph, self.costs, &mut times);
        (times, collectives)
    }

    /// Whether the machine's links are the measured ones.
    fn shares_links(&self) -> bool {
        self.machine.as_ref().is_some_and(|machine| measured_network(self.costs).as_ref() == Some(&machine.network))
    }

    /// Returns why devices idle, by device and time, in the costs' unit: the intervals of `explain`. Empty for machines with contention
    /// that was not measured, and for more than 500,000 ops.
    pub fn idle(&self) -> Vec<IdleSpan> {
        if !self.is_explained() || self.graph.len() > MOST_EXPLAINED {
            return Vec::new();
        }
        explain(self.graph, self.costs, &self.op_times(), self.memory_cap).report(self.graph, self.costs).idle
    }

    /// Whether all contention of the machine was measured.
    fn is_explained(&self) -> bool {
        let Some(machine) = &self.machine else { return true };
        let network = if self.shares_links() { Network::default() } else { machine.network.clone() };
        let rest = Config { processors: Vec::new(), network, ..machine.clone() };
        self.is_measured() && rest == Config::default()
    }

    fn is_measured(&self) -> bool {
        self.costs.effects.contention.is_some() || self.costs.effects.puts.is_some()
    }

    /// Returns the duration of each op in ticks if it differs from the costs: at a measured speed, or with contention.
    pub fn durations(&self) -> Option<Vec<u64>> {
        if let (Some(record), true) = (&self.record, self.is_measured()) {
            return Some(record.ops.iter().map(|(start, end)| end - start).collect());
        }
        let speed = Some(self.step.speed(self.costs)?);
        let durations = vec![Cell::new(0); self.graph.len()];
        sweep_at_speed(self.graph, self.costs, speed, |index, lasted| durations[index].set(lasted), |_, _, _| ());
        Some(durations.into_iter().map(Cell::into_inner).collect())
    }

    /// Simulates up to `most` steps that follow each other without a barrier, at the machine's median speed, until they are periodic.
    ///
    /// # Errors
    /// As [`predict`].
    pub fn successive(&self, most: u32) -> Result<Successive, EventError> {
        let (graph, costs, devices) = (self.graph, self.costs, self.step.devices.len());
        let Some(config) = &self.machine else {
            let pipeline = |begin: &[u64]| Ok(free_again(&sweep_from(graph, costs, begin)));
            return Successive::new(&self.step_costs, devices, most, pipeline);
        };
        let mut prepared = Prepared::new(graph, costs, config)?;
        Successive::new(&self.step_costs, devices, most, |begin| {
            prepared.set_begin(begin);
            Ok(free_again(&prepared.run(&mut ())?))
        })
    }

    /// Returns the timeline: ops, transfers, waits, step ops.
    pub fn timeline(&self) -> Timeline {
        let of_record = |record: &Record| record.transfers.iter().map(|t| (t.op, (t.start, t.end))).collect();
        let transfers = self.record.as_deref().map(of_record);
        let (times, collectives) = self.all_times();
        let timed = TimedGraph { graph: self.graph, costs: self.costs, times: &times };
        let early = early_spans(timed, &self.step_costs);
        let steps: Vec<StepSpan> = early.into_iter().chain(self.steps.iter().cloned()).collect();
        let spans = spans(timed, &steps, transfers.as_ref());
        let spans = spans.into_iter().chain(collective_spans(self.costs, &collectives)).collect();
        let mut timeline = Timeline { spans, ..self.empty_timeline() };
        timeline.sort();
        timeline
    }

    /// Returns the sub-ops of all ops, if pairs run on two streams and there are at most 200,000.
    pub fn stream_spans(&self) -> Vec<StreamSpan> {
        stream_spans(self.graph, self.costs, &self.op_times())
    }

    /// Returns the timeline without spans.
    pub fn empty_timeline(&self) -> Timeline {
        let graph = self.graph;
        let PredictionFigures { schedule, devices, chunks, microbatches, time_unit, .. } = self.prediction.clone();
        Timeline {
            schema_version: SCHEMA_VERSION,
            source: Source::Predicted,
            schedule,
            devices,
            chunks,
            microbatches,
            time_unit,
            unit_ns: self.costs.units.unit_ns,
            keep: self.costs.keep.share(),
            slices: if graph.slices() > 1 { graph.schedule().slices().lengths().to_vec() } else { Vec::new() },
            stub: self.costs.keep.stub(),
            kv: self.costs.keep.kv(),
            clock_uncertainty_ns: 0,
            lower_bound_ns: Some(self.costs.to_ns(self.bounds.best().0)),
            lower_bound_if_split_ns: self.bounds.if_split.map(|ticks| self.costs.to_ns(ticks)),
            typical_makespan_ns: self.step.speed_number.map(|_| self.costs.to_ns(self.step.typical_makespan)),
            incomplete_devices: Vec::new(),
            workers: None,
            steps: Vec::new(),
            step: None,
            provenance: BTreeMap::new(),
            spans: Vec::new(),
        }
    }
}

/// Returns the makespan of `graph` with other durations of its ops, such as measured ones; all in ticks, by op. Everything else costs
/// as in `costs`.
pub fn replay(graph: &TaskGraph, costs: &CostTable, durations: &[u64]) -> u64 {
    let devices = sweep_lasting(graph, costs, |index, _, _, _| durations[index], |_, _, _| ());
    makespan(&devices)
}
