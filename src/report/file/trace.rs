//! Chrome Trace Event JSON, which Perfetto and chrome://tracing open.
//!
//! A process is a worker of one timeline (on a mesh several per device, with their coordinates as labels), its threads are the queues. Arrows lead from a send (or from the op that made
//! the data, if the timeline has no sends) to the op that uses it. The counter is the activations held.

use crate::Report;
use crate::file::csv::{queue_name, source_name};
use crate::scene::palette::Class;
use crate::scene::rows::{Mark, Row, activations, rows};
use pipesim_cost::TimeUnit;
use pipesim_cost::pair::Stream;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::timeline::Timeline;
use pipesim_sim::StreamSpan;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;

impl Report {
    /// Returns the timelines in Chrome's trace format, for Perfetto.
    pub fn trace(&self) -> String {
        let mut events = TraceEvents { out: String::new(), flows: 0 };
        let mut process = 1;
        for entry in &self.entries {
            for panel in entry.panels() {
                let name = format!("{} {}", entry.name, source_name(panel.timeline.source));
                let mut add = |timeline: &Timeline, streams: &[StreamSpan], worker: &Worker| {
                    timeline_events(&mut events, timeline, streams, &name, worker, process);
                    process += timeline.devices.max(1);
                };
                match &panel.timeline.workers {
                    None => add(&panel.timeline, &panel.streams, &Worker::default()),
                    Some(workers) => {
                        let of = |data, tensor| Worker { name: workers.name(data, tensor), at: Some((data, tensor)) };
                        add(&panel.timeline, &panel.streams, &of(workers.data, workers.tensor));
                        for (other, (_, timeline)) in workers.others.iter().zip(panel.timeline.other_workers()) {
                            add(&timeline, &[], &of(other.data, other.tensor));
                        }
                    }
                }
            }
        }
        let units: Vec<_> = self
            .entries
            .iter()
            .flat_map(|entry| entry.panels().map(move |panel| (entry, panel)))
            .map(|(entry, panel)| {
                json!({
                    "schedule": entry.name, "source": source_name(panel.timeline.source),
                    "time_unit": panel.timeline.time_unit, "unit_ns": panel.timeline.unit_ns,
                })
            })
            .collect();
        let other = json!({"title": self.headline(), "timelines": units, "provenance": self.provenance});
        format!("{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":[\n{}\n]}}\n", events.out)
    }
}

/// Returns the compressed trace, without file name and time in its header.
#[cfg(feature = "pictures")]
pub fn trace_gz(report: &Report) -> Result<Vec<u8>, crate::WriteError> {
    let mut encoder = flate2::GzBuilder::new().mtime(0).write(Vec::new(), flate2::Compression::new(6));
    let packed = std::io::Write::write_all(&mut encoder, report.trace().as_bytes()).and_then(|()| encoder.finish());
    packed.map_err(|e| crate::WriteError::Format(format!("expected room for a compressed trace, found none: {e}")))
}

struct TraceEvents {
    out: String,
    flows: u64,
}

impl TraceEvents {
    fn push(&mut self, event: &str) {
        if !self.out.is_empty() {
            self.out.push_str(",\n");
        }
        self.out.push_str(event);
    }

    fn metadata(&mut self, name: &str, process: u32, thread: Option<u32>, args: serde_json::Value) {
        let thread = thread.map(|t| format!("\"tid\":{t},")).unwrap_or_default();
        self.push(&format!("{{\"ph\":\"M\",\"name\":\"{name}\",\"pid\":{process},{thread}\"args\":{args}}}"));
    }
}

/// Converts nanoseconds to a trace's microseconds, exactly. A unit that is not a time is written as seconds, so that
/// Perfetto shows its numbers unchanged.
#[derive(Clone, Copy)]
struct TraceClock(u128);

