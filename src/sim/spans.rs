//! The spans of a predicted timeline: ops, transfers, waits, and step ops.

use super::gates::CollectiveSpan;
use super::waits::TimedGraph;
use pipesim_cost::{CostTable, StepCosts};
use pipesim_schedule::epilogue::StepNode;
use pipesim_schedule::metrics::Activity;
use pipesim_schedule::timeline::{Queue, Span};
use std::collections::{BTreeMap, BTreeSet};

/// A step op of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSpan {
    /// The device.
    pub device: u32,
    /// `put`, `reduce`, `norm` or `optimizer`.
    pub name: &'static str,
    /// Start, in ticks.
    pub start: u64,
    /// End, in ticks.
    pub end: u64,
}

/// Returns the step ops that follow what `devices` did.
pub(super) fn step_spans(devices: &[Activity], step: &StepCosts) -> Vec<StepSpan> {
    let mut free = free_again(devices);
    let times = step.epilogue.run(&mut free, |number| step.lasts[number]);
    let last = step.epilogue.nodes().iter().zip(times).filter(|(node, _)| node.behind.is_none());
    last.map(|(node, (start, end))| step_span(node, start, end)).collect()
}

fn step_span(node: &StepNode, start: u64, end: u64) -> StepSpan {
    StepSpan { device: node.device, name: node.op.name(), start, end }
}

/// Returns the step ops between ops that run at `times`.
pub(super) fn early_spans(timed: TimedGraph<'_>, step: &StepCosts) -> Vec<StepSpan> {
    let TimedGraph { graph, costs, times } = timed;
    let nodes = step.epilogue.nodes();
    let ops: BTreeSet<usize> = nodes.iter().filter_map(|node| node.behind).collect();
    let of_op = |op: usize| {
        let after = |index: usize| costs.of(graph.op(index)).after + times.delay(index).after;
        let afters = graph.pair(op).map_or_else(|| after(op), |(first, last)| after(first) + after(last));
        let (times, _) = step.behind(op, times.end[op] + afters);
        times.into_iter().map(|(number, start, end)| step_span(&nodes[number], start, end)).collect::<Vec<_>>()
    };
    ops.into_iter().flat_map(of_op).collect()
}

/// Returns the spans of collectives between ops.
pub(super) fn collective_spans(costs: &CostTable, collectives: &[CollectiveSpan]) -> impl Iterator<Item = Span> {
    collectives.iter().filter(|span| span.start < span.end).map(|span| {
        let [start, end] = [span.start, span.end].map(|ticks| costs.to_ns(ticks));
        Span::new(span.device, Queue::Collective, span.collective.to_string(), start, end)
    })
}

pub(super) fn free_again(devices: &[Activity]) -> Vec<u64> {
    devices.iter().map(|device| device.free).collect()
}

/// Returns the spans of ops that run at `times`, and of the step ops `steps`; `transfers` has when the output of each op travelled, if
/// the event engine recorded it.
pub(super) fn spans(
    timed: TimedGraph<'_>,
    steps: &[StepSpan],
    transfers: Option<&BTreeMap<usize, Travel>>,
) -> Vec<Span> {
    let TimedGraph { graph, costs, .. } = timed;
    let mut spans = Vec::with_capacity(2 * graph.len());
    let consumers = graph.consumers();
    for device in 0..graph.schedule().devices() {
        let mut free = 0;
        for index in graph.schedule().range(device) {
            let travel = match transfers {
                Some(transfers) => transfers.get(&index).copied(),
                None => travel(timed, index),
            };
            op_spans(timed, index, consumers[index], travel, &mut free, &mut spans);
        }
    }
    spans.extend(steps.iter().map(|step| {
        let [start, end] = [step.start, step.end].map(|ticks| costs.to_ns(ticks));
        Span::new(step.device, Queue::Compute, step.name.to_string(), start, end)
    }));
    spans
}

/// When an output leaves its device and when it can be used, in ticks.
pub(super) type Travel = (u64, u64);

/// Returns when the output of op number `index` travels if no link is shared.
fn travel(TimedGraph { graph, costs, times }: TimedGraph<'_>, index: usize) -> Option<Travel> {
    let (op, time) = (graph.op(index), costs.of(graph.op(index)));
    // The outputs of an overlapped pair leave at its end.
    let last = graph.pair(index).map_or(index, |(_, last)| last);
    let transfer = time.after.max(time.arrival);
    (transfer > 0 && graph.schedule().placement.leaves_device(op))
        .then(|| (times.end[last], times.end[last] + transfer))
}

/// Adds the spans of one op: its wait for a transfer, the op, and the transfer of its output.
fn op_spans(
    TimedGraph { graph, costs, times }: TimedGraph<'_>,
    index: usize,
    consumer: Option<usize>,
    travel: Option<Travel>,
    free: &mut u64,
    spans: &mut Vec<Span>,
) {
    let (op, time, device) = (graph.op(index), costs.of(graph.op(index)), graph.device_of(index));
    let number = index - graph.schedule().range(device).start;
    let mut span = |queue, partner: Option<usize>, start: u64, end: u64| {
        spans.push(Span {
            partner: partner.map(|p| graph.op(p).to_string()),
            peer: partner.map(|p| graph.device_of(p)),
            phase: graph.schedule().phase(device, number).map(str::to_string),
            ..Span::new(device, queue, op.to_string(), costs.to_ns(start), costs.to_ns(end))
        });
    };
    if !op.kind().is_compute() {
        return span(Queue::Copy, None, times.start[index], times.end[index]);
    }
    if let Some(up) = graph.transfer(index)
        && times.start[index] > *free
    {
        span(Queue::Receive, Some(up), *free, times.start[index]);
    }
    span(Queue::Compute, None, times.start[index], times.end[index]);
    if let Some((start, end)) = travel {
        span(Queue::Send, consumer, start, end);
    }
    *free = times.end[index] + time.after + times.delay(index).after + costs.pause(index);
}
