//! Why a layout is invalid.

/// Why a layout is invalid; the message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParallelConfigError(pub(crate) String);
