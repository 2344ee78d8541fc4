//! What one training step did, measured; and the timeline made of it.

use crate::ending::StepOp;
use crate::graph::TaskGraph;
use crate::model::Lap;
use crate::timeline::{Queue, SCHEMA_VERSION, Source, Span, Timeline};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// When one op ran, in ns of the session's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRecord {
    /// The op's index in the graph.
    pub index: usize,
    /// When its device turned to it: from here to `start` it waited for data.
    pub turn: u64,
    /// When it began to compute.
    pub start: u64,
    /// When it had computed.
    pub end: u64,
    /// When its output's put began: at `end`, or for the first of an overlapped pair at the end of the second.
    pub put_start: u64,
    /// When its output's put was done; `put_start` where nothing is put.
    pub put_end: u64,
}

/// One device's part of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// In program order.
    pub ops: Vec<OpRecord>,
    /// Times of the parts of the model, with the number (in program order) of the op that they belong to.
    pub laps: Vec<(u32, Lap)>,
    /// Step ops: name, start, end; waits for other devices are not in them.
    pub steps: Vec<(StepOp, u64, u64)>,
    /// When it took the step up: the tokens were in the host's memory, and nothing had been done with them.
    #[serde(default)]
    pub begun: u64,
    /// When the device came to the step's start, where it waits for the others.
    pub ready: u64,
    /// When all was done and its losses were in the host's memory.
    #[serde(default)]
    pub told: u64,
    /// Times may be off by this much against other devices' clocks.
    #[serde(default)]
    pub clock_uncertainty_ns: u64,
    /// Whether it computes on while it puts.
    #[serde(default)]
    pub puts_beside_compute: bool,
    /// Loss of each micro-batch that ended here, 0 for the others; from devices that hold the head.
    #[serde(with = "bits")]
    pub losses: Option<Vec<f32>>,
}

/// Numbers as their bits: JSON has no NaN and no infinity.
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

/// A step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// By device. Times are from the step's time 0: when the last device was ready.
    pub devices: Vec<DeviceRecord>,
    /// Mean loss over the micro-batches; `None` where no device computes one.
    pub loss: Option<f64>,
    /// From the tokens in the hosts' memory to the loss back there, in ns of their clocks: what a step costs whoever waits for it,
    /// uploads and downloads, waits for the others and the calibration of the clocks included.
    pub wall_ns: u64,
    /// When it began, since measuring did.
    #[serde(default)]
    pub at_ns: u64,
    /// The steps that followed at once, without a barrier between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub following: Vec<Following>,
}

/// A step that followed another at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Following {
    /// When its last op of any kind ended, in ns from the first one's time 0.
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

/// Mean loss over the micro-batches.
fn loss(devices: &[DeviceRecord]) -> Option<f64> {
    // Where micro-batches run both ways, either end computes some of the losses and leaves the others 0.
    let losses = devices.iter().filter_map(|device| device.losses.clone()).reduce(|mut sum, other| {
        sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        sum
    });
    losses.map(|l| l.iter().map(|&x| f64::from(x)).sum::<f64>() / l.len().max(1) as f64)
}

impl StepRecord {
    /// The record of steps that followed each other at once: the first one's, and when the others ended.
    ///
    /// # Panics
    /// There are none.
    pub(super) fn of_row(mut row: Vec<Vec<DeviceRecord>>) -> StepRecord {
        let others = row.split_off(1);
        let first = row.remove(0);
        let zero = first.iter().map(|device| device.ready).max().unwrap_or(0);
        let followed =
            |devices: &Vec<DeviceRecord>| Following { end_ns: end(devices).saturating_sub(zero), loss: loss(devices) };
        StepRecord { following: others.iter().map(followed).collect(), ..StepRecord::new(first) }
    }

    /// Puts the devices' records on the step's own clock.
    pub fn new(mut devices: Vec<DeviceRecord>) -> StepRecord {
        let loss = loss(&devices);
        let begun = devices.iter().map(|device| device.begun).min().unwrap_or(0);
        let wall_ns = devices.iter().map(|device| device.told).max().unwrap_or(0).saturating_sub(begun);
        let zero = devices.iter().map(|d| d.ready).max().unwrap_or(0);
        let shift = |time: &mut u64| *time = time.saturating_sub(zero);
        for device in &mut devices {
            for op in &mut device.ops {
                let OpRecord { turn, start, end, put_start, put_end, .. } = op;
                [turn, start, end, put_start, put_end].into_iter().for_each(shift);
            }
            device.steps.iter_mut().for_each(|(_, start, end)| [start, end].into_iter().for_each(shift));
            [&mut device.begun, &mut device.ready, &mut device.told].into_iter().for_each(shift);
        }
        StepRecord { devices, loss, wall_ns, ..StepRecord::default() }
    }

    /// End of the last pipeline op: the makespan, in ns.
    pub fn makespan_ns(&self) -> u64 {
        makespan(&self.devices)
    }

    /// What all devices together compute in pipeline ops, in ns.
    pub fn busy_ns(&self) -> u64 {
        self.devices.iter().flat_map(|device| &device.ops).map(|op| op.end - op.start).sum()
    }

    /// End of the last op of any kind: the iteration, in ns.
    pub fn iteration_ns(&self) -> u64 {
        end(&self.devices)
    }

    /// From one step's end to the next one's where steps follow each other at once, in ns; none where no other followed.
    pub fn period_ns(&self) -> Option<u64> {
        let last = self.following.last()?;
        Some(last.end_ns.saturating_sub(self.iteration_ns()) / self.following.len() as u64)
    }

    /// The losses of all its steps that have one.
    pub fn losses(&self) -> impl Iterator<Item = f64> {
        self.loss.into_iter().chain(self.following.iter().filter_map(|following| following.loss))
    }

    /// The timeline. `keep` is the share of an activation that lives from I to W.
    pub fn timeline(&self, graph: &TaskGraph, keep: f64) -> Timeline {
        let schedule = graph.schedule();
        let consumers = graph.consumers();
        let mut spans = Vec::new();
        for (device, record) in self.devices.iter().enumerate() {
            let device = device as u32;
            for (number, op) in record.ops.iter().enumerate() {
                let mut span = |queue, partner: Option<usize>, start_ns, end_ns| {
                    spans.push(Span {
                        device,
                        queue,
                        op: graph.op(op.index).to_string(),
                        partner: partner.map(|p| graph.op(p).to_string()),
                        peer: partner.map(|p| graph.device_of(p)),
                        phase: schedule.phase(device, number).map(str::to_string),
                        start_ns,
                        end_ns,
                    });
                };
                if let Some(up) = graph.transfer(op.index) {
                    span(Queue::Receive, Some(up), op.turn, op.start);
                }
                span(Queue::Compute, None, op.start, op.end);
                if op.put_end > op.put_start {
                    span(Queue::Send, consumers[op.index], op.put_start, op.put_end);
                }
            }
            for &(step_op, start_ns, end_ns) in &record.steps {
                let op = step_op.name().to_string();
                spans.push(Span {
                    device,
                    queue: Queue::Compute,
                    op,
                    partner: None,
                    peer: None,
                    phase: None,
                    start_ns,
                    end_ns,
                });
            }
        }
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
            clock_uncertainty_ns: self.devices.iter().map(|device| device.clock_uncertainty_ns).max().unwrap_or(0),
            lower_bound_ns: None,
            lower_bound_if_split_ns: None,
            typical_makespan_ns: None,
            provenance: BTreeMap::new(),
            spans,
        };
        timeline.sort();
        timeline
    }
}
