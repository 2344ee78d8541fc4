//! Sub-ops on each device's streams in a predicted step whose overlapped pairs run on two streams.

use super::rules::pairs;
use super::waits::OpTimes;
use pipesim_cost::CostTable;
use pipesim_cost::pair::{Chunks, Half, PairCosts, Stream, StreamTimes, SubOpKind};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::timeline::{Queue, Span};
use std::ops::Range;

/// Maximum number of sub-ops of a step that are drawn.
const MOST_SPANS: usize = 200_000;

/// A sub-op in a predicted step.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSpan {
    /// Stream that runs it.
    pub stream: Stream,
    /// Kind of the op that it is part of; W for products for weights in a whole backward.
    pub kind: Kind,
    /// Device, name (`attn_F`), op (`partner`), start and end.
    pub span: Span,
}

/// Returns the sub-ops of all ops that run at `times`, by device and launch; nothing if pairs do not run on streams, or if there are
/// more than 200,000.
pub(super) fn stream_spans(graph: &TaskGraph, costs: &CostTable, times: &OpTimes) -> Vec<StreamSpan> {
    let mut spans = Vec::new();
    let Some(pairs) = pairs(graph, &costs.extras) else { return spans };
    for device in 0..graph.schedule().devices() {
        let range = graph.schedule().range(device);
        let mut index = range.start;
        while index < range.end && spans.len() <= MOST_SPANS {
            let (op, last) = (graph.op(index), graph.pair(index).map_or(index, |(_, last)| last));
            let ops = [op, graph.op(last)];
            let run = if last > index { pairs.streams(op, ops[1]) } else { alone(pairs, op) };
            let within = costs.to_ns(times.start[index])..costs.to_ns(times.end[last]);
            add(&mut spans, device, ops, &run, within);
            index = last + 1;
        }
    }
    if spans.len() > MOST_SPANS { Vec::new() } else { spans }
}

/// Returns the sub-ops of an op outside of pairs; none for W and others, which are single sub-ops.
fn alone(pairs: &PairCosts, op: Op) -> StreamTimes {
    let sub_ops = pairs.sub_ops(op.stage());
    match op.kind() {
        Kind::F => StreamTimes::of(Chunks { forward: Some(sub_ops), backward: None }),
        Kind::I | Kind::B => StreamTimes::of(Chunks { forward: None, backward: Some((sub_ops, op.kind())) }),
        _ => StreamTimes::default(),
    }
}

/// Adds the sub-ops of a pair or op, scaled to its duration.
fn add(spans: &mut Vec<StreamSpan>, device: u32, ops: [Op; 2], run: &StreamTimes, Range { start, end }: Range<u64>) {
    let at = |ns: u64| start + (u128::from(ns) * u128::from(end - start) / u128::from(run.end.max(1))) as u64;
    let span = |name: &str, op: Op, start, end| Span {
        partner: Some(op.to_string()),
        ..Span::new(device, Queue::Compute, name.to_string(), start, end)
    };
    if run.spans.is_empty() {
        let [op, _] = ops;
        let name = op.kind().letter().to_string();
        spans.push(StreamSpan { stream: Stream::Compute, kind: op.kind(), span: span(&name, op, start, end) });
    }
    for sub_op in run.spans.iter().filter(|sub_op| sub_op.end > sub_op.start) {
        let is_forward = sub_op.op.half == Half::Forward;
        let op = if (ops[0].kind() == Kind::F) == is_forward { ops[0] } else { ops[1] };
        let kind = match sub_op.op.kind {
            SubOpKind::AttnWeights | SubOpKind::MlpWeights | SubOpKind::SideWeights => Kind::W,
            _ => op.kind(),
        };
        let name = sub_op.op.kind.name(sub_op.op.half);
        let span = span(name, op, at(sub_op.start), at(sub_op.end));
        spans.push(StreamSpan { stream: sub_op.op.stream, kind, span });
    }
}
