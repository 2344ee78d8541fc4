//! A thread of the CPU for a program to run on: a device that computes at once, data in the arena, times by the host's clock.

use super::arena::Region;
use super::device::{Batch, Device, State, Update};
use super::link::Local;
use super::plan::Port;
use super::program::{Machine, Program, Runner};
use super::record::DeviceRecord;
use super::shared::Shared;
use super::watch::Fault;
use crate::ending::Twofold;
use crate::model::Lap;
use crate::op::Op;
use crate::placement::Chunk;
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device with the thread that it computes on.
pub struct Host {
    number: u32,
    device: Box<dyn Device>,
    shared: Arc<Shared>,
    /// This step's, with the numbers of their ops.
    laps: Vec<(u32, Lap)>,
    squares: Vec<(usize, f64)>,
    /// A stage's gradient on its way to the device that holds it too.
    gradient: Vec<f32>,
}

impl Host {
    /// Device number `number` of a session, with its program.
    pub fn runner(
        number: u32,
        device: Box<dyn Device>,
        shared: &Arc<Shared>,
        fault: Option<Fault>,
    ) -> (u32, Box<dyn Runner>) {
        let (laps, squares, gradient) = (Vec::new(), Vec::new(), Vec::new());
        let host = Host { number, device, shared: shared.clone(), laps, squares, gradient };
        let link = Box::new(Local::new(shared.clone()));
        (number, Box::new(Program::new(number, host, link, shared.clone(), fault)))
    }
}

impl Machine for Host {
    type Place = Region;
    type Moment = u64;

    fn begin(&mut self, batch: &Arc<Batch>) -> Result<()> {
        self.laps.clear();
        self.device.begin(batch);
        Ok(())
    }

    fn mark(&mut self) -> Result<u64> {
        Ok(self.shared.watch.now_ns())
    }

    fn ns(&self, moment: &u64) -> Result<u64> {
        Ok(*moment)
    }

    fn local(&self, port: &Port) -> Option<Region> {
        Some(self.shared.mailboxes.slot(port).data)
    }

    /// A CPU cannot run the two ops of an overlapped pair faster together than one after the other.
    fn compute(&mut self, number: usize, op: Op, input: Option<Region>, output: Option<Region>) -> Result<()> {
        let arena = self.shared.heap.arena();
        // SAFETY: it has arrived, or an op of this device made it, and it is released when this is over.
        let input = input.map(|place| unsafe { arena.data(place) });
        // SAFETY: an outbox is this device's own; of its own slots, the op that reads the last message comes before this one.
        let output = output.map(|place| unsafe { arena.data_mut(place) });
        let mut laps = Vec::new();
        self.device.compute(op, input, output, &mut laps)?;
        self.laps.extend(laps.into_iter().map(|lap| (number as u32, lap)));
        self.shared.watch.note_done(self.number, number + 1);
        Ok(())
    }

    fn give(&mut self, gradient: Twofold, place: Region) -> Result<()> {
        // SAFETY: the link says that it is free.
        let place = unsafe { self.shared.heap.arena().data_mut(place) };
        match gradient {
            Twofold::Tied => place.copy_from_slice(self.device.tied_gradient()),
            Twofold::Stage(Chunk { stage, .. }) => {
                self.device.stage_gradient(stage, &mut self.gradient);
                place[..self.gradient.len()].copy_from_slice(&self.gradient);
            }
        }
        Ok(())
    }

    fn add(&mut self, gradient: Twofold, place: Region) -> Result<()> {
        // SAFETY: it has arrived, and is released when this is over.
        let other = unsafe { self.shared.heap.arena().data(place) };
        match gradient {
            Twofold::Tied => self.device.add_tied(other),
            Twofold::Stage(Chunk { stage, .. }) => self.device.add_stage_gradient(stage, other),
        }
        Ok(())
    }

    fn square(&mut self) -> Result<()> {
        self.squares = self.device.squared_norms();
        Ok(())
    }

    fn squares(&mut self) -> Result<Vec<(usize, f64)>> {
        Ok(std::mem::take(&mut self.squares))
    }

    fn update(&mut self, update: &Update, scale: f32) -> Result<()> {
        self.device.update(update, scale);
        Ok(())
    }

    fn losses(&mut self) -> Result<Option<Vec<f32>>> {
        Ok(self.device.losses().map(<[f32]>::to_vec))
    }

    fn finish(&mut self, _sent: &BTreeMap<usize, [u64; 2]>, record: &mut DeviceRecord) -> Result<()> {
        record.laps = std::mem::take(&mut self.laps);
        Ok(())
    }

    fn state(&mut self) -> &mut dyn State {
        &mut *self.device
    }
}
