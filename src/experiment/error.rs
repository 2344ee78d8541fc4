//! Why an experiment cannot begin, or did not end.

use crate::ranks::{Lost, signal_name};
use crate::{exec, resolve};
use std::io::ErrorKind;

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
    /// A GPU cannot take what another device may.
    #[error("{0}")]
    Unfit(String),
    /// A step did not end: a device hung, died or could not compute.
    #[error(transparent)]
    Step(exec::Error),
    /// Somebody wanted it to end.
    #[error("stopped by {}{}", signal_name(i32::from(*signal)), after(*steps))]
    Stopped {
        /// The signal that said so.
        signal: u8,
        /// Steps of each schedule that were measured, and that were to be; 0 and 0 where it did not come to that.
        steps: (usize, usize),
    },
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

    /// The same error, said of so many steps measured of so many.
    pub(super) fn after(self, measured: usize, all: usize) -> Error {
        match self {
            Error::Stopped { signal, .. } => Error::Stopped { signal, steps: (measured, all) },
            other => other,
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

fn after((measured, all): (usize, usize)) -> String {
    match measured {
        0 => " before a step was measured".to_string(),
        _ => format!(" after {measured} of {all} steps per schedule"),
    }
}

impl From<exec::Error> for Error {
    fn from(error: exec::Error) -> Error {
        match error {
            exec::Error::Stopped { signal } => Error::Stopped { signal, steps: (0, 0) },
            error => Error::Step(error),
        }
    }
}

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Error {
        let text = format!("{error:#}");
        let lacks = |cause: &(dyn std::error::Error + 'static)| {
            let system = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            let out = matches!(system, Some(ErrorKind::OutOfMemory | ErrorKind::StorageFull | ErrorKind::WouldBlock));
            out || cause.is::<exec::Shortage>()
        };
        if exec::Gpus::is_unfit(&error) {
            Error::Unfit(text)
        } else if exec::Gpus::is_lack(&error) || error.chain().any(lacks) {
            Error::Environment(text)
        } else if error.chain().any(|cause| cause.is::<Lost>()) {
            Error::Lost(Lost(text))
        } else {
            Error::Failed(text)
        }
    }
}
