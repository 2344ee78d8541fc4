//! The spans of one step on the common clock.

use super::clock::Clock;
use super::error::ImportError;
use super::message::{Message, Step};
use super::pipeline::Pipeline;
use super::rank::RankOp;
use pipesim_schedule::timeline::{Queue, Span, Timeline};
use std::collections::BTreeMap;

/// Longest step, in ns: 104 days.
const MOST_NS: i64 = 1 << 53;

/// Adds the spans of `step` to `timeline`, and returns the time of its first op on the common clock.
///
/// # Errors
/// The step is longer than a timeline can be.
pub fn fill(
    timeline: &mut Timeline,
    pipeline: &Pipeline,
    step: &Step<'_>,
    messages: &[Message],
    clocks: &[Clock],
) -> Result<i64, ImportError> {
    let aligned = |device: u32, time: i64| clocks[device as usize].aligned(time);
    let ops = || {
        (0..)
            .zip(&step.ranks)
            .flat_map(|(device, rank)| rank.iter().flat_map(move |rank| rank.ops.iter().map(move |op| (device, op))))
    };
    let zero = ops().map(|(device, op)| aligned(device, op.start)).min().unwrap_or_default();
    let end = ops().map(|(device, op)| aligned(device, op.end)).max().unwrap_or_default();
    if end.saturating_sub(zero) > MOST_NS {
        return Err(ImportError::new(format!(
            "expected a step of less than 104 days, found step {} to be longer; check that all files are of one run",
            step.number
        )));
    }
    // What happened before the first op is cut off there.
    let at = |device: u32, time: i64| aligned(device, time).saturating_sub(zero).clamp(0, MOST_NS) as u64;
    let span = |device, queue, op: String, start: i64, end: i64| {
        let start_ns = at(device, start);
        Span::new(device, queue, op, start_ns, at(device, end).max(start_ns))
    };
    let sent: BTreeMap<_, &Message> = messages.iter().map(|message| (message.consumer, message)).collect();
    for (device, op) in ops() {
        timeline.spans.push(span(device, Queue::Compute, op.op.to_string(), op.start, op.end));
        let Some((source, stage)) = pipeline.source(op.op) else { continue };
        if source == device {
            continue;
        }
        let waited = wait(op);
        let producer = sent.get(&op.op).map_or_else(|| op.op.on_stage(stage), |message| message.producer);
        if let Some((from, until)) = waited {
            let wait = span(device, Queue::Receive, op.op.to_string(), from, until);
            timeline.spans.push(Span { partner: Some(producer.to_string()), peer: Some(source), ..wait });
        }
        if let Some(message) = sent.get(&op.op) {
            let start_ns = at(message.sender, message.sent);
            let posted = at(device, message.posted).max(start_ns);
            // It arrived when the device that waited for it went on. If that began to wait later, it may have arrived long before.
            let waited_ns = waited.map_or(0, |(from, until)| until - from);
            let arrived = at(device, message.received).max(start_ns);
            let end_ns = if waited_ns > SHORT_NS { arrived } else { posted.min(arrived) };
            let send = Span::new(message.sender, Queue::Send, message.producer.to_string(), start_ns, end_ns);
            timeline.spans.push(Span { partner: Some(message.consumer.to_string()), peer: Some(device), ..send });
        }
    }
    for (device, rank) in (0..).zip(&step.ranks) {
        for (name, from, until) in rank.iter().flat_map(|rank| &rank.others) {
            if until.saturating_sub(*from) < MOST_NS {
                timeline.spans.push(span(device, Queue::Compute, (*name).to_string(), *from, *until));
            }
        }
    }
    timeline.sort();
    Ok(zero)
}

/// A wait this short is the call that finds the data there.
const SHORT_NS: i64 = 200_000;

/// Returns from when to when a device waited for an op's input.
fn wait(op: &RankOp) -> Option<(i64, i64)> {
    let (posted, received) = op.receive?;
    let until = received.min(op.start);
    let from = op.ready.max(posted).min(until);
    Some((from, until))
}
