//! Figures of each step of an imported run, next to the one that a timeline shows.

use serde::{Deserialize, Serialize};

/// Latest time in a file: 2^53 ns, 104 days, which JavaScript numbers represent exactly.
pub(super) const MAX_NS: u64 = 1 << 53;

/// Figures of one step, over the devices that were recorded completely.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepFigures {
    /// Number of the step as in the trace (`ProfilerStep#7`), or from 0 where the trace has none.
    pub number: u64,
    /// First op's start to last op's end, over all devices, in ns.
    pub makespan_ns: u64,
    /// 1 - busy / (devices * makespan), over the devices that were recorded completely.
    pub bubble: f64,
    /// Time from the start of this step to the start of the next one (of the last step: to its recorded end), in ns; absent if
    /// the trace does not mark steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration_ns: Option<u64>,
    /// Time in F, I, W and B by device, in ns; 0 for a device without a trace.
    pub busy_ns: Vec<u64>,
    /// Start of the first op in ns, from the start of the first op of the first step.
    pub start_ns: u64,
    /// Devices with missing ops in this step; makespan and bubble cover the other devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete_devices: Vec<u32>,
}

impl StepFigures {
    /// Checks the figures of a file; the text says what was expected and found.
    pub(super) fn validate(&self, devices: u32) -> Result<(), String> {
        let times =
            [Some(self.makespan_ns), self.iteration_ns, Some(self.start_ns), self.busy_ns.iter().max().copied()];
        if let Some(time) = times.into_iter().flatten().find(|&time| time > MAX_NS) {
            return Err(format!("expected at most {MAX_NS} ns, which is 104 days, found {time}"));
        }
        if self.busy_ns.len() != devices as usize {
            return Err(format!("busy_ns: expected {devices} times, one per device, found {}", self.busy_ns.len()));
        }
        if !(-1e-9..=1.0).contains(&self.bubble) {
            return Err(format!("bubble: expected a share between 0 and 1, found {}", self.bubble));
        }
        Ok(())
    }
}
