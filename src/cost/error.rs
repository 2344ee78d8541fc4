//! Why costs are invalid.

/// Why costs are invalid; the message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CostError(pub(crate) String);