impl TraceClock {
    fn new(timeline: &Timeline) -> TraceClock {
        let is_time = TimeUnit::named(&timeline.time_unit).is_some();
        TraceClock(if is_time { NS_OF_SECOND } else { u128::from(timeline.unit_ns.max(1)) })
    }

    fn microseconds(self, ns: u64) -> String {
        let ns = u128::from(ns) * NS_OF_SECOND / self.0;
        match ns % 1000 {
            0 => (ns / 1000).to_string(),
            rest => format!("{}.{rest:03}", ns / 1000).trim_end_matches('0').to_string(),
        }
    }
}

const NS_OF_SECOND: u128 = 1_000_000_000;

/// Returns a thread's number: the queues in order, then further ones for overlapping spans of a queue.
fn thread(queue: usize, lane: u32) -> u32 {
    1 + queue as u32 + 5 * lane
}

#[derive(Clone, Copy)]
struct ArrowEnd {
    process: u32,
    thread: u32,
    ns: u64,
    op: Op,
}

/// Which worker of each device a timeline shows: its name, replica and tensor rank; empty if there is one per device.
#[derive(Default)]
struct Worker {
    name: String,
    at: Option<(u32, u32)>,
}

fn timeline_events(
    events: &mut TraceEvents,
    t: &Timeline,
    streams: &[StreamSpan],
    name: &str,
    worker: &Worker,
    first_process: u32,
) {
    let clock = TraceClock::new(t);
    let rows = rows(t);
    let flows = flows(&rows, t.devices.saturating_mul(t.chunks), first_process);
    for (device, row) in rows.iter().enumerate() {
        let process = first_process + device as u32;
        let of = if worker.name.is_empty() { String::new() } else { format!(", {}", worker.name) };
        events.metadata("process_name", process, None, json!({"name": format!("{name} · device {device}{of}")}));
        if let Some((data, tensor)) = worker.at {
            let labels = format!("data {data}, pipeline {device}, tensor {tensor}");
            events.metadata("process_labels", process, None, json!({"labels": labels}));
        }
        events.metadata("process_sort_index", process, None, json!({"sort_index": process}));
        for (i, (queue, marks)) in row.queues().into_iter().enumerate() {
            let lanes = marks.iter().map(|mark| mark.lane + 1).max().unwrap_or(0);
            for lane in 0..lanes {
                let number = if lane == 0 { String::new() } else { format!(" {}", lane + 1) };
                let name = format!("{}{number}", queue_name(queue));
                events.metadata("thread_name", process, Some(thread(i, lane)), json!({"name": name}));
                let index = json!({"sort_index": thread(i, lane)});
                events.metadata("thread_sort_index", process, Some(thread(i, lane)), index);
                for mark in marks.iter().filter(|mark| mark.lane == lane) {
                    slice(events, mark, clock, queue_name(queue), process, thread(i, lane));
                }
            }
        }
        stream_events(events, streams, clock, device as u32, process);
        let curve = if row.compute.is_empty() { Vec::new() } else { activations(t, row) };
        for (ns, held) in curve {
            events.push(&format!(
                "{{\"ph\":\"C\",\"name\":\"activations\",\"pid\":{process},\"ts\":{},\"args\":{{\"held\":{held}}}}}",
                clock.microseconds(ns)
            ));
        }
    }
    for (from, to) in flows {
        events.flows += 1;
        let id = events.flows;
        for (phase, place) in [("\"s\"", from), ("\"f\",\"bp\":\"e\"", to)] {
            events.push(&format!(
                "{{\"ph\":{phase},\"name\":\"{} to {}\",\"cat\":\"data\",\"id\":{id},\"pid\":{},\"tid\":{},\"ts\":{}}}",
                from.op,
                to.op,
                place.process,
                place.thread,
                clock.microseconds(place.ns)
            ));
        }
    }
}

/// Number of the first thread of a device's streams.
const STREAMS: u32 = 1000;

