//! The timeline: what a simulation predicts and what an execution measures, in one versioned JSON schema.
//!
//! `compare`, the pictures and the pages read nothing else. Times are whole nanoseconds from the step's time 0. A timeline
//! predicted from given costs has no nanoseconds: there one unit of cost stands as 10^9 ns (`unit_ns`).

use crate::activation::{self, Keep};
use crate::metrics::{Activity, Metrics};
use crate::op::{Kind, Op};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the JSON schema that this program writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// Latest time and longest unit in a file that is read: 2^50 ns, 13 days. Sums over many spans still fit.
const MAX_NS: u64 = 1 << 50;

/// Why a text is no timeline; what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TimelineError(String);

/// An error unless `holds`.
fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), TimelineError> {
    if holds { Ok(()) } else { Err(TimelineError(what())) }
}

/// Where a timeline comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A simulation.
    Predicted,
    /// An execution.
    Measured,
}

/// One of a device's in-order queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Queue {
    /// Ops and step ops.
    Compute,
    /// Puts to other devices.
    Send,
    /// Waits for what others put.
    Receive,
}

/// What a device did from `start_ns` to `end_ns`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The device, 0 to p - 1.
    pub device: u32,
    /// Which of its queues was occupied.
    pub queue: Queue,
    /// On the compute queue the op (`0F3`) or step op (`reduce`, `norm`, `optimizer`); on the send queue the op whose
    /// output is put; on the receive queue the op that waits.
    pub op: String,
    /// Send queue: the op that will use the data. Receive queue: the op whose output is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partner: Option<String>,
    /// The other device of a send or a receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// The schedule's name for this part of the word: `warm-up`, `steady`, `drain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Start, in ns from the step's time 0.
    pub start_ns: u64,
    /// End, in ns from the step's time 0.
    pub end_ns: u64,
}

impl Span {
    /// The pipeline op of a span on the compute queue, `None` for step ops and other queues.
    pub fn pipeline_op(&self) -> Option<Op> {
        if self.queue == Queue::Compute { self.op.parse().ok() } else { None }
    }

    /// When the span's op takes activations or gives them back.
    pub(crate) fn change(&self, op: Op) -> (u64, Kind) {
        (if op.kind() == Kind::F { self.start_ns } else { self.end_ns }, op.kind())
    }
}

/// What happened, or is predicted to happen, in one training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// The version of this description, 1.
    pub schema_version: u32,
    /// Predicted or measured.
    pub source: Source,
    /// The schedule's name.
    pub schedule: String,
    /// p.
    pub devices: u32,
    /// v, stages a device.
    pub chunks: u32,
    /// m.
    pub microbatches: u32,
    /// `unit` (costs were given) or `ms`.
    pub time_unit: String,
    /// How many of the spans' nanoseconds are one `time_unit`.
    pub unit_ns: u64,
    /// Share of an activation that lives on from I to W (the cost `keep`).
    pub keep: f64,
    /// How far clocks of different devices may disagree; 0 for a simulation or a single clock.
    pub clock_uncertainty_ns: u64,
    /// No order of these ops, on this placement and under these costs, is shorter; where none was computed, left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower_bound_ns: Option<u64>,
    /// Who made it: program version, machine, date, device kind; free text by key.
    #[serde(default)]
    pub provenance: BTreeMap<String, String>,
    /// By device, then queue, then start.
    pub spans: Vec<Span>,
}

impl Timeline {
    /// Sorts the spans as the schema promises.
    pub fn sort(&mut self) {
        self.spans.sort_by(|a, b| {
            (a.device, a.queue, a.start_ns, a.end_ns, &a.op).cmp(&(b.device, b.queue, b.start_ns, b.end_ns, &b.op))
        });
    }

    /// Reads a timeline.
    ///
    /// # Errors
    /// Not JSON, another schema, another version, or spans that contradict the header; the text says what to do.
    pub fn from_json(text: &str) -> Result<Timeline, TimelineError> {
        let other = |e| {
            TimelineError(format!("expected a pipesim timeline, found other JSON ({e}); write one with -o FILE.json"))
        };
        let timeline: Timeline = serde_json::from_str(text).map_err(other)?;
        timeline.validate()?;
        Ok(timeline)
    }

    /// Reads a file of timelines: one, or a list as [`Timeline::list_to_json`] writes it.
    ///
    /// # Errors
    /// As [`Timeline::from_json`].
    pub fn list_from_json(text: &str) -> Result<Vec<Timeline>, TimelineError> {
        #[derive(Deserialize)]
        struct List {
            timelines: Vec<Timeline>,
        }
        let Ok(List { timelines }) = serde_json::from_str::<List>(text) else {
            return Ok(vec![Timeline::from_json(text)?]);
        };
        ensure(!timelines.is_empty(), || {
            "expected timelines, found an empty list of them; write one with -o FILE.json".to_string()
        })?;
        timelines.iter().try_for_each(Timeline::validate)?;
        Ok(timelines)
    }

    /// Several timelines as one JSON text.
    pub fn list_to_json(timelines: &[&Timeline]) -> String {
        let list = serde_json::json!({"schema_version": SCHEMA_VERSION, "timelines": timelines});
        format!("{list}\n")
    }

