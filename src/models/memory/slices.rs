//! Memory of schedules beyond whole micro-batches: what the ops of each slice save.

use super::Memory;
use super::model::MemoryModel;
use super::units::{SavedUnit, Times, Units};
use crate::model_spec::{MicroBatch, Stage, Storage};
use pipesim_schedule::schedule::Schedule;
use pipesim_schedule::slices::TokenSpan;

impl MemoryModel<'_> {
    /// Returns the memory of every device for a schedule beyond whole micro-batches, whose sequences are cut into `spans`. Its ops run at
    /// `times`, which matter if there are copies.
    pub fn memory_beyond(
        &self,
        bytes: u64,
        stages: &[Stage],
        schedule: &Schedule,
        spans: &[TokenSpan],
        times: Option<Times<'_>>,
    ) -> Memory {
        let slices: Vec<MemoryModel<'_>> = match spans.len() {
            0 | 1 => vec![self.clone()],
            _ => spans.iter().map(|&span| self.of_slice(span)).collect(),
        };
        let of = |slice: &MemoryModel<'_>| stages.iter().map(|stage| slice.unit(stage)).collect();
        let units = Units { by_slice: slices.iter().map(of).collect() };
        // the longest slice determines the buffers
        let longest = slices.iter().max_by_key(|slice| slice.micro.tokens).unwrap_or(self);
        let device = |device: u32| {
            let peak = units.peak(schedule, device, times, |peak| longest.taken(peak));
            longest.device_at(device, stages, schedule, peak)
        };
        let per_device = (0..schedule.devices()).map(device).collect();
        Memory { capacity_bytes: 0, fits: false, per_device }.within(bytes)
    }

    /// Returns the memory model of a slice, whose tokens also attend to earlier ones.
    fn of_slice(&self, TokenSpan { before, tokens }: TokenSpan) -> MemoryModel<'_> {
        let rows = u64::from(self.layout.micro_batch_size) * u64::from(tokens) / u64::from(self.layout.cp.max(1));
        let micro = MicroBatch { sequences: 1, tokens: usize::try_from(rows).unwrap_or(usize::MAX) };
        let storage = Storage { keys: (before + tokens) as usize, ..self.storage };
        MemoryModel { micro, storage, is_slice: true, ..self.clone() }
    }

    /// Returns what ops save of one unit of a stage.
    fn unit(&self, stage: &Stage) -> SavedUnit {
        let saved = self.left(stage);
        let keys = self.spec.keys(stage, self.micro, &self.storage);
        SavedUnit { saved, stub: self.stub(stage).min(saved.forward), keys }
    }

    /// Returns the mean shares of what F saves on `stages` that it keeps if the unit is recomputed, and of keys and values.
    pub fn shares(&self, stages: &[Stage], is_cut: bool) -> [f64; 2] {
        let model = MemoryModel { is_slice: is_cut, ..self.clone() };
        let sum = |of: &dyn Fn(SavedUnit) -> u64| stages.iter().map(|stage| of(model.unit(stage)) as f64).sum::<f64>();
        let forward = sum(&|unit| unit.saved.forward).max(1.0);
        [sum(&|unit| unit.stub) / forward, if is_cut { sum(&|unit| unit.keys) / forward } else { 0.0 }]
    }
}
