//! From a graph and costs to the one prediction that every command gives: figures, bounds, times of ops, a timeline.

use super::bound::{Bounds, bounds, shared_cores};
use super::event::{Config, EventError, Makespans, Record, simulate};
use super::spans::{StepSpan, spans, step_spans};
use super::sweep::{sweep, sweep_lasting};
use super::waits::OpTimes;
use crate::cost::{CostTable, StepCosts, Summary};
use crate::graph::TaskGraph;
use crate::metrics::{Activity, Metrics};
use crate::statistics::most_typical;
use crate::timeline::{SCHEMA_VERSION, Source, Timeline};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;

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
    /// The figures.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// How makespans are spread where durations vary by chance.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub jitter: Option<Spread>,
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
/// At constant speed it is one sweep; where the machine's speed was measured, one sweep under each measured step's, of which
/// the one with the most typical makespan and busy time counts. Bounds are of the costs, so at typical speed: a machine that
/// ran faster may beat them.
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
    devices: Vec<Activity>,
    origin: Origin,
}

/// How a prediction's times came about.
#[derive(Clone, Debug)]
enum Origin {
    /// A sweep at constant speed.
    Sweep,
    /// A sweep under the speed of this measured step.
    Speed(usize),
    /// The event engine, which noted every op and transfer.
    Events(Box<Record>),
}

/// Predicts the step of `graph` under `costs`.
///
/// # Errors
/// Those of the event engine: as [`simulate`]; without a machine none.
pub fn predict<'a>(graph: &'a TaskGraph, costs: &'a CostTable, setup: &Setup) -> Result<Predicted<'a>, EventError> {
    let (devices, origin) = match &setup.machine {
        None => typical_sweep(graph, costs),
        Some(config) => {
            let mut record = Record::new(graph);
            let outcome = simulate(graph, costs, config, &mut record)?;
            (outcome.devices, Origin::Events(Box::new(record)))
        }
    };
    // A bound within the cap says nothing about a schedule that exceeds it.
    let kept = setup.memory_cap.filter(|&cap| graph.schedule().keeps_cap(cap, costs.keep));
    let cores = setup.machine.as_ref().and_then(|machine| shared_cores(graph, costs, &machine.processors));
    let bounds = Bounds { cores, ..bounds(graph, costs, kept) };
    let prediction = Prediction::new(graph, costs, &devices, &bounds);
    let steps = step_spans(graph, costs, &devices, &setup.steps);
    Ok(Predicted { graph, costs, prediction, bounds, steps, devices, origin })
}

fn typical_sweep(graph: &TaskGraph, costs: &CostTable) -> (Vec<Activity>, Origin) {
    let speeds = 0..costs.speeds.len();
    let mut all: Vec<Vec<Activity>> =
        speeds.map(|speed| sweep_at_speed(graph, costs, speed, |_, _| (), |_, _, _| ())).collect();
    if all.is_empty() {
        return (sweep(graph, costs), Origin::Sweep);
    }
    let busy = |devices: &[Activity]| devices.iter().map(|device| device.busy as f64).sum();
    let figures: Vec<(f64, f64)> = all.iter().map(|devices| (makespan(devices) as f64, busy(devices))).collect();
    let speed = most_typical(&figures);
    (all.swap_remove(speed), Origin::Speed(speed))
}

/// End of the last op.
fn makespan(devices: &[Activity]) -> u64 {
    devices.iter().map(|device| device.last_end).max().unwrap_or(0)
}

/// A sweep under the speed of measured step number `speed`. `lasts` hears how long each op takes by itself, `note` when it runs.
fn sweep_at_speed(
    graph: &TaskGraph,
    costs: &CostTable,
    speed: usize,
    lasts: impl Fn(usize, u64),
    note: impl FnMut(usize, u64, u64),
) -> Vec<Activity> {
    let speed = &costs.speeds[speed];
    let stretch = |index, device, start, duration| {
        let lasted = speed.stretch(device, start, duration);
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
        makespan(&self.devices)
    }

    /// When each op runs.
    pub fn op_times(&self) -> OpTimes {
        let mut times = OpTimes { start: vec![0; self.graph.len()], end: vec![0; self.graph.len()] };
        let mut note = |index: usize, start, end| (times.start[index], times.end[index]) = (start, end);
        match &self.origin {
            Origin::Sweep => drop(sweep_lasting(self.graph, self.costs, |_, _, _, duration| duration, note)),
            Origin::Speed(speed) => drop(sweep_at_speed(self.graph, self.costs, *speed, |_, _| (), note)),
            Origin::Events(record) => {
                record.ops.iter().enumerate().for_each(|(index, &(start, end))| note(index, start, end));
            }
        }
        times
    }

    /// How long each op takes by itself, in ticks, where that is not what it costs: under a measured speed.
    pub fn durations(&self) -> Option<Vec<u64>> {
        let Origin::Speed(speed) = self.origin else { return None };
        let durations = vec![Cell::new(0); self.graph.len()];
        sweep_at_speed(self.graph, self.costs, speed, |index, lasted| durations[index].set(lasted), |_, _, _| ());
        Some(durations.into_iter().map(Cell::into_inner).collect())
    }

    /// The timeline: computes, transfers, waits, step ops.
    pub fn timeline(&self) -> Timeline {
        let transfers = match &self.origin {
            Origin::Events(record) => Some(record.transfers.iter().map(|t| (t.op, (t.start, t.end))).collect()),
            Origin::Sweep | Origin::Speed(_) => None,
        };
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
            provenance: BTreeMap::new(),
            spans: Vec::new(),
        }
    }
}

impl Prediction {
    fn new(graph: &TaskGraph, costs: &CostTable, devices: &[Activity], bounds: &Bounds) -> Prediction {
        let schedule = graph.schedule();
        let peaks: Vec<f64> = (0..schedule.devices()).map(|d| schedule.peak_activations(d, costs.keep)).collect();
        let metrics = Metrics::new(devices, &peaks, Some(bounds.best().0), costs.ticks_per_unit);
        let if_split = bounds.if_split.map(|ticks| ticks as f64 / costs.ticks_per_unit);
        Prediction {
            schedule: schedule.name.clone(),
            devices: schedule.devices(),
            chunks: schedule.placement.chunks(),
            microbatches: schedule.microbatches,
            time_unit: costs.time_unit.to_string(),
            costs: costs.summary,
            metrics: Metrics { lower_bound_if_split: if_split, ..metrics },
            jitter: None,
        }
    }
}

/// The makespan in ns of `graph` when each op lasts `durations_ns[index]` and everything else costs what `costs` says:
/// a run's own durations fed back.
pub fn replay(graph: &TaskGraph, costs: &CostTable, durations_ns: &[u64]) -> u64 {
    let devices = sweep_lasting(graph, costs, |index, _, _, _| durations_ns[index], |_, _, _| ());
    devices.iter().map(|device| device.last_end).max().unwrap_or(0)
}
