//! Memory that a layout has and needs, whatever the schedule.

use super::Analytic;
use pipesim_models::layout::{ParallelConfig, Recompute};
use pipesim_models::memory::Memory;
use pipesim_models::model_spec::Stage;
use pipesim_schedule::moments::Moments;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use pipesim_schedule::schedule::{Programs, Schedule};
use std::sync::Arc;

impl Analytic {
    /// Returns the costs with this memory capacity per device.
    pub fn with_memory(&self, bytes: u64) -> Analytic {
        let mut analytic = self.clone();
        let set = |analytic: &mut Analytic| Arc::make_mut(&mut analytic.machine).hardware.set_memory(bytes);
        set(&mut analytic);
        analytic.others.values_mut().for_each(set);
        analytic
    }

    /// Returns the activation units that fit on every device, with one stage per device; `None` if the layout cannot be split
    /// that way or less than one fits.
    pub fn room(&self) -> Option<f64> {
        let (stages, memory_model) = (self.stages(self.layout.pp).ok()?, self.memory_model());
        let room = (0..).zip(&stages).map(|(device, stage)| memory_model.room(self.capacity(device), stage));
        let room = room.fold(f64::INFINITY, f64::min);
        (room >= 1.0).then_some(room)
    }

    /// Returns the costs with the fewest recomputed layers per stage with which a schedule with these moments fits into `bytes`; `None` if it
    /// fits without, or not unless some stage recomputes all.
    pub fn with_fewest(&self, bytes: u64, stages: &[Stage], moments: &Moments) -> Option<Analytic> {
        let layout = |layers| ParallelConfig { recompute: Recompute::Block(layers), ..self.layout.clone() };
        let fits = |layers| self.memory_model_under(&layout(layers)).totals(stages, moments).all(|used| used <= bytes);
        let most = stages.iter().map(Stage::layers).max()? as u32;
        let (mut few, mut enough) = (0, most.checked_sub(1)?);
        if fits(few) || !fits(enough) {
            return None;
        }
        while enough - few > 1 {
            let middle = few.midpoint(enough);
            if fits(middle) { enough = middle } else { few = middle }
        }
        self.under(layout(enough)).ok()
    }

    /// Returns a lower bound of the memory of any order on `placement`: the memory of one micro-batch at a time. `None` if the model
    /// cannot be split into its stages.
    pub fn least_memory(&self, placement: &Placement) -> Option<Memory> {
        let one = |device: u32| {
            let mut stages: Vec<u32> =
                placement.held_by(device).iter().filter(|c| c.direction == 0).map(|c| c.stage).collect();
            stages.sort_unstable();
            let forward = stages.iter().map(|&stage| Op::new(Kind::F, stage, 0));
            forward.chain(stages.iter().rev().map(|&stage| Op::new(Kind::B, stage, 0))).collect::<Vec<_>>()
        };
        let programs = Programs::from_iter((0..placement.devices()).map(one));
        let schedule = Schedule::new("one micro-batch", placement.clone(), 1, programs);
        let stages = self.stages(placement.stages()).ok()?;
        Some(self.within(self.memory_model().memory(self.capacity(0), &stages, &schedule)))
    }

    /// Returns the memory of a pipeline device, in bytes.
    fn capacity(&self, device: u32) -> u64 {
        self.on(device).machine.hardware.memory_bytes()
    }

    /// Returns the memory with the capacities of the devices, if they differ.
    pub(super) fn within(&self, memory: Memory) -> Memory {
        if self.others.is_empty() { memory } else { memory.within_each(|device| self.capacity(device)) }
    }
}
