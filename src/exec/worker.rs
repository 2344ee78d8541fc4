//! One device's thread: its program in order, op by op, then the step ops.

use super::device::{Batch, Device, Update};
use super::link::Local;
use super::plan::Plan;
use super::record::{DeviceRecord, OpRecord};
use super::watch::{Aborted, Fault, Watch};
use crate::op::Op;
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
    /// Who is where.
    pub watch: Arc<Watch>,
    /// Counts devices that are ready, over all steps.
    pub gate: Arc<AtomicU64>,
    /// Where this device's outputs lie until they are put.
    pub staging: Vec<f32>,
    /// A fault to inject.
    pub fault: Option<Fault>,
}

impl Worker {
    /// Runs one step, number `step` of this session from 0.
    ///
    /// # Errors
    /// An op failed, or everything was called off.
    pub fn step(
        &mut self,
        device: &mut dyn Device,
        step: u64,
        batch: &Arc<Batch>,
        update: Option<&Update>,
    ) -> anyhow::Result<DeviceRecord> {
        device.begin(batch);
        let range = self.plan.graph.schedule().range(self.number);
        let mut record = DeviceRecord { ops: Vec::with_capacity(range.len()), ..DeviceRecord::default() };
        let mut laps = Vec::new();
        record.ready = self.meet(step)?;
        for (number, index) in range.enumerate() {
            self.inject(number)?;
            record.ops.push(self.op(device, step, index, &mut laps)?);
            record.laps.extend(laps.drain(..).map(|lap| (number as u32, lap)));
            self.watch.note_done(self.number, number + 1);
        }
        record.losses = device.losses().map(<[f32]>::to_vec);
        self.finish(device, step, update, &mut record)?;
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
        laps: &mut Vec<crate::model::Lap>,
    ) -> anyhow::Result<OpRecord> {
        let (input, output) = (self.plan.inputs[index], self.plan.outputs[index]);
        let op: Op = self.plan.graph.op(index);
        let turn = self.watch.now_ns();
        if let Some(port) = input.filter(|port| port.crosses) {
            self.watch.note_wait(self.number, true);
            self.link.wait(&port, step, &self.watch)?;
            self.watch.note_wait(self.number, false);
        }
        let (start, end) = {
            let received = input.map(|port| self.link.memory(&port));
            let mut local = output.filter(|port| !port.crosses).map(|port| self.link.memory(&port));
            let target = match (&mut local, output) {
                (Some(memory), _) => Some(memory.as_mut_slice()),
                (None, Some(_)) => Some(self.staging.as_mut_slice()),
                (None, None) => None,
            };
            let start = self.watch.now_ns();
            device.compute(op, received.as_ref().map(|memory| memory.as_slice()), target, laps)?;
            (start, self.watch.now_ns())
        };
        if let Some(port) = input {
            self.link.release(&port, step);
        }
        let mut put_end = end;
        if let Some(port) = output.filter(|port| port.crosses) {
            self.link.wait_credit(&port, step, &self.watch)?;
            self.link.put(&port, step, &self.staging);
            put_end = self.watch.now_ns();
        }
        Ok(OpRecord { index, turn, start, end, put_end })
    }

    fn finish(
        &self,
        device: &mut dyn Device,
        step: u64,
        update: Option<&Update>,
        record: &mut DeviceRecord,
    ) -> Result<(), Aborted> {
        let now = || self.watch.now_ns();
        let Some(update) = update else {
            return Ok(());
        };
        if let Some((side, gradient)) = device.tied() {
            let start = now();
            self.link.put_tied(side, step, gradient, &self.watch)?;
            record.steps.push(("put", start, now()));
            let mut start = 0;
            self.link.take_tied(side, step, &self.watch, |other| {
                start = now();
                device.add_tied(other);
            })?;
            record.steps.push(("reduce", start, now()));
        }
        let mut scale = 1.0;
        if let Some(clip) = update.clip {
            let start = now();
            self.link.put_norms(step, device.squared_norms());
            record.steps.push(("norm", start, now()));
            let norm = self.link.sum_norms(step, &self.watch)?.sqrt();
            scale = clip_scale(norm, clip);
        }
        let start = now();
        device.update(update, scale);
        record.steps.push(("optimizer", start, now()));
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
