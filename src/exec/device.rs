//! Devices that compute on the calling thread, and [`Timed`], which only waits.

use pipesim_cost::CostTable;
use pipesim_schedule::epilogue::GradientSync;
use pipesim_schedule::op::Op;
use pipesim_train::compute::OptimizerShare;
use pipesim_train::model::{AdamW, CopyWork, Parameters, PartTiming, Quantity, TensorPart};
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The tokens of one training step: m micro-batches of each replica, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Input tokens.
    pub inputs: Vec<u32>,
    /// The token after each.
    pub targets: Vec<u32>,
}

impl Batch {
    /// Splits the batch into the parts of `replicas` replicas, in order.
    pub(super) fn split(batch: &Arc<Batch>, replicas: u32) -> Vec<Arc<Batch>> {
        if replicas == 1 {
            return vec![batch.clone()];
        }
        let part = |tokens: &[u32], number: usize| {
            let length = tokens.len() / replicas as usize;
            tokens[number * length..(number + 1) * length].to_vec()
        };
        let of = |number| Batch { inputs: part(&batch.inputs, number), targets: part(&batch.targets, number) };
        (0..replicas as usize).map(|number| Arc::new(of(number))).collect()
    }
}

/// The optimizer step at the end of a training step.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// Number of this update, from 1.
    pub number: u32,
    pub adamw: AdamW,
    /// Largest gradient norm; larger gradients are scaled down to it.
    pub clip: Option<f32>,
}

/// State of a device that outlives a step; empty by default. Methods fail only if memory or a driver does.
pub trait State {
    /// Clears the gradients and the remains of an aborted step.
    fn clear(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Saves parameters and optimizer state.
    fn save(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Restores what was saved.
    fn restore(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// The tensors whose parameters this device holds.
    fn tensors(&self) -> Vec<TensorPart> {
        Vec::new()
    }

    /// Copies this device's parameters, gradients or moments into the tensors of the whole model.
    fn export(&mut self, _into: &mut Parameters, _what: Quantity) -> anyhow::Result<()> {
        Ok(())
    }

    /// Copies this device's parameters or moments from the tensors of the whole model. Gradients cannot be imported.
    fn import(&mut self, _from: &Parameters, _what: Quantity) -> anyhow::Result<()> {
        Ok(())
    }

    /// The type behind it, if it holds a part of a model.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// Peak memory held for backward passes, in bytes.
    fn peak_held_bytes(&self) -> usize {
        0
    }

    /// Changes of the memory held for backward passes in the last step, in order: by which op, and how many bytes.
    fn held_changes(&self) -> Vec<(Op, i64)> {
        Vec::new()
    }
}

/// A device that computes on the calling thread: ops of its stages, and its part of the step ops.
pub trait Device: State + Send {
    /// Begins a step with these tokens. With `forwards_only`, nothing follows a forward, which leaves nothing behind.
    fn begin(&mut self, _batch: &Arc<Batch>, _forwards_only: bool) -> anyhow::Result<()> {
        Ok(())
    }

    /// Computes `op`. `input` comes from the previous stage (F) or the next (I, B) and is absent at the ends; `output` is filled
    /// for the following stage and is absent at the ends and for W. Times of parts are appended to `timings`.
    ///
    /// # Errors
    /// The op cannot be computed; the run ends.
    fn compute(
        &mut self,
        op: Op,
        input: Option<&[f32]>,
        output: Option<&mut [f32]>,
        timings: &mut Vec<PartTiming>,
    ) -> anyhow::Result<()>;

    /// Returns the copy of `op`, an OFFLOAD or RELOAD, for another thread to run while ops run here.
    ///
    /// # Errors
    /// The device does not copy, or the op is out of order.
    fn copy(&mut self, op: Op) -> anyhow::Result<CopyWork> {
        anyhow::bail!("expected a device that copies to the host, found one that does not ({op}): run another schedule")
    }

    /// Copies this worker's part of a gradient that other workers also hold to the beginning of `into`.
    fn gradient(&mut self, _gradient: GradientSync, _into: &mut [f32]) -> anyhow::Result<()> {
        Ok(())
    }

    /// Adds another worker's part.
    fn add_gradient(&mut self, _gradient: GradientSync, _other: &[f32]) -> anyhow::Result<()> {
        Ok(())
    }

    /// Replaces this worker's part with another's: the first summand, unless it is this worker's own.
    fn set_gradient(&mut self, _gradient: GradientSync, _other: &[f32]) -> anyhow::Result<()> {
        Ok(())
    }

    /// Copies the parameters of a stage that this worker has updated to their places in `into`.
    fn copy_values(&mut self, _gradient: GradientSync, _into: &mut [f32]) -> anyhow::Result<()> {
        Ok(())
    }

    /// Replaces parameters of a stage by the ones that the worker with the share `of` has updated.
    fn replace_values(&mut self, _gradient: GradientSync, _of: OptimizerShare, _other: &[f32]) -> anyhow::Result<()> {
        Ok(())
    }

    /// Returns the partial sums of squares of the gradient norm, by order number.
    fn squared_norms(&mut self) -> anyhow::Result<Vec<(usize, f64)>> {
        Ok(Vec::new())
    }

    /// Updates the parameters with the gradients times `scale`, then clears the gradients.
    fn update(&mut self, _update: &Update, _scale: f32) -> anyhow::Result<()> {
        Ok(())
    }

    /// Returns the loss of each micro-batch, on the device that holds the head.
    fn losses(&mut self) -> anyhow::Result<Option<Vec<f32>>> {
        Ok(None)
    }
}

/// A device whose ops only wait for their predicted duration. Data and waits are real, so that the executor itself can be measured
/// with more devices than cores.
pub struct Timed {
    costs: Arc<CostTable>,
    /// The last part of each op's duration, for which the thread spins instead of sleeping.
    spin: Duration,
}

impl Timed {
    /// Creates a device whose ops take as long as in `costs`.
    pub fn new(costs: Arc<CostTable>, spin: Duration) -> Timed {
        Timed { costs, spin }
    }
}

impl State for Timed {}

impl Device for Timed {
    fn compute(
        &mut self,
        op: Op,
        _input: Option<&[f32]>,
        _output: Option<&mut [f32]>,
        _laps: &mut Vec<PartTiming>,
    ) -> anyhow::Result<()> {
        last(Duration::from_nanos(self.costs.to_ns(self.costs.of(op).duration)), self.spin);
        Ok(())
    }

    fn copy(&mut self, op: Op) -> anyhow::Result<CopyWork> {
        let (duration, spin) = (Duration::from_nanos(self.costs.to_ns(self.costs.of(op).duration)), self.spin);
        Ok(Box::new(move || {
            last(duration, spin);
            Ok(())
        }))
    }
}

/// Waits; spins for the last part of it.
fn last(duration: Duration, spin: Duration) {
    let end = Instant::now() + duration;
    let sleep = end.saturating_duration_since(Instant::now()).saturating_sub(spin);
    if !sleep.is_zero() {
        std::thread::sleep(sleep);
    }
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
