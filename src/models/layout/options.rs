//! Options of training software that change the time of a step and, as predicted, not its memory.

use super::{CudaGraph, Dispatcher, ParallelConfig};

/// How tokens get to their experts, what hides that, and what is launched as CUDA graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepOptions {
    /// See [`ParallelConfig::dispatcher`].
    pub dispatcher: Dispatcher,
    /// See [`ParallelConfig::cuda_graph`].
    pub cuda_graph: CudaGraph,
    /// See [`ParallelConfig::moe_overlap`].
    pub moe_overlap: bool,
    /// See [`ParallelConfig::delay_wgrad`].
    pub delay_wgrad: bool,
}

/// The defaults of training software.
impl Default for StepOptions {
    fn default() -> StepOptions {
        ParallelConfig::default().options()
    }
}

impl ParallelConfig {
    /// Returns the options of the layout.
    pub fn options(&self) -> StepOptions {
        let ParallelConfig { dispatcher, cuda_graph, moe_overlap, delay_wgrad, .. } = *self;
        StepOptions { dispatcher, cuda_graph, moe_overlap, delay_wgrad }
    }

    /// Returns the layout with other options.
    pub fn with_options(self, options: StepOptions) -> ParallelConfig {
        let StepOptions { dispatcher, cuda_graph, moe_overlap, delay_wgrad } = options;
        ParallelConfig { dispatcher, cuda_graph, moe_overlap, delay_wgrad, ..self }
    }
}

impl StepOptions {
    /// Returns the options that differ from the defaults, as `predict` takes them: name, and value unless it is a switch.
    pub fn named(self) -> Vec<(&'static str, &'static str)> {
        let given = [
            (self.dispatcher != Dispatcher::AllToAll, "dispatcher", self.dispatcher.name()),
            (self.cuda_graph != CudaGraph::None, "cuda-graph", self.cuda_graph.name()),
            (self.moe_overlap, "moe-overlap", ""),
            (self.delay_wgrad, "delay-wgrad", ""),
        ];
        given.into_iter().filter(|(is_given, ..)| *is_given).map(|(_, name, value)| (name, value)).collect()
    }

    /// Returns them in words, as in `hybridep dispatcher, partial CUDA graphs, experts overlapped`; empty if all are defaults.
    pub fn words(self) -> String {
        let word = |(name, value): &(&str, &str)| match *name {
            "dispatcher" => format!("{value} dispatcher"),
            "cuda-graph" => format!("{value} CUDA graphs"),
            "moe-overlap" => "experts overlapped".to_string(),
            _ => "weight gradients delayed".to_string(),
        };
        self.named().iter().map(word).collect::<Vec<_>>().join(", ")
    }
}
