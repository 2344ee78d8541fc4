//! Timelines: what a simulation predicts and what an execution measures, in one versioned JSON schema.
//!
//! `compare`, the pictures and the pages read nothing else. Times are whole nanoseconds from the step's time 0. In a timeline
//! predicted from costs without a unit, one unit of cost is 10^9 ns or another power of ten (`unit_ns`).

mod read;
mod step;
mod validate;

pub use read::TimelineError;
pub use step::StepFigures;

use crate::activation::{self, Holding, Keep};
use crate::mesh::Mesh;
use crate::metrics::{Activity, Metrics, Reference};
use crate::op::{Kind, Op};
use crate::slices::Slices;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the JSON schema that this program writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// Maximum number of nanoseconds of a unit.
const MAX_UNIT_NS: u64 = 1_000_000_000_000_000_000;

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
    /// Waits for puts of other devices.
    Receive,
    /// Copies of activations to and from the host.
    Copy,
    /// Gathers of parameters and reductions of gradients between ops; the two may overlap.
    Collective,
}

/// What a device did from `start_ns` to `end_ns`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The device, 0 to p - 1.
    pub device: u32,
    /// Queue on which it runs.
    pub queue: Queue,
    /// On the compute queue the op (`0F3`) or step op (`reduce`, `norm`, `optimizer`); on the send queue the op whose
    /// output is put; on the receive queue the op that waits; on the collective queue `3UNSHARD` or `3REDUCE_GRAD`.
    pub op: String,
    /// Send queue: the op that will use the data. Receive queue: the op whose output is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partner: Option<String>,
    /// The other device of a send or a receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// The schedule's name for this part of the program: `warm-up`, `steady`, `drain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Start, in ns from the step's time 0.
    pub start_ns: u64,
    /// End, in ns from the step's time 0.
    pub end_ns: u64,
}

impl Span {
    /// Returns a span without partner and phase.
    pub fn new(device: u32, queue: Queue, op: String, start_ns: u64, end_ns: u64) -> Span {
        Span { device, queue, op, partner: None, peer: None, phase: None, start_ns, end_ns }
    }

    /// Returns the op of a copy to or from the host.
    pub fn copy_op(&self) -> Option<Op> {
        if self.queue == Queue::Copy { self.op.parse().ok() } else { None }
    }

    /// Returns the pipeline op of a span on the compute queue; `None` for step ops and other queues.
    pub fn pipeline_op(&self) -> Option<Op> {
        if self.queue == Queue::Compute { self.op.parse().ok() } else { None }
    }
}

fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

/// What happened, or is predicted to happen, in one training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Version of the schema, 1.
    pub schema_version: u32,
    /// Predicted or measured.
    pub source: Source,
    /// The schedule's name.
    pub schedule: String,
    /// p.
    pub devices: u32,
    /// v, stages per device.
    pub chunks: u32,
    /// m.
    pub microbatches: u32,
    /// `unit` (costs were given) or `ms`.
    pub time_unit: String,
    /// Number of nanoseconds of one `time_unit`.
    pub unit_ns: u64,
    /// Share of an activation that is kept from I to W (the cost `keep`).
    pub keep: f64,
    /// Lengths of the slices that micro-batches are cut into; empty if they are whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<u32>,
    /// Share of an activation that a recomputed forward keeps (the cost `stub`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stub: f64,
    /// Share of keys and values in an activation (the cost `kv`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kv: f64,
    /// By how much the clocks of different devices may differ; 0 for a simulation or a single clock.
    pub clock_uncertainty_ns: u64,
    /// Lower bound of the makespan of every order of these ops with this placement and these costs; omitted if not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower_bound_ns: Option<u64>,
    /// Lower bound of orders whose backwards may be whole or split into I and W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower_bound_if_split_ns: Option<u64>,
    /// The makespan of this order at the machine's median speed, to which the bound applies; omitted if the speed did not vary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub typical_makespan_ns: Option<u64>,
    /// Devices of an imported run whose ops are missing or incomplete, because their trace is missing or cut off; ascending.
    /// Empty for every other timeline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete_devices: Vec<u32>,
    /// All steps of an imported run, in order; the spans show one of them. Empty for every other timeline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepFigures>,
    /// Number of the step that the spans show, as in [`StepFigures::number`]; absent where `steps` is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Workers of a run with several workers per device; the spans show one of them. Absent for all other timelines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<Workers>,
    /// Origin: program version, machine, date, device kind; free text by key.
    #[serde(default)]
    pub provenance: BTreeMap<String, String>,
    /// By device, then queue, then start.
    pub spans: Vec<Span>,
}

