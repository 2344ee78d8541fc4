//! From a graph and costs to the one prediction that every command gives: figures, bounds, times of ops, a timeline.

use super::bound::{Bounds, bounds, shared_cores};
use super::event::{Config, Each, EventError, Jitter, Makespans, Network, Prepared, Record, monte_carlo, simulate};
use super::explain::explain;
use super::idle::IdleSpan;
use super::machine::{late, machine, measured_network};
use super::spans::{StepSpan, free_again, spans, step_spans};
use super::successive::{MOST_STEPS, Successive};
use super::sweep::{Late, sweep_from, sweep_lasting};
use super::waits::OpTimes;
use crate::balance::Balanced;
use crate::cost::{CostTable, Speed, StepCosts, Summary};
use crate::graph::TaskGraph;
use crate::metrics::{Activity, Metrics, Yardstick};
use crate::statistics::{nearest_median, quantile};
use crate::timeline::{SCHEMA_VERSION, Source, Timeline};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;

/// Largest step whose idle time is explained beside its picture, and whose successors are simulated.
const MOST_EXPLAINED: usize = 500_000;

/// One entry of `predict --format json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The schedule's name.
    pub schedule: String,
    /// p.
    pub devices: u32,
    /// v.
    pub chunks: u32,
    /// m.
    pub microbatches: u32,
    /// `unit` or `ms`.
    pub time_unit: String,
    /// Per device.
    pub costs: Summary,
    /// Assumptions about costs that were not given: `I = W = B/2`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub costs_assumed: Vec<String>,
    /// The figures.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// How makespans are spread where durations vary by chance.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub jitter: Option<Spread>,
    /// Where steps lie as the machine's speed varies, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub interval: Option<Interval>,
    /// How long a step lasts with what follows its last backward, at the makespan's speed, where that is known; never below the makespan.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub iteration: Option<f64>,
    /// From one step's end to the next one's where steps follow each other without a barrier.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub period: Option<f64>,
    /// The split of layers that was searched.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub balance: Option<Balanced>,
}

/// Makespans of many steps with durations that vary by chance, in the prediction's time unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many steps.
    pub samples: u32,
    /// Seed of the chance.
    pub seed: u64,
    /// Mean.
    pub mean: f64,
    /// 5 % are not longer.
    pub p5: f64,
    /// Half are not longer.
    pub p50: f64,
    /// 95 % are not longer.
    pub p95: f64,
    /// 99 % are not longer.
    pub p99: f64,
}

/// Between which times a step lies, in the prediction's time unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// 80 of 100.
    pub within_80: [f64; 2],
    /// 95 of 100.
    pub within_95: [f64; 2],
}

/// Least measured steps from which intervals are made.
const LEAST_STEPS: usize = 5;

impl Interval {
    /// That of `values`, where there are enough of them.
    pub fn of(values: &[f64]) -> Option<Interval> {
        let between = |low: f64, high: f64| [quantile(values, low), quantile(values, high)];
        let interval = || Interval { within_80: between(0.1, 0.9), within_95: between(0.025, 0.975) };
        (values.len() >= LEAST_STEPS).then(interval)
    }
}

impl Spread {
    /// The spread of `makespans` under `seed`.
    pub fn new(makespans: &Makespans, seed: u64, costs: &CostTable) -> Spread {
        let unit = |ticks: u64| ticks as f64 / costs.ticks_per_unit;
        let Makespans { samples, mean, p5, p50, p95, p99 } = *makespans;
        Spread { samples, seed, mean: unit(mean), p5: unit(p5), p50: unit(p50), p95: unit(p95), p99: unit(p99) }
    }
}

/// What a prediction depends on besides a graph and what its ops cost.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// What follows the last backward.
    pub steps: StepCosts,
    /// Most activations that a device may hold; a schedule that keeps it has the lower bound of all that do.
    pub memory_cap: Option<f64>,
    /// What the machine does beyond costs, by the event engine; `None`: nothing, by the sweep.
    pub machine: Option<Config>,
}

