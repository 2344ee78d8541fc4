//! What a run printed about its steps.

use serde::Serialize;
use std::collections::BTreeMap;

/// Lines of steps that do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// First steps, which compile and allocate.
    pub first: usize,
    /// Steps after a checkpoint or an evaluation.
    pub after_pause: usize,
    /// Steps under a profiler.
    pub profiled: usize,
    /// Steps of another batch size than the last, as in a ramp-up.
    pub other_batch: usize,
}

/// A timer of the framework: medians over its printed lines, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timer {
    /// Of the fastest rank.
    pub min_ms: f64,
    /// Of the slowest rank.
    pub max_ms: f64,
}

/// What a run printed about its steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measurement {
    /// Seconds of each step that counts, in order; of a longer log the last 524,288.
    #[serde(skip)]
    pub step_s: Vec<f32>,
    /// Number of lines that count; Megatron prints one for `log_interval` steps, which have that weight in the medians.
    pub steps: usize,
    /// Their median, in seconds; 0 if the log has tokens per second alone and does not say how many a step has.
    pub median_s: f64,
    /// Their 5th and 95th percentile, in seconds.
    pub range_s: [f64; 2],
    /// Whether fewer than 3 steps remained, so that all but the first count.
    pub few: bool,
    /// Steps that do not count.
    pub dropped: Dropped,
    /// Most memory that tensors had, in bytes, by rank.
    pub allocated_bytes: BTreeMap<u32, u64>,
    /// Most memory that the allocator reserved, in bytes, by rank.
    pub reserved_bytes: BTreeMap<u32, u64>,
    /// What the run printed of its own arguments, in its words.
    #[serde(skip)]
    pub arguments: BTreeMap<String, String>,
    /// Timers by name.
    pub timers: BTreeMap<String, Timer>,
    /// Median power of a GPU, in watts.
    pub power_w: Option<f64>,
    /// Printed TFLOP/s per GPU, median, in the framework's own count.
    pub printed_tflops: Option<f64>,
    /// Printed tokens per second and GPU, median.
    pub printed_tokens_per_s: Option<f64>,
    /// Sequences per step that the log's lines state, if they do.
    pub global_batch: Option<u32>,
}
