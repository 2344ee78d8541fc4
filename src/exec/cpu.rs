//! The trainer as a device: its state on any machine, and its ops on a CPU.

use super::device::{Batch, Device, State, Update};
use anyhow::Result;
use pipesim_schedule::epilogue::GradientSync;
use pipesim_schedule::op::Op;
use pipesim_train::compute::{Compute, OptimizerShare, Stopwatch};
use pipesim_train::model::{CopyWork, Cpu, Parameters, PartTiming, Quantity, StageModule, TensorPart};
use std::any::Any;
use std::sync::Arc;

impl<C: Compute + 'static> State for StageModule<C> {
    fn clear(&mut self) -> Result<()> {
        self.zero_gradients()
    }

    fn save(&mut self) -> Result<()> {
        StageModule::save(self)
    }

    fn restore(&mut self) -> Result<()> {
        StageModule::restore(self)
    }

    fn tensors(&self) -> Vec<TensorPart> {
        StageModule::tensors(self)
    }

    fn export(&mut self, into: &mut Parameters, what: Quantity) -> Result<()> {
        StageModule::export(self, into, what)
    }

    fn import(&mut self, from: &Parameters, what: Quantity) -> Result<()> {
        StageModule::import(self, from, what)
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn peak_held_bytes(&self) -> usize {
        StageModule::peak_held_bytes(self)
    }

    fn held_changes(&self) -> Vec<(Op, i64)> {
        StageModule::held_changes(self)
    }
}

impl Device for StageModule<Cpu> {
    fn begin(&mut self, batch: &Arc<Batch>, forwards_only: bool) -> Result<()> {
        self.forwards_only = forwards_only;
        StageModule::begin(self, &batch.inputs, &batch.targets)
    }

    fn compute(
        &mut self,
        op: Op,
        input: Option<&[f32]>,
        output: Option<&mut [f32]>,
        timings: &mut Vec<PartTiming>,
    ) -> Result<()> {
        let mut timer = Stopwatch::default();
        self.run(op, input, output, &mut timer)?;
        timings.append(&mut timer.timings);
        Ok(())
    }

    fn copy(&mut self, op: Op) -> Result<CopyWork> {
        StageModule::copy(self, op)
    }

    fn gradient(&mut self, gradient: GradientSync, into: &mut [f32]) -> Result<()> {
        self.copy_gradient(gradient, into)
    }

    fn add_gradient(&mut self, gradient: GradientSync, other: &[f32]) -> Result<()> {
        self.merge_gradient(gradient, other)
    }

    fn set_gradient(&mut self, gradient: GradientSync, other: &[f32]) -> Result<()> {
        self.replace_gradient(gradient, other)
    }

    fn copy_values(&mut self, gradient: GradientSync, into: &mut [f32]) -> Result<()> {
        StageModule::copy_values(self, gradient, into)
    }

    fn replace_values(&mut self, gradient: GradientSync, of: OptimizerShare, other: &[f32]) -> Result<()> {
        StageModule::replace_values(self, gradient, of, other)
    }

    fn squared_norms(&mut self) -> Result<Vec<(usize, f64)>> {
        self.square()?;
        StageModule::squared_norms(self)
    }

    fn update(&mut self, update: &Update, scale: f32) -> Result<()> {
        StageModule::update(self, update.number, &update.adamw, scale)?;
        self.zero_gradients()
    }

    fn losses(&mut self) -> Result<Option<Vec<f32>>> {
        self.has_head().then(|| StageModule::losses(self)).transpose()
    }
}
