//! What a prediction draws: the spans of its ops, of their transfers and waits, and of the step ops.

use super::waits::OpTimes;
use crate::cost::{CostTable, StepCosts};
use crate::graph::TaskGraph;
use crate::metrics::Activity;
use crate::timeline::{Queue, Span};
use std::collections::BTreeMap;

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

/// The step ops behind what `devices` did.
pub(super) fn step_spans(
    graph: &TaskGraph,
    costs: &CostTable,
    devices: &[Activity],
    step: &StepCosts,
) -> Vec<StepSpan> {
    let schedule = graph.schedule();
    let mut free: Vec<u64> = (0..schedule.devices())
        .map(|device| {
            let last = schedule.program(device).last();
            last.map_or(0, |&last| devices[device as usize].last_end + costs.of(last).after)
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

/// The spans of ops that run at `times`, and of `steps` behind them; `transfers` says when the output of each op travelled,
/// where the event engine knows.
pub(super) fn spans(
    graph: &TaskGraph,
    costs: &CostTable,
    times: &OpTimes,
    steps: &[StepSpan],
    transfers: Option<&BTreeMap<usize, Travel>>,
) -> Vec<Span> {
    let mut spans = Vec::with_capacity(2 * graph.len());
    let consumers = graph.consumers();
    for device in 0..graph.schedule().devices() {
        let mut free = 0;
        for (number, index) in graph.schedule().range(device).enumerate() {
            let travel = match transfers {
                Some(transfers) => transfers.get(&index).copied(),
                None => travel(graph, costs, times, index),
            };
            op_spans(graph, costs, times, (number, index, consumers[index], travel), &mut free, &mut spans);
        }
    }
    spans.extend(steps.iter().map(|step| Span {
        device: step.device,
        queue: Queue::Compute,
        op: step.name.to_string(),
        partner: None,
        peer: None,
        phase: None,
        start_ns: costs.to_ns(step.start),
        end_ns: costs.to_ns(step.end),
    }));
    spans
}

/// When an output leaves its device and when it may be used, in ticks.
pub(super) type Travel = (u64, u64);

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
