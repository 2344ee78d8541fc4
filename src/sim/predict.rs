//! From a graph and costs to the prediction that the outside sees: figures and a timeline.

use super::bound::{bounds, lower_bound};
use super::event::{Config, EventError, Makespans, Record, simulate};
use super::sweep::{sweep, sweep_lasting};
use super::waits::OpTimes;
use crate::cost::{CostTable, StepCosts, Summary};
use crate::graph::TaskGraph;
use crate::metrics::{Activity, Metrics};
use crate::statistics::most_typical;
use crate::timeline::{Queue, SCHEMA_VERSION, Source, Span, Timeline};
use serde::{Deserialize, Serialize};
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

/// Predicts the timeline of `graph` under `costs`, then of the step ops.
pub fn predict(graph: &TaskGraph, costs: &CostTable, step: &StepCosts) -> (Prediction, Times, Vec<StepSpan>) {
    let times = times(graph, costs);
    let steps = step_spans(graph, costs, &times, step);
    (Prediction::new(graph, costs, &times), times, steps)
}

/// [`predict`] on the machine of `config`, by the event engine.
///
/// # Errors
/// As [`simulate`].
pub fn predict_on(
    config: &Config,
    graph: &TaskGraph,
    costs: &CostTable,
    step: &StepCosts,
) -> Result<(Prediction, Times, Vec<StepSpan>), EventError> {
    let mut record = Record::new(graph);
    let outcome = simulate(graph, costs, config, &mut record)?;
    let times = Times { devices: outcome.devices, source: Origin::Events(Box::new(record)) };
    let steps = step_spans(graph, costs, &times, step);
    Ok((Prediction::new(graph, costs, &times), times, steps))
}

/// When devices run, in ticks; when each op does, another sweep tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// What each device did.
    pub devices: Vec<Activity>,
    source: Origin,
}

/// How [`Times`] came about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// A sweep at constant speed.
    Sweep,
    /// A sweep under the speed of this measured step.
    Speed(usize),
    /// The event engine, which noted every op and transfer.
    Events(Box<Record>),
}

impl Times {
    fn new(graph: &TaskGraph, costs: &CostTable, speed: Option<usize>) -> Times {
        let devices = match speed {
            None => sweep(graph, costs),
            Some(speed) => sweep_at_speed(graph, costs, speed, |_, _, _| ()),
        };
        Times { devices, source: speed.map_or(Origin::Sweep, Origin::Speed) }
    }

    /// End of the last op.
    pub fn makespan(&self) -> u64 {
        self.devices.iter().map(|device| device.last_end).max().unwrap_or(0)
    }

    /// The ops' own times, for the graph and costs that these are of.
    fn of_ops(&self, graph: &TaskGraph, costs: &CostTable) -> OpTimes {
        let mut times = OpTimes { start: vec![0; graph.len()], end: vec![0; graph.len()] };
        let mut note = |index: usize, start, end| (times.start[index], times.end[index]) = (start, end);
        match &self.source {
            Origin::Sweep => {
                sweep_lasting(graph, costs, |_, _, _, duration| duration, note);
            }
            Origin::Speed(speed) => {
                sweep_at_speed(graph, costs, *speed, note);
            }
            Origin::Events(record) => {
                record.ops.iter().enumerate().for_each(|(index, &(start, end))| note(index, start, end));
            }
        }
        times
    }

    /// When the output of each op travelled, where the event engine knows.
    fn transfers(&self) -> Option<BTreeMap<usize, Travel>> {
        match &self.source {
            Origin::Events(record) => Some(record.transfers.iter().map(|t| (t.op, (t.start, t.end))).collect()),
            Origin::Sweep | Origin::Speed(_) => None,
        }
    }
}

/// A sweep under the speed of measured step number `speed`.
fn sweep_at_speed(
    graph: &TaskGraph,
    costs: &CostTable,
    speed: usize,
    note: impl FnMut(usize, u64, u64),
) -> Vec<Activity> {
    let speed = &costs.speeds[speed];
    sweep_lasting(graph, costs, |_, device, start, duration| speed.stretch(device, start, duration), note)
}

