//! The backend of devices that compute on their own thread: data is in the arena, times are of the host's clock.

use super::arena::Region;
use super::device::{Batch, Device, State, Update};
use super::host_queues::HostQueues;
use super::link::Local;
use super::plan::BufferUse;
use super::program::{Backend, Program, Runner};
use super::record::{DeviceRecord, OpRecord};
use super::shared::Shared;
use super::watch::Fault;
use anyhow::{Context as _, Result};
use pipesim_schedule::epilogue::GradientSync;
use pipesim_schedule::op::Op;
use pipesim_train::compute::OptimizerShare;
use pipesim_train::model::PartTiming;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device on the thread that runs its program.
pub struct Host {
    number: u32,
    device: Box<dyn Device>,
    shared: Arc<Shared>,
    /// Times of the parts in this step, with the numbers of their ops.
    timings: Vec<(u32, PartTiming)>,
    squares: Vec<(usize, f64)>,
    /// Where copies to and from the host run, if its program has some.
    queues: Option<HostQueues>,
}

impl Host {
    /// Creates the device of worker `number` of a session, with its program.
    ///
    /// # Errors
    /// The system does not allow the threads of copies to the host.
    pub fn runner(
        number: u32,
        device: Box<dyn Device>,
        shared: &Arc<Shared>,
        fault: Option<Fault>,
    ) -> Result<(u32, Box<dyn Runner>)> {
        let program = shared.plan.graph.schedule().program(shared.mesh.device(number));
        let copies = program.iter().any(|op| !op.kind().is_compute());
        let queues = copies.then(|| HostQueues::start(number, shared)).transpose()?;
        let host = Host { number, device, shared: shared.clone(), timings: Vec::new(), squares: Vec::new(), queues };
        let link = Box::new(Local::new(number, shared.clone()));
        Ok((number, Box::new(Program::new(number, host, link, shared.clone(), fault))))
    }
}

impl Host {
    /// Notes that `computed` ops and all copies so far are done or in their queues.
    fn note_done(&self, computed: usize) {
        let copies = self.queues.as_ref().map_or(0, HostQueues::begun);
        self.shared.watch.note_done(self.number, computed + copies);
    }
}

impl Backend for Host {
    type Location = Region;
    type Timestamp = u64;

    fn begin(&mut self, batch: &Arc<Batch>, forwards_only: bool) -> Result<()> {
        self.timings.clear();
        self.queues.iter_mut().for_each(HostQueues::begin);
        self.device.begin(batch, forwards_only)
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
        let mut timings = Vec::new();
        self.device.compute(op, input, output, &mut timings)?;
        self.timings.extend(timings.into_iter().map(|timing| (number as u32, timing)));
        self.note_done(number + 1);
        Ok(())
    }

    fn copy(&mut self, number: usize, index: usize, op: Op, after: &[usize]) -> Result<()> {
        let work = self.device.copy(op)?;
        self.queues.as_mut().context("expected queues for copies")?.add(op, index, after, work)?;
        self.note_done(number);
        Ok(())
    }

    fn wait_for_copies(&mut self, copies: &[usize]) -> Result<()> {
        self.queues.as_mut().map_or(Ok(()), |queues| queues.wait(copies, &self.shared))
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
        record.timings = std::mem::take(&mut self.timings);
        let copies: Vec<usize> = record.host_copies.iter().map(|copy| copy.index).collect();
        self.wait_for_copies(&copies)?;
        for copy in &mut record.host_copies {
            let times = self.queues.as_ref().and_then(|queues| queues.times(copy.index));
            let [start, end] = times.context("expected the times of a copy")?;
            *copy = OpRecord { start, end, put_start: end, put_end: end, ..*copy };
        }
        Ok(())
    }

    fn state(&mut self) -> &mut dyn State {
        &mut *self.device
    }
}
