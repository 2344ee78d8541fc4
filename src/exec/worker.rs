//! One device's thread: its program in order, op by op, then the step ops.

use super::device::{Batch, Device, Engine, State, Update};
use super::record::{DeviceRecord, OpRecord, StepOp};
use super::shared::Shared;
use super::watch::{Aborted, Fault};
use crate::schedule::Overlap;
use std::sync::Arc;

/// A device that computes on its own thread, with what it needs besides itself.
pub struct Worker {
    number: u32,
    device: Box<dyn Device>,
    shared: Arc<Shared>,
    /// Where this device's outputs lie until they are put: those of ops of even and of odd index, since both ops of an
    /// overlapped pair put theirs at its end.
    staging: [Vec<f32>; 2],
    /// A stage's gradient on its way to the device that holds it too.
    gradient: Vec<f32>,
    fault: Option<Fault>,
}

impl Engine for Worker {
    fn step(
        &mut self,
        step: u64,
        updates: u64,
        batch: &Arc<Batch>,
        update: Option<&Update>,
    ) -> anyhow::Result<DeviceRecord> {
        let shared = self.shared.clone();
        self.device.begin(batch);
        let range = shared.plan.graph.schedule().range(self.number);
        let mut record = DeviceRecord { ops: Vec::with_capacity(range.len()), ..DeviceRecord::default() };
        shared.watch.note_done(self.number, 0);
        // Nobody passes before the last one has come: the step's time 0 is when that was.
        record.ready = shared.watch.now_ns();
        shared.reductions.meet(&shared.heap, self.number, step, &shared.watch)?;
        let mut index = range.start;
        while index < range.end {
            let opens_pair = shared.plan.graph.op(index).opens_pair();
            if opens_pair {
                self.pair(step, index, &mut record)?
            } else {
                self.op(step, index, &mut record)?
            }
            index += if opens_pair { 2 } else { 1 };
        }
        record.losses = self.device.losses().map(<[f32]>::to_vec);
        self.finish(updates, update, &mut record)?;
        Ok(record)
    }

    fn state(&mut self) -> &mut dyn State {
        &mut *self.device
    }
}

impl Worker {
    /// Device number `number` of a session.
    pub fn new(number: u32, device: Box<dyn Device>, shared: Arc<Shared>, fault: Option<Fault>) -> Worker {
        let staging = [(); 2].map(|()| vec![0.0; shared.sizes.hidden]);
        Worker { number, device, shared, staging, gradient: Vec::new(), fault }
    }

    fn op(&mut self, step: u64, index: usize, record: &mut DeviceRecord) -> anyhow::Result<()> {
        let turn = self.shared.watch.now_ns();
        self.wait(index, step)?;
        self.compute(step, index, turn, record)?;
        self.put(index, step, record)
    }

    /// An overlapped pair: its ops in turn, but both inputs are awaited first (unless the graph says they are not), and
    /// both outputs put last. A CPU cannot run two ops faster together than one after the other.
    fn pair(&mut self, step: u64, first: usize, record: &mut DeviceRecord) -> anyhow::Result<()> {
        let turn = self.shared.watch.now_ns();
        self.wait(first, step)?;
        if self.shared.plan.graph.overlap() != Overlap::Runtime {
            self.wait(first + 1, step)?;
        }
        self.compute(step, first, turn, record)?;
        let turn = self.shared.watch.now_ns();
        self.wait(first + 1, step)?;
        self.compute(step, first + 1, turn, record)?;
        self.put(first, step, record)?;
        self.put(first + 1, step, record)
    }

    /// Waits for the input of op number `index`.
    fn wait(&self, index: usize, step: u64) -> Result<(), Aborted> {
        let Some(port) = self.shared.plan.inputs[index].filter(|port| port.crosses()) else { return Ok(()) };
        self.shared.watch.note_wait(self.number, true);
        self.shared.link.wait(&port, step, &self.shared.watch)?;
        self.shared.watch.note_wait(self.number, false);
        Ok(())
    }

