//! Why a command failed, with its exit code.

use super::flags::as_flags;
use pipesim_answer::explanation::Unexplained;
use pipesim_answer::resolve;
#[cfg(feature = "training")]
use pipesim_exec::ranks::RanksError;
use pipesim_language as dsl;
#[cfg(feature = "training")]
use pipesim_measure::experiment;
use pipesim_report::WriteError;
use pipesim_schedule::deadlock::Deadlock;

/// What is displayed names settings as flags.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something went wrong: exit code 1.
    #[error("{}", as_flags(format!("{:#}", .0)))]
    Failed(anyhow::Error),
    /// The command line makes no sense: exit code 2.
    #[error("{}", as_flags(.0))]
    Usage(String),
    /// The schedule is invalid or deadlocks: exit code 3.
    #[error("{}", as_flags(.0))]
    Schedule(String),
    /// A `--fail-if` condition holds: exit code 4.
    #[error("{}", as_flags(.0))]
    Threshold(String),
    /// The machine lacks what was asked for: exit code 5.
    #[error("{}", as_flags(.0))]
    Environment(String),
    /// A device hung or died: exit code 6.
    #[error("{}", as_flags(.0))]
    Hang(String),
    /// A signal ended it: 128 and the signal's number.
    #[error("{}", as_flags(.0))]
    Stopped(String, u8),
    /// The message is already printed: this exit code.
    #[error("the message is already printed")]
    Reported(u8),
}

impl Failure {
    pub fn code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Schedule(_) => 3,
            Failure::Threshold(_) => 4,
            Failure::Environment(_) => 5,
            Failure::Hang(_) => 6,
            Failure::Stopped(_, code) | Failure::Reported(code) => *code,
        }
    }

    pub fn usage(error: impl ToString) -> Failure {
        Failure::Usage(error.to_string())
    }

    /// Returns the failure that ended a measurement early whose results are written.
    #[cfg(feature = "training")]
    pub fn ended(error: experiment::Error) -> Failure {
        let text = error.to_string();
        match error.into() {
            Failure::Stopped(_, code) => Failure::Stopped(text, code),
            failure => failure,
        }
    }
}

impl From<resolve::Error> for Failure {
    fn from(error: resolve::Error) -> Failure {
        let text = error.to_string();
        match error {
            error if error.is_usage() => Failure::Usage(text),
            error if error.is_unavailable() => Failure::Environment(text),
            _ => Failure::Schedule(text),
        }
    }
}

impl From<Unexplained> for Failure {
    fn from(error: Unexplained) -> Failure {
        match error {
            Unexplained::Resolve(error) => error.into(),
            Unexplained::Step(error) => Failure::usage(error),
        }
    }
}

#[cfg(feature = "training")]
impl From<experiment::Error> for Failure {
    fn from(error: experiment::Error) -> Failure {
        let text = error.to_string();
        match error {
            experiment::Error::Usage(_) => Failure::Usage(text),
            experiment::Error::Schedule(_) => Failure::Schedule(text),
            experiment::Error::Resolve(error) => error.into(),
            experiment::Error::Environment(_) => Failure::Environment(text),
            experiment::Error::Stopped { signal, .. } => {
                Failure::Stopped(format!("{text}; nothing is written"), 128 + signal)
            }
            error if error.is_hang() => Failure::Hang(text),
            _ => Failure::Failed(anyhow::Error::msg(text)),
        }
    }
}

impl From<dsl::Error> for Failure {
    fn from(error: dsl::Error) -> Failure {
        resolve::Error::from(error).into()
    }
}

impl From<Deadlock> for Failure {
    fn from(cycle: Deadlock) -> Failure {
        Failure::Schedule(cycle.to_string())
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Failure {
        match error {
            WriteError::Name(text) => Failure::Usage(text),
            error => Failure::Failed(error.into()),
        }
    }
}

#[cfg(feature = "training")]
impl From<RanksError> for Failure {
    fn from(misfit: RanksError) -> Failure {
        match misfit {
            RanksError::Contradiction(text) => Failure::Usage(text),
            RanksError::Unable(text) => Failure::Environment(text),
            RanksError::Lost(lost) => Failure::Hang(lost.to_string()),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        #[cfg(feature = "training")]
        return experiment::Error::from(error).into();
        #[cfg(not(feature = "training"))]
        Failure::Failed(error)
    }
}