/// A graph's predicted step.
///
/// At constant speed it is one run of an engine; where the machine's speed was measured, one under each measured step's, of
/// which the one nearest to the median makespan counts. Bounds are of the costs, so at typical speed, and so is
/// the makespan that they are held against ([`Metrics::gap`]).
#[derive(Clone, Debug)]
pub struct Predicted<'a> {
    /// What runs.
    pub graph: &'a TaskGraph,
    /// What its ops cost.
    pub costs: &'a CostTable,
    /// The figures.
    pub prediction: Prediction,
    /// Lower bounds of the makespan; the largest is the figures'.
    pub bounds: Bounds,
    /// The step ops.
    pub steps: Vec<StepSpan>,
    /// What they cost.
    pub step_costs: StepCosts,
    /// Most activations that a device may hold, where that was asked for.
    pub memory_cap: Option<f64>,
    step: Step,
    /// What the machine does beyond costs.
    machine: Option<Config>,
    /// Of the event engine: when every op and transfer took place.
    record: Option<Box<Record>>,
}

/// A step, without the times of its ops.
#[derive(Clone, Debug)]
pub struct Step {
    /// What devices do.
    pub devices: Vec<Activity>,
    /// The number of the measured speed that it runs under; none at constant speed.
    speed: Option<usize>,
    /// Its makespan at typical speed.
    pub typical_makespan: u64,
    /// Its makespan under each measured speed.
    pub at_speeds: Vec<u64>,
}

/// Predicts the step of `graph` under `costs`.
///
/// # Errors
/// Those of the event engine: as [`simulate`](super::event::simulate); without a machine none.
pub fn predict<'a>(graph: &'a TaskGraph, costs: &'a CostTable, setup: &Setup) -> Result<Predicted<'a>, EventError> {
    let machine = machine(graph, costs, setup.machine.as_ref());
    let (step, record) = match &machine {
        None => (typical_sweep(graph, costs), None),
        Some(config) => {
            let mut record = Box::new(Record::new(graph));
            let step = if costs.speeds.is_empty() {
                Step::steady(simulate(graph, costs, config, &mut *record)?.devices)
            } else {
                typical_run(&Prepared::new(graph, costs, config)?, costs, &mut record)?
            };
            (step, Some(record))
        }
    };
    // A bound within the cap says nothing about a schedule that exceeds it.
    let kept = setup.memory_cap.filter(|&cap| graph.schedule().keeps_cap(cap, costs.keep));
    let cores = machine.as_ref().and_then(|machine| shared_cores(graph, costs, &machine.processors));
    let bounds = Bounds { cores, ..bounds(graph, costs, kept) };
    let prediction = Prediction::new(graph, costs, &step, &bounds);
    let steps = step_spans(&step.devices, &setup.steps);
    let (step_costs, memory_cap) = (setup.steps.clone(), setup.memory_cap);
    let mut predicted =
        Predicted { graph, costs, prediction, bounds, steps, step_costs, memory_cap, step, machine, record };
    if predicted.step_costs.is_whole && graph.len() <= MOST_EXPLAINED {
        let successive = predicted.successive(MOST_STEPS)?;
        // At the speed of the makespan. Successive steps are at typical speed: of those the period's share of an iteration counts.
        let ends = predicted.steps.iter().map(|step| step.end);
        let iteration = ends.fold(predicted.step.makespan(), u64::max) as f64 / costs.ticks_per_unit;
        let typical = successive.ends.first().copied().unwrap_or(0).max(1) as f64;
        predicted.prediction.iteration = Some(iteration);
        predicted.prediction.period = successive.period().map(|period| period as f64 / typical * iteration);
    }
    Ok(predicted)
}

/// The step that a prediction is about where nothing is said of the machine.
///
/// # Errors
/// As [`predict`], where neighbours slow each other down.
pub fn typical_step(graph: &TaskGraph, costs: &CostTable) -> Result<Step, EventError> {
    typical_step_on(graph, costs, None)
}

