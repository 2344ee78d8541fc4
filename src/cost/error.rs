//! Why costs are invalid.

/// What is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostErrorKind {
    /// Costs as they are written, or costs that contradict each other.
    Given,
    /// Layers or stages, which do not fit a schedule.
    Stages,
    /// A cost file, or one without the costs asked for.
    File,
    /// A schedule or layout that hardware has no costs of.
    Hardware,
    /// Costs that the clock does not hold.
    Overflow,
}

/// Why costs are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct CostError {
    pub kind: CostErrorKind,
    /// What was expected and found; settings are in backticks.
    pub reason: String,
}

/// Why given costs have no table if the clock does not hold them.
pub(super) const TOO_LONG: &str =
    "these costs times the number of ops overflow the clock; give smaller or rounder numbers";

impl CostError {
    pub(super) fn given(reason: impl Into<String>) -> CostError {
        CostError { kind: CostErrorKind::Given, reason: reason.into() }
    }

    pub(super) fn stages(reason: impl Into<String>) -> CostError {
        CostError { kind: CostErrorKind::Stages, reason: reason.into() }
    }

    pub(super) fn file(reason: impl Into<String>) -> CostError {
        CostError { kind: CostErrorKind::File, reason: reason.into() }
    }

    pub(super) fn hardware(reason: impl Into<String>) -> CostError {
        CostError { kind: CostErrorKind::Hardware, reason: reason.into() }
    }

    pub(super) fn overflow(reason: impl Into<String>) -> CostError {
        CostError { kind: CostErrorKind::Overflow, reason: reason.into() }
    }

    /// Returns the error as one of the schedule with this name.
    pub fn of(self, schedule: &str) -> CostError {
        CostError { reason: format!("{schedule}: {}", self.reason), ..self }
    }
}