impl Timeline {
    /// Sorts the spans by device, queue and start.
    pub fn sort(&mut self) {
        let others = self.workers.iter_mut().flat_map(|workers| &mut workers.others);
        for spans in others.map(|other| &mut other.spans).chain([&mut self.spans]) {
            spans.sort_by(|a, b| {
                (a.device, a.queue, a.start_ns, a.end_ns, &a.op).cmp(&(b.device, b.queue, b.start_ns, b.end_ns, &b.op))
            });
        }
    }

    /// Returns everything but spans and workers.
    fn header(&self) -> Timeline {
        Timeline {
            schedule: self.schedule.clone(),
            time_unit: self.time_unit.clone(),
            incomplete_devices: self.incomplete_devices.clone(),
            steps: self.steps.clone(),
            slices: self.slices.clone(),
            workers: None,
            provenance: self.provenance.clone(),
            spans: Vec::new(),
            ..*self
        }
    }

    /// Writes several timelines as one JSON text.
    pub fn list_to_json(timelines: &[&Timeline]) -> String {
        let list = serde_json::json!({"schema_version": SCHEMA_VERSION, "timelines": timelines});
        format!("{list}\n")
    }

    /// Returns the compute spans of pipeline ops with their ops, in time order on each device.
    pub fn ops(&self) -> impl Iterator<Item = (Op, &Span)> {
        self.spans.iter().filter_map(|span| span.pipeline_op().map(|op| (op, span)))
    }

    /// Returns the devices that were recorded completely: all, except of an imported run whose traces are missing or cut off.
    pub fn recorded(&self) -> impl Iterator<Item = u32> {
        (0..self.devices).filter(|device| !self.incomplete_devices.contains(device))
    }

    /// Returns busy time, first start and last end of the pipeline ops of each device, in ns.
    pub fn activities(&self) -> Vec<Activity> {
        let mut activities: Vec<Option<Activity>> = vec![None; self.devices as usize];
        for (_, span) in self.ops() {
            let a = activities[span.device as usize].get_or_insert(Activity {
                busy: 0,
                first_start: span.start_ns,
                ..Activity::default()
            });
            a.busy += span.end_ns - span.start_ns;
            a.first_start = a.first_start.min(span.start_ns);
            a.last_end = a.last_end.max(span.end_ns);
            a.free = a.last_end;
        }
        activities.into_iter().map(Option::unwrap_or_default).collect()
    }

    /// Returns the figures, in the timeline's unit.
    pub fn metrics(&self) -> Metrics {
        let highest = |curve: Vec<(u64, f64)>| curve.into_iter().map(|(_, held)| held).fold(0.0, f64::max);
        let peaks: Vec<f64> = self.changes().into_iter().map(|changes| highest(self.curve(changes))).collect();
        let reference = Reference {
            lower_bound: self.lower_bound_ns,
            lower_bound_if_split: self.lower_bound_if_split_ns,
            typical_makespan: self.typical_makespan_ns,
        };
        let mut metrics = Metrics::new(&self.activities(), &peaks, reference, self.unit_ns as f64);
        if !self.incomplete_devices.is_empty() {
            let recorded: Vec<u32> = self.recorded().collect();
            metrics.leave_out_others(&recorded);
        }
        metrics
    }

    /// Takes over the lower bounds of `other`.
    pub fn reference(&mut self, other: &Timeline) {
        self.lower_bound_ns = other.lower_bound_ns;
        self.lower_bound_if_split_ns = other.lower_bound_if_split_ns;
        self.typical_makespan_ns = other.typical_makespan_ns;
    }

    /// Returns the end of the last span of any kind in ns: the iteration time, step ops included.
    pub fn end_ns(&self) -> u64 {
        self.spans.iter().map(|span| span.end_ns).max().unwrap_or(0)
    }

