//! Why a name and options give no graph.

use crate::cost::CostError;
use crate::deadlock::Deadlock;
use crate::legible::legible;
use crate::schedule::Fault;
use crate::{csv, dsl, settle};

/// Why there is no graph, or no costs for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is asked for makes no sense, or does not go together.
    #[error("{}", legible(.0))]
    Usage(String),
    /// A file that is for other numbers of devices and micro-batches.
    #[error("{}", legible(.0))]
    OtherNumbers(String),
    /// A model that does not split into so many stages.
    #[error("{}", legible(.0))]
    Split(String),
    /// Costs that do not fit the schedule.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// A file that cannot be read.
    #[error("cannot read {}: {}", legible(path), legible(what))]
    File {
        /// Its path.
        path: String,
        /// Why not.
        what: String,
    },
    /// No such schedule, or a file of the language that is wrong.
    #[error(transparent)]
    Language(#[from] dsl::Error),
    /// One of PyTorch's files that is wrong.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    /// One of PyTorch's files that holds no whole schedule.
    #[error("{}: not a schedule for p = {devices}, m = {microbatches}: {fault}", legible(file))]
    Incomplete {
        /// Its path.
        file: String,
        /// p.
        devices: u32,
        /// m.
        microbatches: u32,
        /// What is wrong.
        fault: Fault,
    },
    /// Costs settle no order.
    #[error("{name}: {error}")]
    Settle {
        /// The schedule.
        name: String,
        /// Why not.
        error: settle::Error,
    },
    /// Devices that wait for one another in a circle.
    #[error("{place}: deadlock for p = {devices}, m = {microbatches}: {cycle}")]
    Deadlock {
        /// File and line where the first of them waits.
        place: String,
        /// p.
        devices: u32,
        /// m.
        microbatches: u32,
        /// Who waits for whom.
        cycle: Deadlock,
    },
    /// `auto` found none.
    #[error("no schedule for p = {devices}, m = {microbatches} runs{}; naive holds 1: raise --memory-cap", .cap.map_or_else(String::new, |cap| format!(" within {cap} activations")))]
    NoneFits {
        /// p.
        devices: u32,
        /// m.
        microbatches: u32,
        /// Most activations.
        cap: Option<f64>,
    },
    /// A step that this machine's memory does not hold.
    #[error(
        "a step of {ops} ops needs about {needed_gib} GiB of memory, but {free_gib} GiB are free; take fewer micro-batches"
    )]
    TooLarge {
        /// Its ops.
        ops: u64,
        /// GiB that it takes.
        needed_gib: u64,
        /// GiB that there are.
        free_gib: u64,
    },
}

impl Error {
    /// Whether what was asked for is wrong, rather than the schedule.
    pub fn is_usage(&self) -> bool {
        use Error::{Cost, File, Language, OtherNumbers, Split, Usage};
        matches!(self, Usage(_) | OtherNumbers(_) | Split(_) | Cost(_) | File { .. } | Language(dsl::Error::Usage(_)))
    }

    /// Whether the same may be there for other numbers of devices and micro-batches.
    pub fn is_of_numbers(&self) -> bool {
        use Error::{Cost, Deadlock, Language, NoneFits, OtherNumbers, Settle, Split};
        matches!(
            self,
            OtherNumbers(_)
                | Split(_)
                | Cost(_)
                | Language(dsl::Error::Unfit(_))
                | Settle { .. }
                | Deadlock { .. }
                | NoneFits { .. }
        )
    }

    /// Whether this machine lacks what evaluating a schedule takes.
    pub fn is_lack(&self) -> bool {
        matches!(self, Error::Language(dsl::Error::Machine(_)) | Error::TooLarge { .. })
    }
}
