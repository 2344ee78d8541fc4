//! What a log says.

use crate::measurement::Measurement;
use crate::setting::Settings;
use std::collections::BTreeMap;

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// The framework, as a file of `frameworks/` calls it; `None` if the lines are not one framework's alone.
    pub framework: Option<String>,
    /// What the form of the lines says about the framework's version.
    pub version_hint: Option<String>,
    /// The arguments that Megatron prints at the start.
    pub settings: Settings,
    /// GPUs.
    pub world: Option<u32>,
    /// Parallel sizes by name: `tp`, `pp`, `cp`, `dp`, `ep`, `dp_shard`, `dp_replicate`.
    pub degrees: BTreeMap<String, u32>,
    /// What the run printed about its steps; without any if it printed its arguments alone.
    pub measurement: Measurement,
    /// Tokens per step, over all GPUs.
    pub tokens_per_step: Option<u64>,
    /// Entries of the vocabulary after padding.
    pub padded_vocab: Option<u64>,
    /// Parameters by model-parallel rank, such as `(0, 1)`.
    pub parameters: BTreeMap<String, u64>,
    /// Name of the GPU.
    pub gpu: Option<String>,
    /// Peak FLOP/s that the framework divides by.
    pub peak_flops: Option<f64>,
    /// Memory of weights and optimizer, of activations, and in total, that Megatron expects, in bytes.
    pub theoretical_bytes: Option<[u64; 3]>,
    /// Runs in the file that have steps.
    pub runs: usize,
}