/// The step that a prediction on the machine `asked_for` is about.
///
/// # Errors
/// As [`predict`].
pub fn typical_step_on(graph: &TaskGraph, costs: &CostTable, asked_for: Option<&Config>) -> Result<Step, EventError> {
    match machine(graph, costs, asked_for) {
        None => Ok(typical_sweep(graph, costs)),
        Some(config) => typical_run(&Prepared::new(graph, costs, &config)?, costs, &mut Record::new(graph)),
    }
}

/// The makespan on the machine `asked_for` at typical speed, in ticks.
///
/// # Errors
/// As [`predict`].
pub fn steady_makespan(graph: &TaskGraph, costs: &CostTable, asked_for: Option<&Config>) -> Result<u64, EventError> {
    Ok(match machine(graph, costs, asked_for) {
        None => makespan(&sweep_lasting(graph, costs, |_, _, _, duration| duration, |_, _, _| ())),
        Some(config) => Prepared::new(graph, costs, &config)?.run(&mut ())?.makespan(),
    })
}

fn typical_sweep(graph: &TaskGraph, costs: &CostTable) -> Step {
    let swept = |speed: Option<&Speed>| sweep_at_speed(graph, costs, speed, |_, _| (), |_, _, _| ());
    let Ok(step) = Step::typical::<Infallible>(costs, |speed| Ok(swept(speed)));
    step
}

/// The same by the event engine, which notes in `record` what takes place.
fn typical_run(prepared: &Prepared<'_>, costs: &CostTable, record: &mut Record) -> Result<Step, EventError> {
    let run = |speed: &Speed, observer: &mut Record| {
        prepared.run_on(|device, start, duration| speed.stretch(device, start, duration), observer)
    };
    let step = Step::typical(costs, |speed| {
        Ok(match speed {
            None => prepared.run(&mut ())?.devices,
            Some(speed) => run(speed, record)?.devices,
        })
    })?;
    step.speed(costs).map(|speed| run(speed, record)).transpose()?;
    Ok(step)
}

impl Step {
    /// At constant speed.
    fn steady(devices: Vec<Activity>) -> Step {
        Step { typical_makespan: makespan(&devices), devices, speed: None, at_speeds: Vec::new() }
    }

    /// Of the steps that `run` makes of each measured speed the most typical one; at constant speed where none was measured.
    fn typical<E>(
        costs: &CostTable,
        mut run: impl FnMut(Option<&Speed>) -> Result<Vec<Activity>, E>,
    ) -> Result<Step, E> {
        let steady = run(None)?;
        let mut all = costs.speeds.iter().map(|speed| run(Some(speed))).collect::<Result<Vec<_>, E>>()?;
        if all.is_empty() {
            return Ok(Step::steady(steady));
        }
        let busy = |devices: &[Activity]| devices.iter().map(|device| device.busy as f64).sum();
        let figures: Vec<(f64, f64)> = all.iter().map(|devices| (makespan(devices) as f64, busy(devices))).collect();
        let number = nearest_median(&figures);
        let at_speeds = all.iter().map(|devices| makespan(devices)).collect();
        let typical_makespan = makespan(&steady);
        Ok(Step { devices: all.swap_remove(number), speed: Some(number), typical_makespan, at_speeds })
    }

    fn speed<'a>(&self, costs: &'a CostTable) -> Option<&'a Speed> {
        self.speed.map(|number| &costs.speeds[number])
    }

    /// End of the last op, in ticks.
    pub fn makespan(&self) -> u64 {
        makespan(&self.devices)
    }
}

/// End of the last op.
fn makespan(devices: &[Activity]) -> u64 {
    devices.iter().map(|device| device.last_end).max().unwrap_or(0)
}

/// How long an op of typical length `duration` takes on `device` from `start`.
fn lasting(speed: Option<&Speed>, device: u32, start: u64, duration: u64) -> u64 {
    speed.map_or(duration, |speed| speed.stretch(device, start, duration))
}

