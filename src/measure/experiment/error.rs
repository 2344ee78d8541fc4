//! Errors of experiments.

use pipesim_answer::resolve;
use pipesim_exec as exec;
use pipesim_exec::ranks::{Lost, signal_name};
use std::io::ErrorKind;

/// Why an experiment failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Contradictory or impossible options.
    #[error("{0}")]
    Usage(String),
    /// A schedule does not resolve.
    #[error(transparent)]
    Resolve(#[from] resolve::Error),
    /// A schedule would deadlock on its link.
    #[error("{0}")]
    Schedule(String),
    /// The machine lacks something that is needed.
    #[error("{0}")]
    Environment(String),
    /// A GPU cannot run this; another device may.
    #[error("{0}")]
    Unsupported(String),
    /// A step did not end: a device hung, died or could not compute.
    #[error(transparent)]
    Step(exec::Error),
    /// A signal ended the experiment.
    #[error("stopped by {}{}", signal_name(i32::from(*signal)), after(steps.0, steps.1))]
    Stopped {
        /// Number of the signal.
        signal: u8,
        /// Measured and requested steps per schedule; 0 and 0 before measuring.
        steps: (usize, usize),
    },
    /// A rank died or hangs.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A loss, or a norm of the gradients, is not finite.
    #[error(
        "the {what} of step {step} of {schedule} is {value}: training diverged; lower `lr`, or bound the gradients with `clip` 1"
    )]
    Diverged {
        /// Name of the schedule.
        schedule: String,
        /// `loss` or `gradient norm`.
        what: &'static str,
        /// The first such step, as the log of the command counts: from 0 in measurements, from 1 in a training.
        step: usize,
        /// NaN or infinite.
        value: f64,
    },
    /// Another failure, with its causes.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// Whether devices or ranks hung or died.
    pub fn is_hang(&self) -> bool {
        match self {
            Error::Step(exec::Error::Failed { .. }) => false,
            Error::Step(_) | Error::Lost(_) => true,
            _ => false,
        }
    }

    /// Adds to a [`Error::Stopped`] the numbers of measured and requested steps.
    pub(super) fn after(self, measured: usize, all: usize) -> Error {
        match self {
            Error::Stopped { signal, .. } => Error::Stopped { signal, steps: (measured, all) },
            other => other,
        }
    }

    /// Names what a usage error is about.
    pub(super) fn of(self, what: &str) -> Error {
        match self {
            Error::Usage(text) => Error::Usage(format!("{what}: {text}")),
            other => other,
        }
    }
}

fn after(measured: usize, all: usize) -> String {
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
        if exec::Gpus::is_unsupported(&error) {
            Error::Unsupported(text)
        } else if exec::Gpus::is_unavailable(&error) || error.chain().any(lacks) {
            Error::Environment(text)
        } else if error.chain().any(|cause| cause.is::<Lost>()) {
            Error::Lost(Lost::new(text))
        } else {
            Error::Failed(text)
        }
    }
}
