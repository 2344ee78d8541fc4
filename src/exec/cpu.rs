//! A CPU as a device, with its part of the model.

use super::device::{Batch, Device, State, Update};
use crate::epilogue::GradientSync;
use crate::model::{Parameters, PartTiming, Quantity, Shard, Signal, Snapshot};
use crate::op::{Kind, Op};
use crate::placement::Chunk;
use std::sync::Arc;

/// A device that computes on its own thread.
pub struct Cpu {
    shard: Shard,
    batch: Arc<Batch>,
    tokens_per_microbatch: usize,
    saved: Option<Snapshot>,
    /// Gradient of a stage, on its way to the device that holds another copy of it.
    gradient: Vec<f32>,
}

impl Cpu {
    /// Creates a device from its part of the model. A micro-batch has `tokens_per_microbatch` tokens.
    pub fn new(shard: Shard, tokens_per_microbatch: usize) -> Cpu {
        Cpu { shard, batch: Arc::default(), tokens_per_microbatch, saved: None, gradient: Vec::new() }
    }
}

impl State for Cpu {
    fn clear(&mut self) -> anyhow::Result<()> {
        self.shard.zero_gradients();
        Ok(())
    }

    fn save(&mut self) -> anyhow::Result<()> {
        self.saved = Some(self.shard.snapshot());
        Ok(())
    }

    fn restore(&mut self) -> anyhow::Result<()> {
        if let Some(saved) = self.saved.take() {
            self.shard.restore(&saved);
        }
        Ok(())
    }

    fn export(&mut self, into: &mut Parameters, what: Quantity) -> anyhow::Result<()> {
        self.shard.export(into, what);
        Ok(())
    }

    fn import(&mut self, from: &Parameters, what: Quantity) -> anyhow::Result<()> {
        self.shard.import(from, what)
    }

    fn peak_held_bytes(&self) -> usize {
        self.shard.peak_held_bytes()
    }
}

impl Device for Cpu {
    fn begin(&mut self, batch: &Arc<Batch>) {
        self.batch = batch.clone();
    }

    fn compute(
        &mut self,
        op: Op,
        input: Option<&[f32]>,
        output: Option<&mut [f32]>,
        laps: &mut Vec<PartTiming>,
    ) -> anyhow::Result<()> {
        let (stage, microbatch) = (op.stage(), op.microbatch());
        let tokens =
            microbatch as usize * self.tokens_per_microbatch..(microbatch as usize + 1) * self.tokens_per_microbatch;
        match op.kind() {
            Kind::F => {
                let batch = self.batch.clone();
                let signal = input.map_or_else(|| Signal::Tokens(&batch.inputs[tokens.clone()]), Signal::Hidden);
                let targets = output.is_none().then(|| &batch.targets[tokens]);
                self.shard.forward(stage, microbatch, signal, targets, output, laps)
            }
            Kind::I => self.shard.backward_input(stage, microbatch, input, output, laps),
            Kind::W => self.shard.backward_weight(stage, microbatch, laps),
            Kind::B => {
                self.shard.backward_input(stage, microbatch, input, output, laps)?;
                self.shard.backward_weight(stage, microbatch, laps)
            }
        }
    }

    fn gradient(&mut self, gradient: GradientSync, into: &mut [f32]) {
        match gradient {
            GradientSync::Tied => into.copy_from_slice(self.shard.tied_gradient()),
            GradientSync::Stage(Chunk { stage, .. }) => {
                self.shard.stage_gradient(stage, &mut self.gradient);
                into[..self.gradient.len()].copy_from_slice(&self.gradient);
            }
        }
    }

    fn add_gradient(&mut self, gradient: GradientSync, other: &[f32]) {
        match gradient {
            GradientSync::Tied => self.shard.add_tied_gradient(other),
            GradientSync::Stage(Chunk { stage, .. }) => self.shard.add_stage_gradient(stage, other),
        }
    }

    fn squared_norms(&self) -> Vec<(usize, f64)> {
        self.shard.squared_norms()
    }

    fn update(&mut self, update: &Update, scale: f32) {
        self.shard.adamw(update.number, &update.adamw, scale);
        self.shard.zero_gradients();
    }

    fn losses(&self) -> Option<&[f32]> {
        self.shard.has_head().then(|| self.shard.losses())
    }
}