/// A sweep under a measured speed, or at constant speed. `lasts` hears how long each op takes by itself, `note` when it runs.
fn sweep_at_speed(
    graph: &TaskGraph,
    costs: &CostTable,
    speed: Option<&Speed>,
    lasts: impl Fn(usize, u64),
    note: impl FnMut(usize, u64, u64),
) -> Vec<Activity> {
    let Some(_) = speed else { return sweep_lasting(graph, costs, |_, _, _, duration| duration, note) };
    let stretch = |index, device, start, duration| {
        let lasted = lasting(speed, device, start, duration);
        lasts(index, lasted);
        lasted
    };
    sweep_lasting(graph, costs, stretch, note)
}

impl Predicted<'_> {
    /// The figures.
    pub fn metrics(&self) -> &Metrics {
        &self.prediction.metrics
    }

    /// End of the last op, in ticks.
    pub fn makespan(&self) -> u64 {
        self.step.makespan()
    }

    /// Makespans under each measured speed, in ticks; empty at constant speed.
    pub fn at_speeds(&self) -> &[u64] {
        &self.step.at_speeds
    }

    /// What devices do, in ticks.
    pub fn devices(&self) -> &[Activity] {
        &self.step.devices
    }

    /// How makespans are spread over `samples` steps on the prediction's machine whose ops vary by chance, under its own speed.
    ///
    /// # Errors
    /// The machine or the jitter cannot be simulated, as for a prediction.
    pub fn spread(&self, jitter: Jitter, samples: u32, each: Each<'_>) -> Result<Spread, EventError> {
        let speed = self.step.speed(self.costs);
        let config = Config { jitter: Some(jitter), ..self.machine.clone().unwrap_or_default() };
        let lasts = |device, start, duration| lasting(speed, device, start, duration);
        let makespans = monte_carlo(&Prepared::new(self.graph, self.costs, &config)?, lasts, samples, each)?;
        Ok(Spread::new(&makespans, jitter.seed, self.costs))
    }

    /// When each op runs.
    pub fn op_times(&self) -> OpTimes {
        let mut times = OpTimes::of(self.graph);
        let mut note = |index: usize, start, end| (times.start[index], times.end[index]) = (start, end);
        match &self.record {
            Some(record) => record.ops.iter().enumerate().for_each(|(index, &(start, end))| note(index, start, end)),
            None => drop(sweep_at_speed(self.graph, self.costs, self.step.speed(self.costs), |_, _| (), note)),
        }
        if let (Some(record), true) = (&self.record, self.shares_links()) {
            times.late = late(self.graph, self.costs, record);
        }
        times
    }

    /// Whether the machine's links are those that were measured.
    fn shares_links(&self) -> bool {
        self.machine.as_ref().is_some_and(|machine| measured_network(self.costs).as_ref() == Some(&machine.network))
    }

    /// Why devices idle, by device and time, in the costs' unit: the intervals of `explain`. None where a machine's links and queues
    /// decide, of which it knows nothing, and none of more than 500,000 ops.
    pub fn idle(&self) -> Vec<IdleSpan> {
        if !self.is_explained() || self.graph.len() > MOST_EXPLAINED {
            return Vec::new();
        }
        explain(self.graph, self.costs, &self.op_times(), self.memory_cap).report(self.graph, self.costs).idle
    }

    /// Whether the machine has nothing beyond costs but neighbours.
    fn is_explained(&self) -> bool {
        let Some(machine) = &self.machine else { return true };
        let network = if self.shares_links() { Network::default() } else { machine.network.clone() };
        let rest = Config { processors: Vec::new(), network, ..machine.clone() };
        self.is_measured() && rest == Config::default()
    }

    /// Whether it was measured what neighbours cost each other.
    fn is_measured(&self) -> bool {
        self.costs.contention.is_some() || self.costs.puts.is_some()
    }

    /// How long each op takes by itself, in ticks, where that is not what it costs: under a measured speed, beside neighbours.
    pub fn durations(&self) -> Option<Vec<u64>> {
        if let (Some(record), true) = (&self.record, self.is_measured()) {
            return Some(record.ops.iter().map(|(start, end)| end - start).collect());
        }
        let speed = Some(self.step.speed(self.costs)?);
        let durations = vec![Cell::new(0); self.graph.len()];
        sweep_at_speed(self.graph, self.costs, speed, |index, lasted| durations[index].set(lasted), |_, _, _| ());
        Some(durations.into_iter().map(Cell::into_inner).collect())
    }

    /// The ends of steps that follow each other without a barrier, at typical speed: so many, fewer where they have become steady.
    ///
    /// # Errors
    /// As for a prediction.
    pub fn successive(&self, most: u32) -> Result<Successive, EventError> {
        let (graph, costs, devices) = (self.graph, self.costs, self.step.devices.len());
        let Some(config) = &self.machine else {
            return Successive::new(&self.step_costs, devices, most, |begin| {
                let lasts = |_, _, _, duration| duration;
                Ok(free_again(&sweep_from(graph, costs, begin, lasts, |_, _| Late::default(), |_, _, _| ())))
            });
        };
        let mut prepared = Prepared::new(graph, costs, config)?;
        Successive::new(&self.step_costs, devices, most, |begin| {
            prepared.set_begin(begin);
            Ok(free_again(&prepared.run(&mut ())?.devices))
        })
    }

    /// The timeline: computes, transfers, waits, step ops.
    pub fn timeline(&self) -> Timeline {
        let of_record = |record: &Record| record.transfers.iter().map(|t| (t.op, (t.start, t.end))).collect();
        let transfers = self.record.as_deref().map(of_record);
        let spans = spans(self.graph, self.costs, &self.op_times(), &self.steps, transfers.as_ref());
        let mut timeline = Timeline { spans, ..self.empty_timeline() };
        timeline.sort();
        timeline
    }

    /// The timeline's header, without spans.
    pub fn empty_timeline(&self) -> Timeline {
        let Prediction { schedule, devices, chunks, microbatches, time_unit, .. } = self.prediction.clone();
        Timeline {
            schema_version: SCHEMA_VERSION,
            source: Source::Predicted,
            schedule,
            devices,
            chunks,
            microbatches,
            time_unit,
            unit_ns: self.costs.unit_ns,
            keep: self.costs.keep.share(),
            clock_uncertainty_ns: 0,
            lower_bound_ns: Some(self.costs.to_ns(self.bounds.best().0)),
            lower_bound_if_split_ns: self.bounds.if_split.map(|ticks| self.costs.to_ns(ticks)),
            typical_makespan_ns: self.step.speed.map(|_| self.costs.to_ns(self.step.typical_makespan)),
            provenance: BTreeMap::new(),
            spans: Vec::new(),
        }
    }
}

