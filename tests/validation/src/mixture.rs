//! What a row says about experts: their layout, and how the software runs them. What a row does not say is assumed.

use anyhow::Result;
use pipesim::ParallelConfig;
use pipesim::models::StageLayout;
use pipesim::models::{CudaGraph, Dispatcher, Routing};
use serde::Deserialize;

/// Fields of rows with experts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MixtureFields {
    /// Expert-parallel ranks.
    #[serde(default = "one")]
    pub ep: u32,
    /// Ranks that share an expert.
    #[serde(default = "one")]
    pub etp: u32,
    /// Separate passes through the pipeline per step.
    #[serde(default = "one")]
    pub rounds: u32,
    /// How tokens get to their experts.
    #[serde(default)]
    pub dispatcher: Option<String>,
    /// Whether the exchange hides behind another micro-batch.
    #[serde(default)]
    pub ep_overlap: Option<bool>,
    /// Whether weight gradients are apart for that.
    #[serde(default)]
    pub delay_wgrad: Option<bool>,
    /// `none`, `partial: ...` or `full`.
    #[serde(default)]
    pub cuda_graph: Option<String>,
    /// How tokens are spread over experts.
    #[serde(default)]
    pub routing: Option<String>,
    /// Megatron's layout string.
    #[serde(default)]
    pub layout: Option<String>,
    /// Remarks on the measurement.
    #[serde(default)]
    pub notes: Option<String>,
    /// Name and version of the software.
    #[serde(default)]
    pub framework: Option<String>,
    /// What says how the software was set: a verification card, a description with commands, a pull request, or less.
    #[serde(default)]
    pub settings_from: Option<String>,
}

fn one() -> u32 {
    1
}

/// What is recomputed: a name, or a list of parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(untagged)]
pub enum Recomputed {
    Name(String),
    Parts(Vec<String>),
}

impl Recomputed {
    /// Returns the value of `--recompute`.
    pub fn name(&self) -> String {
        match self {
            Recomputed::Name(name) => name.clone(),
            Recomputed::Parts(parts) if parts.is_empty() => "none".to_string(),
            Recomputed::Parts(parts) => parts.join(","),
        }
    }
}

impl MixtureFields {
    /// Returns the stages of the layout string and the stages per device, which a string decides.
    ///
    /// # Errors
    /// A string that Megatron would reject.
    pub fn stages(&self, pp: u32, chunks: u32) -> Result<(Option<StageLayout>, u32)> {
        let Some(text) = &self.layout else { return Ok((None, chunks)) };
        let layout = StageLayout::parse(text)?;
        let chunks = layout.chunks(pp)?;
        Ok((Some(layout), chunks))
    }

    /// Returns whether the software is NeMo Automodel: PyTorch's FSDP.
    pub fn is_of_automodel(&self) -> bool {
        self.framework.as_deref().is_some_and(|name| name.starts_with("NeMo Automodel"))
    }

    /// Returns the training software: NeMo's stacks for mixtures have names of their own.
    pub fn stack(&self) -> Option<&'static str> {
        let name = self.framework.as_deref().unwrap_or_default();
        if self.is_of_automodel() {
            return Some("automodel");
        }
        (name.starts_with("NeMo") || name.starts_with("Megatron-Bridge")).then_some("megatron-bridge")
    }

    /// Returns whether the notes say that all streams shared one hardware queue.
    pub fn has_one_queue(&self) -> bool {
        let notes = self.notes.as_deref().unwrap_or_default();
        let after = notes.split_once("CUDA_DEVICE_MAX_CONNECTIONS ").map_or("", |(_, after)| after);
        after.split(|letter: char| !letter.is_ascii_digit()).next() == Some("1")
    }

    /// Returns whether `settings_from` starts with one of these words.
    fn is_from(&self, sources: &[&str]) -> bool {
        let from = self.settings_from.as_deref().unwrap_or_default();
        sources.iter().any(|source| from.starts_with(source))
    }

    /// Returns the layout of the experts. What is not said is assumed: all-to-all where tokens are padded to a capacity, as in
    /// older software, otherwise HybridEP; graphs of attention and router, which Automodel does not have; balanced routing. Descriptions
    /// with the whole command leave out Megatron-Core's defaults, all-to-all and no graphs, and verification cards list what is enabled.
    pub fn experts(&self) -> ParallelConfig {
        let routing = match self.routing.as_deref() {
            Some("natural") => Routing::Natural,
            Some("capacity") => Routing::CAPACITY,
            _ => Routing::Balanced,
        };
        let dispatcher = match self.dispatcher.as_deref() {
            Some("alltoall") => Dispatcher::AllToAll,
            Some("deepep") => Dispatcher::DeepEp,
            None if routing == Routing::CAPACITY || self.is_from(&["skill", "pull request"]) => Dispatcher::AllToAll,
            _ => Dispatcher::HybridEp,
        };
        let cuda_graph = match self.cuda_graph.as_deref() {
            Some("none") => CudaGraph::None,
            Some("full") => CudaGraph::Full,
            None if self.is_of_automodel() || self.is_from(&["card", "skill", "pull request"]) => CudaGraph::None,
            _ => CudaGraph::Partial,
        };
        let moe_overlap = self.ep_overlap == Some(true);
        ParallelConfig {
            ep: self.ep,
            etp: self.etp,
            rounds: self.rounds,
            dispatcher,
            routing,
            cuda_graph,
            moe_overlap,
            delay_wgrad: moe_overlap && self.delay_wgrad == Some(true),
            ..ParallelConfig::default()
        }
    }
}
