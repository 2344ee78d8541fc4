//! Comparison of a predicted with a measured timeline.

use crate::{Comparison, KindError};
use pipesim_schedule::op::Op;
use pipesim_schedule::statistics::{median, quantile, relative_error};
use pipesim_schedule::timeline::{Queue, Timeline};
use std::collections::BTreeMap;

/// The timelines are of different schedules or in different units.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected two timelines of one schedule; found (devices, chunks, micro-batches, unit) {0:?} and {1:?}")]
pub struct Unlike(Shape, Shape);

/// Devices, chunks, micro-batches and unit.
type Shape = (u32, u32, u32, String);

/// Compares two timelines of the same schedule op by op.
///
/// # Errors
/// The timelines differ in devices, chunks, micro-batches or unit.
pub fn compare(predicted: &Timeline, measured: &Timeline) -> Result<Comparison, Unlike> {
    let shape = |t: &Timeline| (t.devices, t.chunks, t.microbatches, t.time_unit.clone());
    if shape(predicted) != shape(measured) {
        return Err(Unlike(shape(predicted), shape(measured)));
    }
    let starts: BTreeMap<Op, f64> = measured.ops().map(|(op, span)| (op, span.start_ns as f64)).collect();
    let (p, m) = (predicted.metrics(), measured.metrics());
    let mut error = Comparison {
        makespan: relative_error(p.makespan, m.makespan),
        bubble: 100.0 * (p.bubble - m.bubble),
        ..Comparison::default()
    };
    let iteration = (m.makespan * measured.unit_ns as f64).max(1.0);
    let predicted_starts = predicted.ops().map(|(op, span)| (op, span.start_ns as f64));
    start_errors(&mut error, predicted_starts, &starts, iteration);
    error.per_kind = per_kind(predicted, measured);
    error.wait_ms_per_device = per_device_ms(measured, Queue::Receive);
    error.transfer_ms_per_device = per_device_ms(measured, Queue::Send);
    Ok(error)
}

fn start_errors(
    error: &mut Comparison,
    predicted: impl Iterator<Item = (Op, f64)>,
    measured: &BTreeMap<Op, f64>,
    iteration: f64,
) {
    let errors = predicted.filter_map(|(op, start)| Some((start - measured.get(&op)?).abs() / iteration));
    let errors: Vec<f64> = errors.collect();
    error.op_start_p50 = median(&errors);
    error.op_start_p95 = quantile(&errors, 0.95);
    error.op_start_cdf = (0..=20).map(|i| f64::from(i) / 20.0).map(|share| (quantile(&errors, share), share)).collect();
}

fn per_kind(predicted: &Timeline, measured: &Timeline) -> Vec<KindError> {
    let means = |timeline: &Timeline| {
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for span in timeline.spans.iter().filter(|span| matches!(span.queue, Queue::Compute | Queue::Copy)) {
            let kind = span
                .pipeline_op()
                .or_else(|| span.copy_op())
                .map_or_else(|| span.op.clone(), |op| op.kind().letter().to_string());
            let (sum, count) = sums.entry(kind).or_default();
            *sum += span.end_ns - span.start_ns;
            *count += 1;
        }
        sums
    };
    let (ours, theirs) = (means(predicted), means(measured));
    let in_ms = |(sum, count): (u64, u64)| sum as f64 / count.max(1) as f64 / 1e6;
    let both = theirs.into_iter().filter_map(|(kind, found)| Some((ours.get(&kind).copied()?, kind, found)));
    both.map(|(expected, kind, found)| KindError {
        kind,
        predicted_ms: in_ms(expected),
        measured_ms: in_ms(found),
        count: found.1,
    })
    .collect()
}

fn per_device_ms(timeline: &Timeline, queue: Queue) -> Vec<f64> {
    let mut sums = vec![0_u64; timeline.devices as usize];
    for span in timeline.spans.iter().filter(|span| span.queue == queue) {
        sums[span.device as usize] += span.end_ns - span.start_ns;
    }
    sums.into_iter().map(|ns| ns as f64 / 1e6).collect()
}
