//! Options for FSDP's collectives between ops.

use super::values::whole;
use clap::Args;
use pipesim_answer::question::Question;
use pipesim_schedule::fsdp::Lookahead;

/// Most stages of a device.
const MOST: u64 = 1 << 20;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "FSDP in a pipeline")]
pub struct FsdpOptions {
    /// Gather and free the parameters of stages between ops as PyTorch 2.15 does, at most R per device at the same time (there: 3); --costs unshard=1,reduce=1 gives the times, or a model with --zero 3
    #[arg(long, value_name = "R", value_parser = whole::<u32>(1..=MOST))]
    pub max_active_stages: Option<u32>,
    /// Number of next stages to gather before an op: full (R), auto (device + 2, at most R), or one number per device [default: full]
    #[arg(long, value_name = "full|auto|A,A,..")]
    pub unshard_lookahead: Option<Lookahead>,
    /// Wait for a reduction of gradients only before the next one, or at the end
    #[arg(long)]
    pub defer_reduce_grad_wait: bool,
}

impl FsdpOptions {
    /// Adds these options to a question.
    pub fn ask(&self, question: &mut Question) {
        question.max_active_stages = self.max_active_stages;
        question.unshard_lookahead.clone_from(&self.unshard_lookahead);
        question.defer_reduce_grad_wait = self.defer_reduce_grad_wait;
    }
}
