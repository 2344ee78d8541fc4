//! One device's thread: its program in order, op by op, then the step ops.

use super::device::{Batch, Device, Update};
use super::link::Local;
use super::plan::Plan;
use super::record::{DeviceRecord, OpRecord};
use super::replicas::Replicas;
use super::watch::{Aborted, Fault, Watch};
use crate::placement::Chunk;
use crate::schedule::Overlap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a device needs besides itself.
pub struct Worker {
    /// Its number.
    pub number: u32,
    /// The graph and its ports.
    pub plan: Arc<Plan>,
    /// To the others.
    pub link: Arc<Local>,
    /// To other copies of the same stages.
    pub replicas: Arc<Replicas>,
    /// Who is where.
    pub watch: Arc<Watch>,
    /// Counts devices that are ready, over all steps.
    pub gate: Arc<AtomicU64>,
    /// Where this device's outputs lie until they are put: those of ops of even and of odd index, since both ops of an
    /// overlapped pair put theirs at its end.
    pub staging: [Vec<f32>; 2],
    /// A fault to inject.
    pub fault: Option<Fault>,
}

impl Worker {
    /// Runs one step, number `step` of this session from 0, after `updates` that ended with an update.
    ///
    /// # Errors
    /// An op failed, or everything was called off.
    pub fn step(
        &mut self,
        device: &mut dyn Device,
        (step, updates): (u64, u64),
        batch: &Arc<Batch>,
        update: Option<&Update>,
    ) -> anyhow::Result<DeviceRecord> {
        device.begin(batch);
        let range = self.plan.graph.schedule().range(self.number);
        let mut record = DeviceRecord { ops: Vec::with_capacity(range.len()), ..DeviceRecord::default() };
        record.ready = self.meet(step)?;
        let mut index = range.start;
        while index < range.end {
            let opens_pair = self.plan.graph.op(index).opens_pair();
            if opens_pair {
                self.pair(device, step, index, &mut record)?
            } else {
                self.op(device, step, index, &mut record)?
            }
            index += if opens_pair { 2 } else { 1 };
        }
        record.losses = device.losses().map(<[f32]>::to_vec);
        self.finish(device, updates, update, &mut record)?;
        Ok(record)
    }

