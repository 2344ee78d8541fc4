//! What a device must be able to do. Thread, link and clock are not its affair.

use crate::model::{AdamW, Lap};
use crate::op::Op;

/// The tokens of one training step: m micro-batches one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Input tokens.
    pub inputs: Vec<u32>,
    /// The token after each.
    pub targets: Vec<u32>,
}

/// How a step ends.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// Number of this update, from 1.
    pub number: u32,
    /// The optimizer's settings.
    pub adamw: AdamW,
    /// Largest gradient norm; larger gradients are scaled down to it.
    pub clip: Option<f32>,
}

/// What a device keeps from step to step: nothing, unless it says otherwise. All of it can fail only where memory or a driver
/// does.
pub trait State {
    /// Clears the gradients and what a step that was given up left behind.
    fn clear(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Remembers parameters and optimizer state.
    fn save(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Returns to what was remembered.
    fn restore(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Copies what this device owns into a whole model's tensors: parameters, or gradients.
    fn export(&mut self, _into: &mut crate::model::Parameters, _gradients: bool) -> anyhow::Result<()> {
        Ok(())
    }

    /// Highest number of bytes held for backward passes so far.
    fn peak_held_bytes(&self) -> usize {
        0
    }
}

/// A device that computes on the thread that asks it to: ops of its own stages and its part of the step ops, of which a
/// device without parameters has none.
pub trait Device: State + Send {
    /// Takes note of the step's tokens.
    fn begin(&mut self, _batch: &std::sync::Arc<Batch>) {}

    /// Computes `op`. `input` is what the stage before (F) or after (I, B) made, absent at the ends; `output` is filled for
    /// the next stage, absent at the ends and for W. Times of parts go to `laps`.
    ///
    /// # Errors
    /// The op cannot be computed; the run ends.
    fn compute(
        &mut self,
        op: Op,
        input: Option<&[f32]>,
        output: Option<&mut [f32]>,
        laps: &mut Vec<Lap>,
    ) -> anyhow::Result<()>;

    /// This device's part of the tied embedding's gradient; asked for where another device holds the other.
    fn tied_gradient(&self) -> &[f32] {
        &[]
    }

    /// Adds the other side's part.
    fn add_tied(&mut self, _other: &[f32]) {}

    /// Writes the gradient of `stage` so far, for the device that holds a copy of that stage.
    fn stage_gradient(&mut self, _stage: u32, _into: &mut Vec<f32>) {}

    /// Adds the gradient of another copy of `stage`.
    fn add_stage_gradient(&mut self, _stage: u32, _other: &[f32]) {}

    /// Partial squares of the gradient norm, by order number.
    fn squared_norms(&self) -> Vec<(usize, f64)> {
        Vec::new()
    }

    /// Updates the parameters with gradients times `scale`, then clears the gradients.
    fn update(&mut self, _update: &Update, _scale: f32) {}

    /// Loss of each micro-batch, on the device that holds the head.
    fn losses(&self) -> Option<&[f32]> {
        None
    }
}
