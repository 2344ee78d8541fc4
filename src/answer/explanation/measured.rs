//! What made a measured step long.

use crate::diagnosis::{Finding, Fit, StageTime, Trend};
use pipesim_schedule::timeline::Source;
use serde::Serialize;

/// Least saving of a finding that is named first.
const NAMED_FIRST: f64 = 0.01;

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
    /// Returns the finding to name first: one stage, pause or kind of op if possible; `None` if the schedule itself costs more than the
    /// remaining findings.
    pub(super) fn culprit(&self) -> Option<&Finding> {
        let is_overall = |finding: &Finding| matches!(finding, Finding::HostDelays { .. } | Finding::Messages { .. });
        let named = || self.findings.iter().filter(|finding| finding.saves() >= NAMED_FIRST);
        let overall = || named().find(|finding| finding.saves() > self.schedule_bubble);
        named().find(|&finding| !is_overall(finding)).or_else(overall)
    }
}
