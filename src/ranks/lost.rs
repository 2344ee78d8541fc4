//! A rank that is gone.

use std::time::Duration;

/// A rank is gone, so the run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

impl Lost {
    /// Somebody did not answer in time.
    pub(super) fn silent(limit: Duration) -> Lost {
        Lost(format!("a rank has not answered for {} s; all others were ended", limit.as_secs()))
    }
}