/// One sweep at constant speed; where the machine's speed was measured, one sweep under each measured step's, of which
/// the one with the most typical makespan and busy time counts.
fn times(graph: &TaskGraph, costs: &CostTable) -> Times {
    let mut all: Vec<Times> = (0..costs.speeds.len()).map(|speed| Times::new(graph, costs, Some(speed))).collect();
    let busy = |times: &Times| times.devices.iter().map(|device| device.busy as f64).sum();
    let figures: Vec<(f64, f64)> = all.iter().map(|times| (times.makespan() as f64, busy(times))).collect();
    if all.is_empty() { Times::new(graph, costs, None) } else { all.swap_remove(most_typical(&figures)) }
}

/// The makespan in ns of `graph` when each op lasts `durations_ns[index]` and everything else costs what `costs` says:
/// a run's own durations fed back.
pub fn replay(graph: &TaskGraph, costs: &CostTable, durations_ns: &[u64]) -> u64 {
    let devices = sweep_lasting(graph, costs, |index, _, _, _| durations_ns[index], |_, _, _| ());
    devices.iter().map(|device| device.last_end).max().unwrap_or(0)
}

/// One step op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSpan {
    /// The device.
    pub device: u32,
    /// `reduce`, `norm` or `optimizer`.
    pub name: &'static str,
    /// Start, in ticks.
    pub start: u64,
    /// End, in ticks.
    pub end: u64,
}

fn step_spans(graph: &TaskGraph, costs: &CostTable, times: &Times, step: &StepCosts) -> Vec<StepSpan> {
    let schedule = graph.schedule();
    let mut free: Vec<u64> = (0..schedule.devices())
        .map(|device| {
            let last = schedule.program(device).last();
            last.map_or(0, |&last| times.devices[device as usize].last_end + costs.of(last).after)
        })
        .collect();
    let mut spans = Vec::new();
    let mut run = |free: &mut Vec<u64>, device: u32, name, ready: u64, duration: u64| {
        let start = free[device as usize].max(ready);
        free[device as usize] = start + duration;
        spans.push(StepSpan { device, name, start, end: start + duration });
    };
    for &(a, b, cost) in &step.reductions {
        let sent = [a, b].map(|device| free[device as usize] + cost.after);
        for (device, own, other) in [(a, sent[0], sent[1]), (b, sent[1], sent[0])] {
            run(&mut free, device, "reduce", own.max(other + cost.arrival), cost.duration);
        }
    }
    if !step.norm.is_empty() {
        (0..schedule.devices()).for_each(|d| run(&mut free, d, "norm", 0, step.norm[d as usize]));
        let all = free.iter().copied().max().unwrap_or(0);
        free.fill(all);
    }
    if !step.optimizer.is_empty() {
        (0..schedule.devices()).for_each(|d| run(&mut free, d, "optimizer", 0, step.optimizer[d as usize]));
    }
    spans
}

impl Prediction {
    fn new(graph: &TaskGraph, costs: &CostTable, times: &Times) -> Prediction {
        let schedule = graph.schedule();
        let peaks: Vec<f64> = (0..schedule.devices()).map(|d| schedule.peak_activations(d, costs.keep)).collect();
        // Durations that vary can fall below those that the bound is made of.
        let bound = lower_bound(graph, costs).min(times.makespan());
        Prediction {
            schedule: schedule.name.clone(),
            devices: schedule.devices(),
            chunks: schedule.placement.chunks(),
            microbatches: schedule.microbatches,
            time_unit: costs.time_unit.to_string(),
            costs: costs.summary,
            metrics: Metrics::new(&times.devices, &peaks, Some(bound), costs.ticks_per_unit),
            jitter: None,
        }
    }

    /// The same, its lower bound that of schedules in which no device holds more than `cap` activations, if this is one.
    pub fn within(self, cap: f64, graph: &TaskGraph, costs: &CostTable) -> Prediction {
        if graph.schedule().peak(costs.keep) <= cap + 1e-9 {
            return self.at_least(bounds(graph, costs, Some(cap)).best().0, costs);
        }
        self
    }

