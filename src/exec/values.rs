//! The exchange of updated parameters among workers that share the optimizer's work (ZeRO-1): an all-gather, after the
//! reduce-scatter of gradients. GPUs make one collective call.
//!
//! Slices use the buffers of the stage's gradient, which all readers have finished reading by then.

use super::message::Use;
use super::program::{Backend, Program};
use anyhow::Result;
use pipesim_schedule::epilogue::{GradientSync, StepOp};
use pipesim_train::compute::OptimizerShare;

impl<M: Backend> Program<M> {
    /// Puts the parameters that this worker has updated, once the others have summed its part of the gradient.
    pub(super) fn put_values(&mut self, gradients: &[GradientSync], updates: u64) -> Result<()> {
        for &gradient in gradients {
            let Some(parts) = self.parts(gradient, updates, Use::Values) else { continue };
            let out = parts.messages[parts.own];
            let place = self.waiting(|program| program.link.send_buffer(out))?;
            self.timed(StepOp::PutValues, |program| {
                program.backend.copy_values(gradient, place)?;
                program.waiting(|program| program.link.put(out))
            })?;
        }
        Ok(())
    }

    /// Copies the parameters that the other members of each gradient's group have updated.
    pub(super) fn gather(&mut self, gradients: &[GradientSync], updates: u64) -> Result<()> {
        for &gradient in gradients {
            let Some(parts) = self.parts(gradient, updates, Use::Values) else {
                self.timed(StepOp::Gather, |program| program.backend.gather_values(gradient))?;
                continue;
            };
            let others = || parts.messages.iter().copied().enumerate().filter(|&(member, _)| member != parts.own);
            let mut places = Vec::with_capacity(parts.messages.len());
            for (member, message) in others() {
                places.push((member, self.waiting(|program| program.link.wait(message))?));
            }
            let members = parts.messages.len();
            self.timed(StepOp::Gather, |program| {
                let mut set = |(member, place)| {
                    program.backend.replace_values(gradient, OptimizerShare { member, members }, place)
                };
                places.into_iter().try_for_each(&mut set)
            })?;
            others().try_for_each(|(_, message)| self.link.release(message))?;
        }
        Ok(())
    }
}
