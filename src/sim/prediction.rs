//! The figures of a prediction, as `predict --format json` prints them.

use super::bound::Bounds;
use super::event::Makespans;
use super::rules::pairs;
use super::step::Step;
use crate::balance::Balanced;
use pipesim_cost::pair::PairFigures;
use pipesim_cost::{CostTable, Summary};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::{Activity, Metrics, Reference};
use pipesim_schedule::sharding::CollectiveKind;
use pipesim_schedule::statistics::quantile;
use serde::{Deserialize, Serialize};

/// One entry of `predict --format json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictionFigures {
    /// Name of the schedule.
    pub schedule: String,
    /// p.
    pub devices: u32,
    /// v.
    pub chunks: u32,
    /// m.
    pub microbatches: u32,
    /// `unit` or `ms`.
    pub time_unit: String,
    /// Costs per device.
    pub costs: Summary,
    /// Assumptions about costs that were not given: `I = W = B/2`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub costs_assumed: Vec<String>,
    /// Makespan, bubble, peaks and bounds.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Forwards next to backwards on two streams, one entry for pairs of the same stages or of stages with the same sub-ops.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub pairs: Vec<PairFigures>,
    /// Collectives between ops, by device; empty if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sharding: Vec<ShardingFigures>,
    /// Distribution of makespans with random durations.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub jitter: Option<Spread>,
    /// Prediction interval of makespans at the measured speeds of the machine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub interval: Option<Interval>,
    /// Time of a step including its step ops, at the makespan's speed; at least the makespan.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub iteration: Option<f64>,
    /// Time from the end of one step to the end of the next if steps follow each other without a barrier.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub period: Option<f64>,
    /// The balanced split of layers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub balance: Option<Balanced>,
}

/// Collectives between the ops of a device, in the prediction's time unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardingFigures {
    /// The device.
    pub device: u32,
    /// How many times it gathers the parameters of a stage.
    pub gathers: usize,
    /// The most stages whose full parameters it holds at the same time.
    pub peak_stages: u64,
    /// The most of its full parameters that it holds at the same time: 1 is all of them. Stages are weighed by the times of their gathers, or
    /// equally.
    pub peak_parameters: f64,
    /// Time in gathers.
    pub gather: f64,
    /// Time in reductions of gradients.
    pub reduce: f64,
    /// Time for which nothing but collectives keeps it from computing, or from ending its step.
    pub exposed: f64,
    /// When it has waited for its last reduction.
    pub end: f64,
}

/// Distribution of makespans with random durations, in the prediction's time unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of simulated steps.
    pub samples: u32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Mean.
    pub mean: f64,
    /// 5th percentile.
    pub p5: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Prediction interval of a step, in the prediction's time unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Contains 80 % of steps.
    pub within_80: [f64; 2],
    /// Contains 95 % of steps.
    pub within_95: [f64; 2],
}

/// Minimum number of measured steps for an interval.
const LEAST_STEPS: usize = 5;

impl Interval {
    /// Returns the interval of `values` if there are enough.
    pub fn of(values: &[f64]) -> Option<Interval> {
        let between = |low: f64, high: f64| [quantile(values, low), quantile(values, high)];
        let interval = || Interval { within_80: between(0.1, 0.9), within_95: between(0.025, 0.975) };
        (values.len() >= LEAST_STEPS).then(interval)
    }
}

impl Spread {
    /// Converts `makespans` under `seed`.
    pub fn new(makespans: &Makespans, seed: u64, costs: &CostTable) -> Spread {
        let unit = |ticks: u64| costs.in_units(ticks);
        let Makespans { samples, mean, p5, p50, p95, p99 } = *makespans;
        Spread { samples, seed, mean: unit(mean), p5: unit(p5), p50: unit(p50), p95: unit(p95), p99: unit(p99) }
    }
}

impl PredictionFigures {
    pub(super) fn new(graph: &TaskGraph, costs: &CostTable, step: &Step, bounds: &Bounds) -> PredictionFigures {
        let schedule = graph.schedule();
        let peaks: Vec<f64> = (0..schedule.devices()).map(|d| schedule.peak_activations(d, costs.keep)).collect();
        let reference = Reference {
            lower_bound: Some(bounds.best().0),
            lower_bound_if_split: bounds.if_split,
            typical_makespan: step.speed_number.map(|_| step.typical_makespan),
        };
        PredictionFigures {
            schedule: schedule.name.clone(),
            devices: schedule.devices(),
            chunks: schedule.placement.chunks(),
            microbatches: schedule.microbatches,
            time_unit: costs.units.time_unit.to_string(),
            costs: costs.summary,
            costs_assumed: costs.assumed.iter().map(ToString::to_string).collect(),
            metrics: Metrics::new(&step.devices, &peaks, reference, costs.units.ticks_per_unit),
            pairs: pair_figures(graph, costs),
            sharding: sharding_figures(graph, costs, &step.devices),
            jitter: None,
            interval: Interval::of(
                &step.at_speeds.iter().map(|&makespan| costs.in_units(makespan)).collect::<Vec<_>>(),
            ),
            iteration: None,
            period: None,
            balance: None,
        }
    }
}

fn sharding_figures(graph: &TaskGraph, costs: &CostTable, devices: &[Activity]) -> Vec<ShardingFigures> {
    let Some(sharding) = graph.schedule().sharding.as_deref() else { return Vec::new() };
    let times = costs.extras.collectives.clone().unwrap_or_default();
    let of = |times: &[u64], stage: u32| times.get(stage as usize).copied().unwrap_or(0);
    let is_weighed = times.gathers.iter().any(|&ticks| ticks > 0);
    let size = |stage: u32| if is_weighed { of(&times.gathers, stage) } else { 1 };
    let unit = |ticks: u64| costs.in_units(ticks);
    let figures = |(device, activity): (u32, &Activity)| {
        let sum = |kind: CollectiveKind, times: &[u64]| -> f64 {
            let placed = sharding.of(device).iter().filter(|placed| placed.collective.kind == kind);
            unit(placed.map(|placed| of(times, placed.collective.stage)).sum())
        };
        let held: u64 = graph.schedule().placement.held_by(device).iter().map(|chunk| size(chunk.stage)).sum();
        ShardingFigures {
            device,
            gathers: sharding.gathers(device),
            peak_stages: sharding.peak(device, |_| 1),
            peak_parameters: sharding.peak(device, size) as f64 / held.max(1) as f64,
            gather: sum(CollectiveKind::Unshard, &times.gathers),
            reduce: sum(CollectiveKind::ReduceGrad, &times.reductions),
            exposed: unit(activity.gated),
            end: unit(activity.free),
        }
    };
    (0..).zip(devices).map(figures).collect()
}

fn pair_figures(graph: &TaskGraph, costs: &CostTable) -> Vec<PairFigures> {
    let Some(pairs) = pairs(graph, &costs.extras) else { return Vec::new() };
    let ops = graph.schedule().ops();
    pairs.all(ops.windows(2).filter(|pair| pair[0].opens_pair()).map(|pair| (pair[0], pair[1])))
}