    fn validate(&self) -> Result<(), TimelineError> {
        let Timeline { schema_version, devices, chunks, unit_ns, keep, .. } = self;
        ensure(*schema_version == SCHEMA_VERSION, || {
            format!(
                "expected timeline schema version {SCHEMA_VERSION}, found {schema_version}; write the file again with this \
                 program"
            )
        })?;
        let sizes = [devices, chunks].iter().all(|size| (1..=1 << 20).contains(*size));
        ensure(sizes && *unit_ns > 0 && *unit_ns <= MAX_NS, || {
            format!(
                "expected 1 to 2^20 devices and chunks and a unit_ns above 0, found {devices}, {chunks} and {unit_ns}"
            )
        })?;
        ensure((0.0..=1.0).contains(keep), || format!("keep is a share between 0 and 1, found {keep}"))?;
        for Span { device, op, start_ns, end_ns, .. } in &self.spans {
            ensure(device < devices, || format!("span {op} is on device {device}, but there are {devices}"))?;
            ensure(end_ns >= start_ns, || format!("span {op} ends before it starts"))?;
            ensure(*end_ns <= MAX_NS, || format!("span {op} ends later than 13 days after the start"))?;
        }
        let stages = u64::from(*devices) * u64::from(*chunks);
        let mut seen = BTreeSet::new();
        for (op, _) in self.ops() {
            let exists = u64::from(op.stage()) < stages && op.microbatch() < self.microbatches;
            ensure(exists, || {
                format!("op {op} names a stage or a micro-batch that the timeline's header does not have")
            })?;
            ensure(seen.insert(op), || format!("op {op} stands twice in the timeline"))?;
        }
        let mut ops: Vec<(u32, u64, u64, Op)> =
            self.ops().map(|(op, span)| (span.device, span.start_ns, span.end_ns, op)).collect();
        ops.sort_unstable();
        for pair in ops.windows(2) {
            let [(device, _, end_ns, one), (other_device, start_ns, _, other)] = [pair[0], pair[1]];
            ensure(device != other_device || end_ns <= start_ns, || {
                format!(
                    "ops {one} and {other} overlap on device {device}, which runs one op at a time; correct their times"
                )
            })?;
        }
        Ok(())
    }

    /// The compute spans of pipeline ops, with their ops, in time order on each device.
    pub fn ops(&self) -> impl Iterator<Item = (Op, &Span)> {
        self.spans.iter().filter_map(|span| span.pipeline_op().map(|op| (op, span)))
    }

    /// Busy time, first start and last end of each device's pipeline part, in ns.
    pub fn activities(&self) -> Vec<Activity> {
        let mut activities: Vec<Option<Activity>> = vec![None; self.devices as usize];
        for (_, span) in self.ops() {
            let a = activities[span.device as usize].get_or_insert(Activity {
                busy: 0,
                first_start: span.start_ns,
                last_end: 0,
            });
            a.busy += span.end_ns - span.start_ns;
            a.first_start = a.first_start.min(span.start_ns);
            a.last_end = a.last_end.max(span.end_ns);
        }
        activities.into_iter().map(Option::unwrap_or_default).collect()
    }

    /// The figures, in the timeline's unit.
    pub fn metrics(&self) -> Metrics {
        let highest = |curve: Vec<(u64, f64)>| curve.into_iter().map(|(_, held)| held).fold(0.0, f64::max);
        let peaks: Vec<f64> = self.changes().into_iter().map(|changes| highest(self.curve(changes))).collect();
        Metrics::new(&self.activities(), &peaks, self.lower_bound_ns, self.unit_ns as f64)
    }

    /// End of the last span of any kind: the iteration time, step ops included, in ns.
    pub fn end_ns(&self) -> u64 {
        self.spans.iter().map(|span| span.end_ns).max().unwrap_or(0)
    }

    /// Activations held on `device` over time: (ns, units) after each change. A chunk's op takes 1/v at the start of F
    /// and returns it at the end of B, or (1 - keep)/v at the end of I and keep/v at the end of W.
    pub fn activations(&self, device: u32) -> Vec<(u64, f64)> {
        self.curve(self.changes().swap_remove(device as usize))
    }

    /// By device: when ops of which kind take or give back activations.
    fn changes(&self) -> Vec<Vec<(u64, Kind)>> {
        let mut changes = vec![Vec::new(); self.devices as usize];
        self.ops().for_each(|(op, span)| changes[span.device as usize].push(span.change(op)));
        changes
    }

    /// (ns, units) after each of these changes of one device.
    pub(crate) fn curve(&self, mut changes: Vec<(u64, Kind)>) -> Vec<(u64, f64)> {
        // What ends makes room for what starts at that moment.
        changes.sort_by_key(|&(time, kind)| (time, kind.change().0));
        let (changed, mut held) = (Keep::new(self.keep).changes(), 0);
        let mut curve: Vec<(u64, f64)> = vec![(0, 0.0)];
        for (time, kind) in changes {
            held += changed[kind as usize];
            let level = activation::units(held, self.chunks.max(1));
            match curve.last_mut() {
                Some(last) if last.0 == time => last.1 = level,
                _ => curve.push((time, level)),
            }
        }
        curve
    }
}
