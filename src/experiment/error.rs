//! Why an experiment cannot begin, or did not end.

use crate::ranks::Lost;
use crate::{exec, resolve};

/// Why there is no finding.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A schedule does not resolve.
    #[error(transparent)]
    Resolve(#[from] resolve::Error),
    /// A schedule would deadlock on its link.
    #[error("{0}")]
    Schedule(String),
    /// The machine lacks what was asked for.
    #[error("{0}")]
    Environment(String),
    /// A step did not end: a device hung, died or could not compute.
    #[error(transparent)]
    Step(#[from] exec::Error),
    /// A rank is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Training left the numbers.
    #[error(
        "the loss of step {step} of {schedule} is {loss}: training diverged; lower --lr, or bound the gradients with --clip 1"
    )]
    Diverged {
        /// Which schedule.
        schedule: String,
        /// The first such step, from 0.
        step: usize,
        /// NaN or infinite.
        loss: f64,
    },
    /// Something else went wrong, its causes included.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// Whether devices or ranks hung or were gone, rather than refused.
    pub fn is_hang(&self) -> bool {
        match self {
            Error::Step(exec::Error::Failed { .. }) => false,
            Error::Step(_) | Error::Lost(_) => true,
            _ => false,
        }
    }

    /// The same error, said of `what`.
    pub(super) fn of(self, what: &str) -> Error {
        match self {
            Error::Usage(text) => Error::Usage(format!("{what}: {text}")),
            other => other,
        }
    }
}

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Error {
        let text = format!("{error:#}");
        if exec::Gpus::is_lack(&error) {
            Error::Environment(text)
        } else if error.chain().any(|cause| cause.is::<Lost>()) {
            Error::Lost(Lost(text))
        } else {
            Error::Failed(text)
        }
    }
}
