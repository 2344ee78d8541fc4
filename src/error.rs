//! What can go wrong for a program that uses the crate: the errors of its parts as one type.

use pipesim_answer::resolve;
use pipesim_cost as cost;
use pipesim_report as report;
use pipesim_schedule::deadlock::Deadlock;
use pipesim_schedule::timeline;
use pipesim_sim::event::EventError;

/// Why there is no prediction, verdict, measurement, picture or timeline. What is displayed says what was expected, what was
/// found, and one thing to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A schedule that does not exist, is invalid or deadlocks, or costs that do not fit it.
    #[error(transparent)]
    Resolve(#[from] resolve::Error),
    /// Costs that cannot be understood.
    #[error(transparent)]
    Cost(#[from] cost::CostError),
    /// Devices that wait for one another in a circle.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
    /// A machine on which a schedule cannot be simulated.
    #[error(transparent)]
    Machine(#[from] EventError),
    /// A text that is no timeline.
    #[error(transparent)]
    Timeline(#[from] timeline::TimelineError),
    /// Timelines that cannot be compared.
    #[error(transparent)]
    Unlike(#[from] report::Unlike),
    /// Traces that cannot be imported.
    #[cfg(feature = "pictures")]
    #[error(transparent)]
    Import(#[from] pipesim_import::ImportError),
    /// A picture or a file that cannot be written.
    #[error(transparent)]
    Write(#[from] report::WriteError),
    /// A training that cannot begin, or did not end.
    #[cfg(feature = "training")]
    #[error(transparent)]
    Experiment(#[from] pipesim_measure::experiment::Error),
}
