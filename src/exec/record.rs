//! Measurements of one training step, and its timeline.

use pipesim_schedule::epilogue::StepOp;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_schedule::timeline::{Queue, SCHEMA_VERSION, Source, Span, Timeline, WorkerSpans, Workers};
use pipesim_train::model::PartTiming;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times of one op, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRecord {
    /// Index of the op in the graph.
    pub index: usize,
    /// When its device started to wait for its data.
    pub turn: u64,
    /// When it started to compute.
    pub start: u64,
    /// When it had finished computing.
    pub end: u64,
    /// When the put of its output started: at `end`, or for the first of an overlapped pair at the end of the second.
    pub put_start: u64,
    /// When the put of its output was done; `put_start` if nothing is put.
    pub put_end: u64,
}

/// A device's part of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Ops that compute, in program order.
    pub ops: Vec<OpRecord>,
    /// Copies to and from the host, in program order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_copies: Vec<OpRecord>,
    /// Times of the parts of the model, with the number of their op in program order.
    #[serde(rename = "laps")]
    pub timings: Vec<(u32, PartTiming)>,
    /// Step ops: name, start, end, without waits for other devices.
    pub steps: Vec<(StepOp, u64, u64)>,
    /// When it began the step: the tokens were in the host's memory, still unused.
    #[serde(default)]
    pub begun: u64,
    /// When it was ready, and started to wait for the other devices.
    pub ready: u64,
    /// When everything was done and its losses were in the host's memory.
    #[serde(default, rename = "told")]
    pub finished: u64,
    /// Largest error of its times relative to other devices' clocks.
    #[serde(default)]
    pub clock_uncertainty_ns: u64,
    /// Whether it continues to compute while it puts.
    #[serde(default)]
    pub puts_beside_compute: bool,
    /// Norm of the gradients of all devices before clipping, if it was needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<f64>,
    /// Loss of each micro-batch that ended here, 0 for the others; on devices that hold the head.
    #[serde(with = "bits")]
    pub losses: Option<Vec<f32>>,
}

/// Serializes numbers as their bits, because JSON has no NaN and no infinity.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(numbers: &Option<Vec<f32>>, serializer: S) -> Result<S::Ok, S::Error> {
        let bits = |numbers: &Vec<f32>| numbers.iter().map(|number| number.to_bits()).collect::<Vec<u32>>();
        numbers.as_ref().map(bits).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<f32>>, D::Error> {
        let bits: Option<Vec<u32>> = Option::deserialize(deserializer)?;
        Ok(bits.map(|bits| bits.into_iter().map(f32::from_bits).collect()))
    }
}

/// Measurements of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// By pipeline device, of the slowest copy of the pipeline: the one whose last pipeline op ended last. Time 0 of the step is when
    /// the last worker was ready.
    pub devices: Vec<DeviceRecord>,
    /// Mean loss over the micro-batches; `None` if no device computes one.
    pub loss: Option<f64>,
    /// Time from the tokens in the hosts' memory to the loss in the hosts' memory, in ns: includes transfers, waits for other devices
    /// and the calibration of clocks.
    pub wall_ns: u64,
    /// When it began, relative to the start of the measurement.
    #[serde(default)]
    pub at_ns: u64,
    /// The other copies of the pipeline, if there are several.
    #[serde(skip)]
    pub copies: Option<Copies>,
    /// The steps that followed at once, without a barrier between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub following: Vec<Following>,
}

/// Records of the workers of a mesh in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Copies {
    pub mesh: Mesh,
    /// Number of the slowest copy, which provides the step's records.
    pub shown: u32,
    /// The records of each other copy, by pipeline device, with its number.
    pub others: Vec<(u32, Vec<DeviceRecord>)>,
}

/// A step that followed another without a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Following {
    /// When its last op of any kind ended, in ns from time 0 of the first step.
    pub end_ns: u64,
    /// As [`StepRecord::loss`].
    pub loss: Option<f64>,
}

/// End of the last pipeline op of `devices`.
fn makespan(devices: &[DeviceRecord]) -> u64 {
    devices.iter().flat_map(|d| d.ops.last()).map(|op| op.end).max().unwrap_or(0)
}

/// End of their last op of any kind.
fn end(devices: &[DeviceRecord]) -> u64 {
    let steps = devices.iter().flat_map(|d| d.steps.last()).map(|&(_, _, end)| end).max();
    makespan(devices).max(steps.unwrap_or(0))
}

