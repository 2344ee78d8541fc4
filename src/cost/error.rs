//! Why costs are invalid.

/// Why costs are invalid: what was expected and found. Settings are in backticks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub enum CostError {
    /// Costs as they are written, or costs that contradict each other.
    Given(String),
    /// Layers or stages, which do not fit a schedule.
    Stages(String),
    /// A cost file, or one without the costs asked for.
    File(String),
    /// A schedule or layout that hardware has no costs of.
    Hardware(String),
    /// Costs that the clock does not hold.
    Overflow(String),
}

/// Why given costs have no table if the clock does not hold them.
pub(super) const TOO_LONG: &str =
    "these costs times the number of ops overflow the clock; give smaller or rounder numbers";

impl CostError {
    /// Returns the error as one of the schedule with this name.
    pub fn of(mut self, schedule: &str) -> CostError {
        let (CostError::Given(why)
        | CostError::Stages(why)
        | CostError::File(why)
        | CostError::Hardware(why)
        | CostError::Overflow(why)) = &mut self;
        why.insert_str(0, &format!("{schedule}: "));
        self
    }
}