impl Prediction {
    fn new(graph: &TaskGraph, costs: &CostTable, step: &Step, bounds: &Bounds) -> Prediction {
        let schedule = graph.schedule();
        let peaks: Vec<f64> = (0..schedule.devices()).map(|d| schedule.peak_activations(d, costs.keep)).collect();
        let held_against = Yardstick {
            lower_bound: Some(bounds.best().0),
            lower_bound_if_split: bounds.if_split,
            typical_makespan: step.speed.map(|_| step.typical_makespan),
        };
        Prediction {
            schedule: schedule.name.clone(),
            devices: schedule.devices(),
            chunks: schedule.placement.chunks(),
            microbatches: schedule.microbatches,
            time_unit: costs.time_unit.to_string(),
            costs: costs.summary,
            costs_assumed: costs.assumed.iter().map(ToString::to_string).collect(),
            metrics: Metrics::new(&step.devices, &peaks, held_against, costs.ticks_per_unit),
            jitter: None,
            interval: Interval::of(
                &step.at_speeds.iter().map(|&makespan| makespan as f64 / costs.ticks_per_unit).collect::<Vec<_>>(),
            ),
            iteration: None,
            period: None,
            balance: None,
        }
    }
}

/// The makespan in ns of `graph` when each op lasts `durations_ns[index]` and everything else costs what `costs` says:
/// a run's own durations fed back.
pub fn replay(graph: &TaskGraph, costs: &CostTable, durations_ns: &[u64]) -> u64 {
    let devices = sweep_lasting(graph, costs, |index, _, _, _| durations_ns[index], |_, _, _| ());
    makespan(&devices)
}
