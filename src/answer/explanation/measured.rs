//! What made a measured step long.

use pipesim_diagnosis::{Finding, Fit, StageTime, Trend};
use pipesim_schedule::timeline::Source;
use serde::Serialize;

/// Least saving of a finding that is named first, if it is about a stage, device, link or op, and if it is about all of them: below,
/// the schedule's own bubble comes first.
const NAMED_FIRST: [f64; 2] = [0.01, 0.02];

/// What the explanation of a measured step has in addition to the explanation of a prediction.
#[derive(Clone, Debug, Serialize)]
pub struct RunDiagnosis {
    pub source: Source,
    /// Number of the step in the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Makespan predicted from the step's mean costs, in its unit; what `advice` and `bounds` are compared with.
    pub predicted_makespan: f64,
    /// Bubble that the order would have with equal stages, free links and no host delays.
    pub schedule_bubble: f64,
    pub stages: Vec<StageTime>,
    /// What made the step longer, the largest saving first.
    pub findings: Vec<Finding>,
    pub fit: Fit,
    /// Layers of each stage, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trend: Option<Trend>,
}

impl RunDiagnosis {
    /// Returns the finding to name first, the one that cost most; `None` if none cost enough.
    pub(super) fn culprit(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.saves() >= NAMED_FIRST[usize::from(finding.is_overall())])
    }
}
