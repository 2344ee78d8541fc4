//! Why traces cannot be imported.

/// Why traces cannot be imported: what was expected, what was found, and one thing to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", pipesim_schedule::sanitize::sanitize(.0))]
pub struct ImportError(String);

impl ImportError {
    pub(crate) fn new(text: impl Into<String>) -> ImportError {
        ImportError(text.into())
    }
}