    /// Returns the activations held on `device` over time: (ns, units) after each change. F takes 1/v at its start; B returns it
    /// at its end, or I returns (1 - keep)/v and W keep/v at their ends.
    pub fn activations(&self, device: u32) -> Vec<(u64, f64)> {
        self.curve(self.changes().swap_remove(device as usize))
    }

    /// Returns, by device, when and by how much ops change the activations held there.
    fn changes(&self) -> Vec<Vec<(u64, i128)>> {
        let copies = self.spans.iter().filter_map(|span| span.copy_op().map(|op| (op, span)));
        let ops: Vec<(Op, &Span)> = self.ops().chain(copies).collect();
        self.changes_of(ops.into_iter())
    }

    /// Returns, by device, when and by how much these ops change the activations held there.
    pub fn changes_of<'a>(&self, ops: impl Iterator<Item = (Op, &'a Span)> + Clone) -> Vec<Vec<(u64, i128)>> {
        let slices = Slices::of_lengths(&self.slices).unwrap_or_default();
        let keep = Keep::new(self.keep).with_stub(self.stub).with_kv(self.kv);
        let holding = Holding::new(keep, &slices);
        let recomputed: BTreeSet<Op> = ops.clone().map(|(op, _)| op).filter(|op| op.kind() == Kind::R).collect();
        let mut changes = vec![Vec::new(); self.devices as usize];
        for (op, span) in ops {
            let is_recomputed = !recomputed.is_empty() && recomputed.contains(&op.of_kind(Kind::R));
            let (start, end) = holding.of(op, is_recomputed);
            let of = [(span.start_ns, start), (span.end_ns, end)];
            changes[span.device as usize].extend(of.into_iter().filter(|(_, change)| *change != 0));
        }
        changes
    }

    /// Returns (ns, units) after each of these changes of one device.
    pub fn curve(&self, mut changes: Vec<(u64, i128)>) -> Vec<(u64, f64)> {
        // An op that ends makes room for one that starts at the same time.
        changes.sort_unstable();
        let mut held = 0;
        let length = Slices::of_lengths(&self.slices).unwrap_or_default().total();
        let mut curve: Vec<(u64, f64)> = vec![(0, 0.0)];
        for (time, change) in changes {
            held += change;
            let level = activation::units(held, self.chunks.max(1) * length);
            match curve.last_mut() {
                Some(last) if last.0 == time => last.1 = level,
                _ => curve.push((time, level)),
            }
        }
        curve
    }
}

/// The workers of a run with several workers per pipeline device. Workers with the same replica and tensor rank run one copy of the
/// pipeline; a timeline's spans show one copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workers {
    /// Workers per pipeline device.
    pub mesh: Mesh,
    /// Replica of the copy that the timeline's own spans show, which is the slowest one.
    pub data: u32,
    /// Tensor rank of that copy.
    pub tensor: u32,
    /// All other copies.
    pub others: Vec<WorkerSpans>,
}

/// The spans of one copy of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSpans {
    /// Replica, from 0.
    pub data: u32,
    /// Tensor rank, from 0.
    pub tensor: u32,
    /// By device, then queue, then start; times are from the timeline's time 0.
    pub spans: Vec<Span>,
}

impl Workers {
    /// Names the workers with these coordinates: `replica 1, tensor rank 0`.
    pub fn name(&self, data: u32, tensor: u32) -> String {
        self.mesh.copy_name(data * self.mesh.tensor + tensor)
    }

    /// Names the workers that the timeline shows.
    pub fn shown(&self) -> String {
        self.name(self.data, self.tensor)
    }

    /// Says which worker of each device a picture shows.
    pub fn note(&self) -> String {
        format!(
            "measured: each device is shown by its worker of {}, whose last op ended last of {}; the page, the trace and the timeline's \
             JSON have the others, too",
            self.shown(),
            self.mesh.copies()
        )
    }
}

impl Timeline {
    /// Returns the timelines of the other copies, each with the name of its workers.
    pub fn other_workers(&self) -> impl Iterator<Item = (String, Timeline)> {
        self.workers.iter().flat_map(|workers| {
            workers.others.iter().map(|other| (workers.name(other.data, other.tensor), self.of_workers(other)))
        })
    }

    fn of_workers(&self, other: &WorkerSpans) -> Timeline {
        Timeline { spans: other.spans.clone(), ..self.header() }
    }
}