    /// Computes op number `index`, whose input is there. What another device needs of it is left in the op's staging.
    fn compute(&mut self, step: u64, index: usize, turn: u64, record: &mut DeviceRecord) -> anyhow::Result<()> {
        if let Some(fault) = &self.fault {
            fault.strike(self.number, record.ops.len(), &self.shared.watch)?;
        }
        let (input, output) = (self.shared.plan.inputs[index], self.shared.plan.outputs[index]);
        let mut laps = Vec::new();
        let link = &self.shared.link;
        // SAFETY: the input was awaited, or this device made it, and is released below.
        let received = input.map(|port| unsafe { link.message(&port) });
        let target = output.map(|port| match port.crosses() {
            true => self.staging[index % 2].as_mut_slice(),
            // SAFETY: the op that reads this slot's last message comes before this one on this device.
            false => unsafe { link.target(&port) },
        });
        let op = self.shared.plan.graph.op(index);
        let start = self.shared.watch.now_ns();
        self.device.compute(op, received, target, &mut laps)?;
        let end = self.shared.watch.now_ns();
        if let Some(port) = input {
            self.shared.link.release(&port, step);
        }
        let number = record.ops.len() as u32;
        record.laps.extend(laps.into_iter().map(|lap| (number, lap)));
        record.ops.push(OpRecord { index, turn, start, end, put_start: end, put_end: end });
        self.shared.watch.note_done(self.number, record.ops.len());
        Ok(())
    }

    /// Puts what op number `index`, one of the last two computed, made for another device.
    fn put(&self, index: usize, step: u64, record: &mut DeviceRecord) -> anyhow::Result<()> {
        let Some(port) = self.shared.plan.outputs[index].filter(|port| port.crosses()) else { return Ok(()) };
        let last = record.ops.iter().map(|op| op.put_end).next_back().unwrap_or(0);
        self.shared.link.wait_credit(&port, step, &self.shared.watch)?;
        self.shared.link.put(&port, step, &self.staging[index % 2]);
        if let Some(op) = record.ops.iter_mut().rev().find(|op| op.index == index) {
            (op.put_start, op.put_end) = (last, self.shared.watch.now_ns());
        }
        Ok(())
    }

    fn finish(&mut self, updates: u64, update: Option<&Update>, record: &mut DeviceRecord) -> Result<(), Aborted> {
        let Some(update) = update else { return Ok(()) };
        let shared = self.shared.clone();
        let Shared { heap, reductions, watch, .. } = &*shared;
        let now = || watch.now_ns();
        if reductions.has_replicas() {
            self.add_up_replicas(updates, record)?;
        }
        if let Some(side) = reductions.tied_side(self.number) {
            let start = now();
            reductions.put_tied(heap, side, updates, self.device.tied_gradient(), watch)?;
            record.steps.push((StepOp::Put, start, now()));
            let mut start = 0;
            reductions.take_tied(heap, side, updates, watch, |other| {
                start = now();
                self.device.add_tied(other);
            })?;
            record.steps.push((StepOp::Reduce, start, now()));
        }
        let mut scale = 1.0;
        if let Some(clip) = update.clip {
            let start = now();
            reductions.put_norms(heap, self.number, updates, &self.device.squared_norms());
            record.steps.push((StepOp::Norm, start, now()));
            let norm = reductions.sum_norms(heap, updates, watch)?.sqrt();
            scale = clip_scale(norm, clip);
        }
        let start = now();
        self.device.update(update, scale);
        record.steps.push((StepOp::Optimizer, start, now()));
        Ok(())
    }

    /// Exchanges the gradients of the stages that other devices hold too.
    fn add_up_replicas(&mut self, updates: u64, record: &mut DeviceRecord) -> Result<(), Aborted> {
        let shared = self.shared.clone();
        let Shared { heap, reductions, watch, plan, .. } = &*shared;
        let held = plan.graph.schedule().placement.held_by(self.number);
        let start = watch.now_ns();
        for &chunk in held {
            self.device.stage_gradient(chunk.stage, &mut self.gradient);
            reductions.put_replica(heap, chunk, updates, &self.gradient, watch)?;
        }
        record.steps.push((StepOp::Put, start, watch.now_ns()));
        for &chunk in held {
            let mut start = 0;
            reductions.take_replica(heap, chunk, updates, watch, |other| {
                start = watch.now_ns();
                self.device.add_stage_gradient(chunk.stage, other);
            })?;
            record.steps.push((StepOp::Reduce, start, watch.now_ns()));
        }
        Ok(())
    }
}

/// Factor that brings a gradient of norm `norm` down to `clip`, as torch.nn.utils.clip_grad_norm_ does.
pub fn clip_scale(norm: f64, clip: f32) -> f32 {
    (f64::from(clip) / (norm + 1e-6)).min(1.0) as f32
}