/// Mean loss over the micro-batches of all replicas. Tensor ranks compute the same losses.
fn loss(workers: &[DeviceRecord], mesh: Mesh) -> Option<f64> {
    let replicas = (0..mesh.copies()).filter(|&copy| mesh.tensor_of(copy) == 0);
    let losses = replicas.map(|copy| loss_of(&of_copy(workers, mesh, copy))).collect::<Option<Vec<f64>>>()?;
    Some(losses.iter().sum::<f64>() / losses.len().max(1) as f64)
}

/// The records of one copy of the pipeline, by device.
fn of_copy(workers: &[DeviceRecord], mesh: Mesh, copy: u32) -> Vec<&DeviceRecord> {
    workers.iter().skip(copy as usize).step_by(mesh.copies() as usize).collect()
}

/// Mean loss over the micro-batches of one copy of the pipeline.
fn loss_of(devices: &[&DeviceRecord]) -> Option<f64> {
    // If micro-batches run in both directions, each end computes some of the losses and leaves the others 0.
    let losses = devices.iter().filter_map(|device| device.losses.clone()).reduce(|mut sum, other| {
        sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        sum
    });
    losses.map(|l| l.iter().map(|&x| f64::from(x)).sum::<f64>() / l.len().max(1) as f64)
}

impl DeviceRecord {
    /// Converts its times to times from `zero`.
    fn shift(&mut self, zero: u64) {
        let shift = |time: &mut u64| *time = time.saturating_sub(zero);
        for OpRecord { turn, start, end, put_start, put_end, .. } in self.ops.iter_mut().chain(&mut self.host_copies) {
            [turn, start, end, put_start, put_end].into_iter().for_each(shift);
        }
        self.steps.iter_mut().for_each(|(_, start, end)| [start, end].into_iter().for_each(shift));
        [&mut self.begun, &mut self.ready, &mut self.finished].into_iter().for_each(shift);
    }
}

impl StepRecord {
    /// Returns the record of the first of several back-to-back steps, with the ends of the others.
    ///
    /// # Panics
    /// There are no steps.
    pub(super) fn of_row(mut row: Vec<Vec<DeviceRecord>>, mesh: Mesh) -> StepRecord {
        let others = row.split_off(1);
        let first = row.remove(0);
        let zero = first.iter().map(|worker| worker.ready).max().unwrap_or(0);
        let followed = |workers: &Vec<DeviceRecord>| Following {
            end_ns: end(workers).saturating_sub(zero),
            loss: loss(workers, mesh),
        };
        StepRecord { following: others.iter().map(followed).collect(), ..StepRecord::new(first, mesh) }
    }

    /// Converts the records of all workers to times from the step's time 0, and separates the slowest copy of the pipeline. Within a
    /// copy, times are consistent: an op starts after the ops that it waits for. Between copies they are not.
    pub fn new(workers: Vec<DeviceRecord>, mesh: Mesh) -> StepRecord {
        let loss = loss(&workers, mesh);
        let end_of_copy = |copy: &u32| {
            of_copy(&workers, mesh, *copy).iter().flat_map(|device| device.ops.last()).map(|op| op.end).max()
        };
        let slowest = (0..mesh.copies()).rev().max_by_key(end_of_copy).unwrap_or(0);
        let begun = workers.iter().map(|worker| worker.begun).min().unwrap_or(0);
        let wall_ns = workers.iter().map(|worker| worker.finished).max().unwrap_or(0).saturating_sub(begun);
        let zero = workers.iter().map(|worker| worker.ready).max().unwrap_or(0);
        let mut copies: Vec<Vec<DeviceRecord>> = (0..mesh.copies()).map(|_| Vec::new()).collect();
        for (worker, mut record) in workers.into_iter().enumerate() {
            record.shift(zero);
            copies[mesh.copy(worker as u32) as usize].push(record);
        }
        let devices = std::mem::take(&mut copies[slowest as usize]);
        let others = (0..).zip(copies).filter(|&(copy, _)| copy != slowest).collect();
        let copies = (!mesh.is_single()).then_some(Copies { mesh, shown: slowest, others });
        StepRecord { devices, loss, wall_ns, copies, ..StepRecord::default() }
    }

    /// Makespan in ns: the end of the last pipeline op.
    pub fn makespan_ns(&self) -> u64 {
        makespan(&self.devices)
    }

    /// Total time of all pipeline ops, in ns.
    pub fn busy_ns(&self) -> u64 {
        self.devices.iter().flat_map(|device| &device.ops).map(|op| op.end - op.start).sum()
    }

