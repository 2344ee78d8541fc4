//! Something that made a measured step longer, with what the step would have gained without it.

use serde::Serialize;

/// Something that made the step longer. Times are in the timeline's unit; `saves` is the share by which a replay without it is shorter.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Finding {
    /// Neighbouring devices are slower than the others, all alike.
    SlowNode {
        first_device: u32,
        last_device: u32,
        /// Their work / what the others take for such work - 1.
        slower: f64,
        saves: f64,
    },
    /// All stages of a device are slower than the other devices' stages.
    SlowDevice { device: u32, slower: f64, saves: f64 },
    /// A stage has more work than the others.
    SlowStage { stage: u32, device: u32, slower: f64, saves: f64 },
    /// Messages between two devices take longer than between others.
    SlowLink {
        devices: [u32; 2],
        /// Median of its messages that were waited for.
        typical: f64,
        /// Median of the other links.
        others: f64,
        saves: f64,
    },
    /// A device's host starts all ops later than other hosts.
    SlowHost {
        device: u32,
        /// Median delay of its ops.
        typical: f64,
        /// Median delay of the others.
        others: f64,
        saves: f64,
    },
    /// A device's host was late once, by far.
    Pause {
        device: u32,
        /// The op that started late.
        before: String,
        /// The op after which the host was late; `None` before a device's first op.
        #[serde(skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// Whether it held up the output of the op `after`, too.
        before_send: bool,
        /// By how long.
        delay: f64,
        /// The median delay of the others.
        typical: f64,
        saves: f64,
    },
    /// Ops that took far longer than the median of their stage and kind.
    Stragglers {
        /// The one that exceeds it most.
        op: String,
        device: u32,
        duration: f64,
        typical: f64,
        /// Number of such ops.
        count: usize,
        saves: f64,
    },
    /// All host delays together, without pauses and what a slow host takes longer than others.
    HostDelays {
        /// Mean of one op's.
        mean: f64,
        saves: f64,
    },
    /// All messages together, without what a slow link takes longer than others.
    Messages {
        /// Median of those that a device waited for.
        typical: f64,
        saves: f64,
    },
    /// Work that is not spread evenly, apart from slow stages and devices.
    Imbalance {
        /// Work of the busiest device / the average - 1.
        busiest: f64,
        saves: f64,
    },
}

impl Finding {
    /// Returns by which share the step would have been shorter without it.
    pub fn saves(&self) -> f64 {
        match self {
            Finding::SlowNode { saves, .. }
            | Finding::SlowDevice { saves, .. }
            | Finding::SlowStage { saves, .. }
            | Finding::SlowLink { saves, .. }
            | Finding::SlowHost { saves, .. }
            | Finding::Pause { saves, .. }
            | Finding::Stragglers { saves, .. }
            | Finding::HostDelays { saves, .. }
            | Finding::Messages { saves, .. }
            | Finding::Imbalance { saves, .. } => *saves,
        }
    }

    /// Whether it is about all devices, and not about one that stands out.
    pub fn is_overall(&self) -> bool {
        matches!(self, Finding::HostDelays { .. } | Finding::Messages { .. } | Finding::Imbalance { .. })
    }
}