    /// All devices begin a step together: this one's time of arrival.
    fn meet(&self, step: u64) -> Result<u64, Aborted> {
        let all = (step + 1) * u64::from(self.plan.graph.schedule().devices());
        self.watch.note_done(self.number, 0);
        self.gate.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0_u32;
        while self.gate.load(Ordering::SeqCst) < all {
            if self.watch.is_aborted() {
                return Err(Aborted);
            }
            spins += 1;
            if spins < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        Ok(self.watch.now_ns())
    }

    fn op(
        &mut self,
        device: &mut dyn Device,
        step: u64,
        index: usize,
        record: &mut DeviceRecord,
    ) -> anyhow::Result<()> {
        let turn = self.watch.now_ns();
        self.wait(index, step)?;
        self.compute(device, step, index, turn, record)?;
        self.put(index, step, record)
    }

    /// An overlapped pair: its ops in turn, but both inputs are awaited first (unless the graph says they are not), and
    /// both outputs put last. A CPU cannot run two ops faster together than one after the other.
    fn pair(
        &mut self,
        device: &mut dyn Device,
        step: u64,
        first: usize,
        record: &mut DeviceRecord,
    ) -> anyhow::Result<()> {
        let turn = self.watch.now_ns();
        self.wait(first, step)?;
        if self.plan.graph.overlap() != Overlap::Runtime {
            self.wait(first + 1, step)?;
        }
        self.compute(device, step, first, turn, record)?;
        let turn = self.watch.now_ns();
        self.wait(first + 1, step)?;
        self.compute(device, step, first + 1, turn, record)?;
        self.put(first, step, record)?;
        self.put(first + 1, step, record)
    }

    /// Waits for the input of op number `index`.
    fn wait(&self, index: usize, step: u64) -> Result<(), Aborted> {
        let Some(port) = self.plan.inputs[index].filter(|port| port.crosses) else { return Ok(()) };
        self.watch.note_wait(self.number, true);
        self.link.wait(&port, step, &self.watch)?;
        self.watch.note_wait(self.number, false);
        Ok(())
    }

    /// Computes op number `index`, whose input is there. What another device needs of it is left in the op's staging.
    fn compute(
        &mut self,
        device: &mut dyn Device,
        step: u64,
        index: usize,
        turn: u64,
        record: &mut DeviceRecord,
    ) -> anyhow::Result<()> {
        self.inject(record.ops.len())?;
        let (input, output) = (self.plan.inputs[index], self.plan.outputs[index]);
        let mut laps = Vec::new();
        let (start, end) = {
            let received = input.map(|port| self.link.memory(&port));
            let mut local = output.filter(|port| !port.crosses).map(|port| self.link.memory(&port));
            let target = match (&mut local, output) {
                (Some(memory), _) => Some(memory.as_mut_slice()),
                (None, Some(_)) => Some(self.staging[index % 2].as_mut_slice()),
                (None, None) => None,
            };
            let start = self.watch.now_ns();
            let op = self.plan.graph.op(index);
            device.compute(op, received.as_ref().map(|memory| memory.as_slice()), target, &mut laps)?;
            (start, self.watch.now_ns())
        };
        if let Some(port) = input {
            self.link.release(&port, step);
        }
        let number = record.ops.len() as u32;
        record.laps.extend(laps.into_iter().map(|lap| (number, lap)));
        record.ops.push(OpRecord { index, turn, start, end, put_start: end, put_end: end });
        self.watch.note_done(self.number, record.ops.len());
        Ok(())
    }

    /// Puts what op number `index`, one of the last two computed, made for another device.
    fn put(&self, index: usize, step: u64, record: &mut DeviceRecord) -> anyhow::Result<()> {
        let Some(port) = self.plan.outputs[index].filter(|port| port.crosses) else { return Ok(()) };
        let last = record.ops.iter().map(|op| op.put_end).next_back().unwrap_or(0);
        self.link.wait_credit(&port, step, &self.watch)?;
        self.link.put(&port, step, &self.staging[index % 2]);
        if let Some(op) = record.ops.iter_mut().rev().find(|op| op.index == index) {
            (op.put_start, op.put_end) = (last, self.watch.now_ns());
        }
        Ok(())
    }

    fn finish(
        &self,
        device: &mut dyn Device,
        updates: u64,
        update: Option<&Update>,
        record: &mut DeviceRecord,
    ) -> Result<(), Aborted> {
        let now = || self.watch.now_ns();
        let Some(update) = update else {
            return Ok(());
        };
        if !self.replicas.is_empty() {
            self.add_up_replicas(device, updates, record)?;
        }
        if let Some((side, gradient)) = device.tied() {
            let start = now();
            self.link.put_tied(side, updates, gradient, &self.watch)?;
            record.steps.push(("put", start, now()));
            let mut start = 0;
            self.link.take_tied(side, updates, &self.watch, |other| {
                start = now();
                device.add_tied(other);
            })?;
            record.steps.push(("reduce", start, now()));
        }
        let mut scale = 1.0;
        if let Some(clip) = update.clip {
            let start = now();
            self.link.put_norms(updates, device.squared_norms());
            record.steps.push(("norm", start, now()));
            let norm = self.link.sum_norms(updates, &self.watch)?.sqrt();
            scale = clip_scale(norm, clip);
        }
        let start = now();
        device.update(update, scale);
        record.steps.push(("optimizer", start, now()));
        Ok(())
    }

    /// Exchanges the gradients of the stages that other devices hold too.
    fn add_up_replicas(&self, device: &mut dyn Device, updates: u64, record: &mut DeviceRecord) -> Result<(), Aborted> {
        let held = self.plan.graph.schedule().placement.held_by(self.number);
        let start = self.watch.now_ns();
        for &Chunk { stage, direction } in held {
            let fill = |data: &mut Vec<f32>| device.stage_gradient(stage, data);
            self.replicas.put((stage, direction), updates, &self.watch, fill)?;
        }
        record.steps.push(("put", start, self.watch.now_ns()));
        for &Chunk { stage, direction } in held {
            let mut start = 0;
            self.replicas.take((stage, direction), updates, &self.watch, |other| {
                start = self.watch.now_ns();
                device.add_stage_gradient(stage, other);
            })?;
            record.steps.push(("reduce", start, self.watch.now_ns()));
        }
        Ok(())
    }

    fn inject(&self, number: usize) -> anyhow::Result<()> {
        let Some(fault) = self.fault.filter(|fault| fault.device == self.number && fault.number == number) else {
            return Ok(());
        };
        if !fault.hangs {
            panic!("injected fault at op number {number}");
        }
        while !self.watch.is_aborted() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Err(Aborted.into())
    }
}

/// Factor that brings a gradient of norm `norm` down to `clip`, as torch.nn.utils.clip_grad_norm_ does.
fn clip_scale(norm: f64, clip: f32) -> f32 {
    (f64::from(clip) / (norm + 1e-6)).min(1.0) as f32
}