    /// Norm of the gradients before clipping; `None` if no update needed it.
    pub fn norm(&self) -> Option<f64> {
        self.devices.iter().find_map(|device| device.norm)
    }

    /// Share of the devices' time up to the makespan in which they ran no pipeline op.
    pub fn bubble(&self) -> f64 {
        let all = self.makespan_ns() as f64 * self.devices.len() as f64;
        if all > 0.0 { 1.0 - self.busy_ns() as f64 / all } else { 0.0 }
    }

    /// Iteration time in ns: the end of the last op of any kind.
    pub fn iteration_ns(&self) -> u64 {
        end(&self.devices)
    }

    /// Mean time between the ends of back-to-back steps, in ns; `None` for a single step.
    pub fn period_ns(&self) -> Option<u64> {
        let last = self.following.last()?;
        Some(last.end_ns.saturating_sub(self.iteration_ns()) / self.following.len() as u64)
    }

    /// Losses of all its steps that have one.
    pub fn losses(&self) -> impl Iterator<Item = f64> {
        self.loss.into_iter().chain(self.following.iter().filter_map(|following| following.loss))
    }

    /// Returns the timeline. `keep` is the share of an activation that is kept from I to W.
    pub fn timeline(&self, graph: &TaskGraph, keep: f64) -> Timeline {
        let schedule = graph.schedule();
        let workers = self.copies.as_ref().map(|Copies { mesh, shown, others }| Workers {
            mesh: *mesh,
            data: mesh.replica_of(*shown),
            tensor: mesh.tensor_of(*shown),
            others: others
                .iter()
                .map(|&(copy, ref devices)| WorkerSpans {
                    data: mesh.replica_of(copy),
                    tensor: mesh.tensor_of(copy),
                    spans: spans(devices, graph),
                })
                .collect(),
        });
        let mut timeline = Timeline {
            schema_version: SCHEMA_VERSION,
            source: Source::Measured,
            schedule: schedule.name.clone(),
            devices: schedule.devices(),
            chunks: schedule.placement.chunks(),
            microbatches: schedule.microbatches,
            time_unit: "ms".to_string(),
            unit_ns: 1_000_000,
            keep,
            slices: if graph.slices() > 1 { schedule.slices().lengths().to_vec() } else { Vec::new() },
            stub: 0.0,
            kv: 0.0,
            clock_uncertainty_ns: self.devices.iter().map(|device| device.clock_uncertainty_ns).max().unwrap_or(0),
            lower_bound_ns: None,
            lower_bound_if_split_ns: None,
            typical_makespan_ns: None,
            incomplete_devices: Vec::new(),
            steps: Vec::new(),
            step: None,
            workers,
            provenance: BTreeMap::new(),
            spans: spans(&self.devices, graph),
        };
        timeline.sort();
        timeline
    }
}

/// Returns the spans of one copy of the pipeline.
fn spans(devices: &[DeviceRecord], graph: &TaskGraph) -> Vec<Span> {
    let schedule = graph.schedule();
    let consumers = graph.consumers();
    let mut spans = Vec::new();
    for (device, record) in devices.iter().enumerate() {
        let device = device as u32;
        let first = schedule.range(device).start;
        for op in record.ops.iter().chain(&record.host_copies) {
            let mut span = |queue, partner: Option<usize>, start_ns, end_ns| {
                spans.push(Span {
                    device,
                    queue,
                    op: graph.op(op.index).to_string(),
                    partner: partner.map(|p| graph.op(p).to_string()),
                    peer: partner.map(|p| graph.device_of(p)),
                    phase: schedule.phase(device, op.index - first).map(str::to_string),
                    start_ns,
                    end_ns,
                });
            };
            if !graph.op(op.index).kind().is_compute() {
                span(Queue::Copy, None, op.start, op.end);
                continue;
            }
            if let Some(up) = graph.transfer(op.index) {
                span(Queue::Receive, Some(up), op.turn, op.start);
            }
            span(Queue::Compute, None, op.start, op.end);
            if op.put_end > op.put_start {
                span(Queue::Send, consumers[op.index], op.put_start, op.put_end);
            }
        }
        spans.extend(record.steps.iter().map(|&(step_op, start_ns, end_ns)| {
            let (queue, op) = (Queue::Compute, step_op.name().to_string());
            Span::new(device, queue, op, start_ns, end_ns)
        }));
    }
    spans
}