    /// The same, its lower bound raised to `bound` ticks.
    pub fn at_least(mut self, bound: u64, costs: &CostTable) -> Prediction {
        let bound = (bound as f64 / costs.ticks_per_unit).min(self.metrics.makespan);
        if self.metrics.lower_bound.is_some_and(|known| bound > known) {
            self.metrics.lower_bound = Some(bound);
            self.metrics.gap_to_bound = Some(self.metrics.makespan / bound - 1.0);
        }
        self
    }

    /// The timeline of a prediction: computes, transfers and waits.
    pub fn timeline(&self, graph: &TaskGraph, costs: &CostTable, times: &Times, steps: &[StepSpan]) -> Timeline {
        let (times, transfers) = (times.of_ops(graph, costs), times.transfers());
        let mut spans = Vec::with_capacity(2 * graph.len());
        let consumers = graph.consumers();
        for device in 0..self.devices {
            let mut free = 0;
            for (number, index) in graph.schedule().range(device).enumerate() {
                let travel = match &transfers {
                    Some(transfers) => transfers.get(&index).copied(),
                    None => travel(graph, costs, &times, index),
                };
                op_spans(graph, costs, &times, (number, index, consumers[index], travel), &mut free, &mut spans);
            }
        }
        for step in steps {
            let (start_ns, end_ns) = (costs.to_ns(step.start), costs.to_ns(step.end));
            let op = step.name.to_string();
            spans.push(Span {
                device: step.device,
                queue: Queue::Compute,
                op,
                partner: None,
                peer: None,
                phase: None,
                start_ns,
                end_ns,
            });
        }
        let mut timeline = Timeline { spans, ..self.empty_timeline(costs) };
        timeline.sort();
        timeline
    }

    /// The timeline's header, without spans.
    pub fn empty_timeline(&self, costs: &CostTable) -> Timeline {
        Timeline {
            schema_version: SCHEMA_VERSION,
            source: Source::Predicted,
            schedule: self.schedule.clone(),
            devices: self.devices,
            chunks: self.chunks,
            microbatches: self.microbatches,
            time_unit: self.time_unit.clone(),
            unit_ns: costs.unit_ns,
            keep: costs.keep,
            clock_uncertainty_ns: 0,
            provenance: BTreeMap::new(),
            spans: Vec::new(),
        }
    }
}

/// When an output leaves its device and when it may be used, in ticks.
type Travel = (u64, u64);

/// The way of the output of op number `index` where no link is shared.
fn travel(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, index: usize) -> Option<Travel> {
    let (op, time) = (graph.op(index), costs.of(graph.op(index)));
    // What an overlapped pair hands on leaves at its end.
    let last = graph.pair(index).map_or(index, |(_, last)| last);
    let transfer = time.after.max(time.arrival);
    (transfer > 0 && graph.schedule().placement.leaves_device(op))
        .then(|| (times.end[last], times.end[last] + transfer))
}

/// The spans of one op: its wait for a transfer, its compute, the transfer of its output.
fn op_spans(
    graph: &TaskGraph,
    costs: &CostTable,
    times: &OpTimes,
    (number, index, consumer, travel): (usize, usize, Option<usize>, Option<Travel>),
    free: &mut u64,
    spans: &mut Vec<Span>,
) {
    let (op, time, device) = (graph.op(index), costs.of(graph.op(index)), graph.device_of(index));
    let mut span = |queue, partner: Option<usize>, start: u64, end: u64| {
        spans.push(Span {
            device,
            queue,
            op: op.to_string(),
            partner: partner.map(|p| graph.op(p).to_string()),
            peer: partner.map(|p| graph.device_of(p)),
            phase: graph.schedule().phase(device, number).map(str::to_string),
            start_ns: costs.to_ns(start),
            end_ns: costs.to_ns(end),
        });
    };
    if let Some(up) = graph.transfer(index)
        && times.start[index] > *free
    {
        span(Queue::Receive, Some(up), *free, times.start[index]);
    }
    span(Queue::Compute, None, times.start[index], times.end[index]);
    if let Some((start, end)) = travel {
        span(Queue::Send, consumer, start, end);
    }
    *free = times.end[index] + time.after;
}