/// Writes a device's sub-ops, one thread per stream.
fn stream_events(events: &mut TraceEvents, streams: &[StreamSpan], clock: TraceClock, device: u32, process: u32) {
    for stream in Stream::ALL {
        let of_stream = |found: &&StreamSpan| found.stream == stream && found.span.device == device;
        let mut spans = streams.iter().filter(of_stream).peekable();
        if spans.peek().is_none() {
            continue;
        }
        let (thread, category) = (STREAMS + stream as u32, format!("{} stream", stream.name()));
        events.metadata("thread_name", process, Some(thread), json!({"name": category}));
        events.metadata("thread_sort_index", process, Some(thread), json!({"sort_index": thread}));
        for StreamSpan { kind, span, .. } in spans {
            let mark = Mark { span, op: None, class: Class::Op(*kind), shade: 0, lane: 0, lanes: 1 };
            slice(events, &mark, clock, &category, process, thread);
        }
    }
}

fn slice(events: &mut TraceEvents, mark: &Mark, clock: TraceClock, queue: &str, process: u32, thread: u32) {
    let span = mark.span;
    let mut args = serde_json::Map::new();
    if let Some(op) = mark.op {
        args.insert("stage".into(), op.stage().into());
        args.insert("microbatch".into(), op.microbatch().into());
        if let Some(slice) = op.slice() {
            args.insert("slice".into(), slice.into());
        }
        args.insert("kind".into(), op.kind().letter().to_string().into());
    }
    for (key, value) in [("phase", &span.phase), ("partner", &span.partner)] {
        if let Some(value) = value {
            args.insert(key.into(), value.as_str().into());
        }
    }
    if let Some(peer) = span.peer {
        args.insert("peer".into(), peer.into());
    }
    let name = serde_json::Value::from(crate::text::plain(&span.op));
    let mut event = format!("{{\"ph\":\"X\",\"name\":{name},\"cat\":\"{queue}\",\"pid\":{process},\"tid\":{thread},");
    let _ = write!(
        event,
        "\"ts\":{},\"dur\":{},\"args\":{}}}",
        clock.microseconds(span.start_ns),
        clock.microseconds(span.end_ns - span.start_ns.min(span.end_ns)),
        serde_json::Value::Object(args)
    );
    events.push(&event);
}

fn flows(rows: &[Row], stages: u32, first_process: u32) -> Vec<(ArrowEnd, ArrowEnd)> {
    let place = |mark: &Mark, op: Op, queue: usize| ArrowEnd {
        process: first_process + mark.span.device,
        thread: thread(queue, mark.lane),
        ns: mark.span.start_ns,
        op,
    };
    let mut computed: BTreeMap<Op, ArrowEnd> = BTreeMap::new();
    for mark in rows.iter().flat_map(|row| &row.compute) {
        if let Some(op) = mark.op {
            computed.entry(op).or_insert(place(mark, op, 0));
        }
    }
    let mut flows = Vec::new();
    let has_sends = rows.iter().any(|row| !row.send.is_empty());
    for row in rows {
        for mark in &row.send {
            let partner = mark.span.partner.as_deref().and_then(|op| op.parse::<Op>().ok());
            if let (Some(op), Some(to)) = (mark.op, partner.and_then(|op| computed.get(&op))) {
                flows.push((place(mark, op, 1), *to));
            }
        }
        for mark in row.compute.iter().filter(|_| !has_sends) {
            let Some((op, upstream)) = mark.op.and_then(|op| Some((op, op.upstream(stages)?))) else { continue };
            let kinds: &[Kind] = if op.kind() == Kind::F { &[Kind::F] } else { &[Kind::I, Kind::B] };
            let made =
                kinds.iter().find_map(|&kind| computed.get(&op.on_stage(upstream).of_kind(kind).in_direction(0)));
            let to = place(mark, op, 0);
            if let Some(from) = made.filter(|from| from.process != to.process) {
                flows.push((*from, to));
            }
        }
    }
    flows
}
