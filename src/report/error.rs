//! What keeps a report from being written.

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Bytes could not be made; the report is not to blame.
    #[error("{0}")]
    Format(String),
    /// A name that does not say what to write.
    #[error("{0}")]
    Name(String),
    /// A place that cannot be written: what was tried, and why it did not go.
    #[error("expected to {what}, but could not; choose another place with -o: {cause}")]
    Place { what: String, cause: String },
}
