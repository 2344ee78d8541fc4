//! The backend of devices that compute on their own thread: data is in the arena, times are of the host's clock.

use super::arena::Region;
use super::device::{Batch, Device, State, Update};
use super::link::Local;
use super::plan::BufferUse;
use super::program::{Backend, Program, Runner};
use super::record::DeviceRecord;
use super::shared::Shared;
use super::watch::Fault;
use crate::compute::OptimizerShare;
use crate::epilogue::GradientSync;
use crate::model::PartTiming;
use crate::op::Op;
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device on the thread that runs its program.
pub struct Host {
    number: u32,
    device: Box<dyn Device>,
    shared: Arc<Shared>,
    /// Times of the parts in this step, with the numbers of their ops.
    laps: Vec<(u32, PartTiming)>,
    squares: Vec<(usize, f64)>,
}

impl Host {
    /// Creates the device of worker `number` of a session, with its program.
    pub fn runner(
        number: u32,
        device: Box<dyn Device>,
        shared: &Arc<Shared>,
        fault: Option<Fault>,
    ) -> (u32, Box<dyn Runner>) {
        let host = Host { number, device, shared: shared.clone(), laps: Vec::new(), squares: Vec::new() };
        let link = Box::new(Local::new(number, shared.clone()));
        (number, Box::new(Program::new(number, host, link, shared.clone(), fault)))
    }
}

impl Backend for Host {
    type Location = Region;
    type Timestamp = u64;

    fn begin(&mut self, batch: &Arc<Batch>) -> Result<()> {
        self.laps.clear();
        self.device.begin(batch)
    }

    fn timestamp(&mut self) -> Result<u64> {
        Ok(self.shared.watch.now_ns())
    }

    fn ns(&self, timestamp: &u64) -> Result<u64> {
        Ok(*timestamp)
    }

    fn local(&self, port: &BufferUse) -> Option<Region> {
        Some(self.shared.buffers.slot(self.number, port).data)
    }

    /// Runs the two ops of an overlapped pair one after the other: a CPU gains nothing by overlapping them.
    fn compute(&mut self, number: usize, op: Op, input: Option<Region>, output: Option<Region>) -> Result<()> {
        let (arena, buffers) = (self.shared.heap.arena(), &self.shared.buffers);
        let [input, output] = [input, output].map(|place| place.map(|place| buffers.of_slice(op, place)));
        // SAFETY: the message has arrived, or an op of this device wrote it; it is released after this call.
        let input = input.map(|place| unsafe { arena.data(place) });
        // SAFETY: the send buffer is this device's own; in its local buffers, the reader of the last message precedes this op.
        let output = output.map(|place| unsafe { arena.data_mut(place) });
        let mut laps = Vec::new();
        self.device.compute(op, input, output, &mut laps)?;
        self.laps.extend(laps.into_iter().map(|lap| (number as u32, lap)));
        self.shared.watch.note_done(self.number, number + 1);
        Ok(())
    }

    fn copy_gradient(&mut self, gradient: GradientSync, place: Region) -> Result<()> {
        // SAFETY: the link has reported the buffer as free.
        let place = unsafe { self.shared.heap.arena().data_mut(place) };
        self.device.gradient(gradient, place)
    }

    fn add_gradient(&mut self, gradient: GradientSync, place: Region) -> Result<()> {
        // SAFETY: the message has arrived, and is released after this call.
        let other = unsafe { self.shared.heap.arena().data(place) };
        self.device.add_gradient(gradient, other)
    }

    fn set_gradient(&mut self, gradient: GradientSync, place: Region) -> Result<()> {
        // SAFETY: the message has arrived, and is released after this call.
        let other = unsafe { self.shared.heap.arena().data(place) };
        self.device.set_gradient(gradient, other)
    }

    fn copy_values(&mut self, gradient: GradientSync, place: Region) -> Result<()> {
        // SAFETY: the link has reported the buffer as free.
        let place = unsafe { self.shared.heap.arena().data_mut(place) };
        self.device.copy_values(gradient, place)
    }

    fn replace_values(&mut self, gradient: GradientSync, of: OptimizerShare, place: Region) -> Result<()> {
        // SAFETY: the message has arrived, and is released after this call.
        let other = unsafe { self.shared.heap.arena().data(place) };
        self.device.replace_values(gradient, of, other)
    }

    fn square(&mut self) -> Result<()> {
        self.squares = self.device.squared_norms()?;
        Ok(())
    }

    fn squares(&mut self) -> Result<Vec<(usize, f64)>> {
        Ok(std::mem::take(&mut self.squares))
    }

    fn update(&mut self, update: &Update, scale: f32) -> Result<()> {
        self.device.update(update, scale)
    }

    fn losses(&mut self) -> Result<Option<Vec<f32>>> {
        self.device.losses()
    }

    fn finish(&mut self, _sent: &BTreeMap<usize, [u64; 2]>, record: &mut DeviceRecord) -> Result<()> {
        record.laps = std::mem::take(&mut self.laps);
        Ok(())
    }

    fn state(&mut self) -> &mut dyn State {
        &mut *self.device
    }
}
