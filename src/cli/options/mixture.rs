//! Options for experts.

use super::values::{one_of, whole};
use clap::Args;
use pipesim_answer::question::Question;
use pipesim_models::layout::{CudaGraph, Dispatcher, Routing};

/// Largest degree.
const MOST: u64 = 1 << 12;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Experts of a model on hardware")]
pub struct MixtureOptions {
    /// Expert-parallel size: GPUs of a stage that share the experts; tp x cp x dp = ep x etp x replicas of each expert
    #[arg(long, value_name = "E", default_value_t = 1, aliases = ["expert-model-parallel-size", "expert-parallel-size", "expert-parallel-degree"], value_parser = whole::<u32>(1..=MOST))]
    pub ep: u32,
    /// Expert-tensor-parallel size: GPUs that share each expert [default: --tp with Megatron's stacks, otherwise 1]
    #[arg(long, value_name = "T", aliases = ["expert-tensor-parallel-size", "expert-tensor-parallel-degree"], value_parser = whole::<u32>(1..=MOST))]
    pub etp: Option<u32>,
    /// How tokens get to their experts: alltoall sends each once per expert, deepep and hybridep once per node
    #[arg(long, value_name = "HOW", default_value = "alltoall", aliases = ["moe-token-dispatcher-type", "moe-flex-dispatcher-backend"], value_parser = one_of(Dispatcher::ALL.iter().map(|&d| (d.name(), "", d))))]
    pub dispatcher: Dispatcher,
    /// How tokens are spread over experts: balanced, natural (as a trained router chooses), capacity (padded to the mean) or capacity:1.25 (to more)
    #[arg(long, value_name = "HOW", default_value = "balanced")]
    pub routing: Routing,
    /// What is launched as CUDA graphs: nothing, attention and router, or whole passes
    #[arg(long, value_name = "WHAT", default_value = "none", value_parser = one_of(CudaGraph::ALL.iter().map(|&g| (g.name(), "", g))))]
    pub cuda_graph: CudaGraph,
    /// Hide the experts' communication of a micro-batch behind the computation of another
    #[arg(long, alias = "overlap-moe-expert-parallel-comm")]
    pub moe_overlap: bool,
    /// Compute weight gradients apart from input gradients for --moe-overlap
    #[arg(long, alias = "delay-wgrad-compute")]
    pub delay_wgrad: bool,
    /// Separate passes through the pipeline per step, each with an equal share of the batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=1 << 20))]
    pub rounds: u32,
}

impl MixtureOptions {
    /// Adds these options to a question.
    pub fn ask(&self, question: &mut Question) {
        question.ep = self.ep;
        question.etp = self.etp;
        question.dispatcher = self.dispatcher;
        question.routing = self.routing;
        question.cuda_graph = self.cuda_graph;
        question.moe_overlap = self.moe_overlap;
        question.delay_wgrad = self.delay_wgrad;
        question.rounds = self.rounds;
    }
}
