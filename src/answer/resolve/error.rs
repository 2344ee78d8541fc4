//! Why a request cannot be resolved.

use pipesim_cost::CostError;
use pipesim_language as dsl;
use pipesim_schedule::csv;
use pipesim_schedule::deadlock::Deadlock;
use pipesim_schedule::sanitize::sanitize;
use pipesim_schedule::schedule::Fault;
use pipesim_sim::event::EventError;
use pipesim_sim::ordering;

/// Why there is no graph, or no costs for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is contradictory or makes no sense.
    #[error("{}", sanitize(.0))]
    Usage(String),
    /// A file is for other numbers of devices and micro-batches.
    #[error("{}", sanitize(.0))]
    OtherNumbers(String),
    /// A model cannot be split into the stages.
    #[error("{}", sanitize(.0))]
    Split(String),
    /// Costs do not fit the schedule.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// A file cannot be read.
    #[error("cannot read {}: {}", sanitize(path), sanitize(what))]
    File { path: String, what: String },
    /// No such schedule, or an invalid file in the schedule language.
    #[error(transparent)]
    Language(#[from] dsl::Error),
    /// An invalid PyTorch CSV file.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    /// A PyTorch CSV file is not a complete schedule.
    #[error("{}: not a schedule for p = {devices}, m = {microbatches}: {fault}", sanitize(file))]
    Incomplete { file: String, devices: u32, microbatches: u32, fault: Fault },
    /// No order could be made from the costs.
    #[error("{name}: {error}")]
    Ordering { name: String, error: ordering::Error },
    /// Devices wait for each other in a cycle.
    #[error("{place}: deadlock for p = {devices}, m = {microbatches}: {cycle}")]
    Deadlock {
        /// File and line where the first of them waits.
        place: String,
        devices: u32,
        microbatches: u32,
        cycle: Deadlock,
    },
    /// The machine cannot run the schedule.
    #[error("{}", match error { EventError::Deadlock(_) => format!("{name}: {error}"), _ => error.to_string() })]
    Machine { name: String, error: EventError },
    /// `auto` found no schedule.
    #[error("no schedule for p = {devices}, m = {microbatches} runs{}; naive holds 1: raise `memory-cap`", .cap.map_or_else(String::new, |cap| format!(" within {cap} activations")))]
    NoneFits { devices: u32, microbatches: u32, cap: Option<f64> },
    /// A step does not fit into this machine's memory.
    #[error(
        "a step of {ops} ops needs about {needed_gib} GiB of memory, but {free_gib} GiB are free; use fewer micro-batches"
    )]
    TooLarge { ops: u64, needed_gib: u64, free_gib: u64 },
}

/// Returns the error of a request that is contradictory or makes no sense.
pub fn usage(why: impl ToString) -> Error {
    Error::Usage(why.to_string())
}

impl Error {
    /// Returns whether the request is wrong, rather than the schedule.
    pub fn is_usage(&self) -> bool {
        use Error::{Cost, File, Language, Machine, OtherNumbers, Split, Usage};
        match self {
            Usage(_) | OtherNumbers(_) | Split(_) | Cost(_) | File { .. } | Language(dsl::Error::Usage(_)) => true,
            Machine { error, .. } => !matches!(error, EventError::Deadlock(_)),
            _ => false,
        }
    }

    /// Returns whether the schedule may exist for other numbers of devices and micro-batches.
    pub fn is_of_numbers(&self) -> bool {
        use Error::{Cost, Deadlock, Language, NoneFits, Ordering, OtherNumbers, Split};
        matches!(
            self,
            OtherNumbers(_)
                | Split(_)
                | Cost(_)
                | Language(dsl::Error::Unsupported(_))
                | Ordering { .. }
                | Deadlock { .. }
                | NoneFits { .. }
        )
    }

    /// Returns whether this machine lacks the resources to evaluate the schedule.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Language(dsl::Error::Machine(_)) | Error::TooLarge { .. })
    }
}
