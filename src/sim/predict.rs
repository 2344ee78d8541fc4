//! From a graph and costs to the prediction that the outside sees: figures and a timeline.

use super::bound::lower_bound;
use super::sweep::{sweep, sweep_lasting};
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
}

/// Predicts the timeline of `graph` under `costs`, then of the step ops.
pub fn predict(graph: &TaskGraph, costs: &CostTable, step: &StepCosts) -> (Prediction, Times, Vec<StepSpan>) {
    let times = times(graph, costs);
    let schedule = graph.schedule();
    let peaks: Vec<f64> = (0..schedule.devices()).map(|d| schedule.peak_activations(d, costs.keep)).collect();
    // Durations that vary can fall below those that the bound is made of.
    let bound = lower_bound(graph, costs).min(times.makespan());
    let metrics = Metrics::new(&times.devices, &peaks, Some(bound), costs.ticks_per_unit);
    let prediction = Prediction {
        schedule: schedule.name.clone(),
        devices: schedule.devices(),
        chunks: schedule.placement.chunks(),
        microbatches: schedule.microbatches,
        time_unit: costs.time_unit.to_string(),
        costs: costs.summary,
        metrics,
    };
    let steps = step_spans(graph, costs, &times, step);
    (prediction, times, steps)
}

/// When devices run, in ticks; when each op does, another sweep tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// What each device did.
    pub devices: Vec<Activity>,
    /// Number of the measured step under whose speed they did it; `None`: at constant speed.
    speed: Option<usize>,
}

/// When each op runs, in ticks, by the graph's op index.
struct OpTimes {
    start: Vec<u64>,
    end: Vec<u64>,
}

impl Times {
    fn new(graph: &TaskGraph, costs: &CostTable, speed: Option<usize>) -> Times {
        let devices = match speed {
            None => sweep(graph, costs),
            Some(speed) => sweep_at_speed(graph, costs, speed, |_, _, _| ()),
        };
        Times { devices, speed }
    }

    /// End of the last op.
    pub fn makespan(&self) -> u64 {
        self.devices.iter().map(|device| device.last_end).max().unwrap_or(0)
    }

    /// The ops' own times, for the graph and costs that these are of.
    fn of_ops(&self, graph: &TaskGraph, costs: &CostTable) -> OpTimes {
        let mut times = OpTimes { start: vec![0; graph.len()], end: vec![0; graph.len()] };
        let note = |index: usize, start, end| (times.start[index], times.end[index]) = (start, end);
        match self.speed {
            None => sweep_lasting(graph, costs, |_, _, _, duration| duration, note),
            Some(speed) => sweep_at_speed(graph, costs, speed, note),
        };
        times
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
    /// The timeline of a prediction: computes, transfers and waits.
    pub fn timeline(&self, graph: &TaskGraph, costs: &CostTable, times: &Times, steps: &[StepSpan]) -> Timeline {
        let times = times.of_ops(graph, costs);
        let mut spans = Vec::with_capacity(2 * graph.len());
        let consumers = graph.consumers();
        for device in 0..self.devices {
            let mut free = 0;
            for (number, index) in graph.schedule().range(device).enumerate() {
                op_spans(graph, costs, &times, (number, index, consumers[index]), &mut free, &mut spans);
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

/// The spans of one op: its wait for a transfer, its compute, the transfer of its output.
fn op_spans(
    graph: &TaskGraph,
    costs: &CostTable,
    times: &OpTimes,
    (number, index, consumer): (usize, usize, Option<usize>),
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
    let transfer = time.after.max(time.arrival);
    if transfer > 0 && graph.schedule().placement.leaves_device(op) {
        span(Queue::Send, consumer, times.end[index], times.end[index] + transfer);
    }
    *free = times.end[index] + time.after;
}
