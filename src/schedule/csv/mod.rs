//! Reading and writing PyTorch's schedule files: comma-separated values, one row of ops per device.
//!
//! torch.distributed.pipelining (`_load_csv`) has two formats: `compute_only` has ops, `compute_comms` also sends, receives and the
//! gathering and reduction of parameters. pipesim derives communication from placement and order, so both become the same
//! [`Schedule`].

mod cells;
mod communication;
mod read;
mod table;
mod write;

pub use cells::{Action, Cells, What, parse as parse_cell};
pub use read::read;
pub use write::write;

use crate::sanitize::sanitize;
use crate::schedule::Schedule;

/// A schedule read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The schedule, with its placement.
    pub schedule: Schedule,
    /// What was translated or ignored.
    pub warnings: Vec<String>,
}

/// What a file contains besides compute ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Ops only; PyTorch adds the communication when it loads the file.
    #[default]
    ComputeOnly,
    /// Ops and the collectives for sharded parameters and gradients, as PyTorch orders them before it adds sends and receives.
    ComputeCollectives,
    /// Ops, sends, receives and collectives; PyTorch executes the file as it is.
    ComputeComms {
        /// Whether the file waits for sends and reductions: PyTorch 2.15 requires it, 2.14 and earlier reject it.
        waits: bool,
    },
}

/// Maximum file size in bytes.
pub const MAX_BYTES: usize = 256 << 20;

/// Why a file cannot be read or a schedule cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum Error {
    /// A wrong cell. Rows and cells count from 1.
    #[error("{}, row {row} (device {}), cell {cell}: expected {expected}, found '{}'; {remedy}", sanitize(file), row - 1, sanitize(found))]
    Cell { file: String, row: usize, cell: usize, expected: String, found: String, remedy: String },
    /// A wrong file.
    #[error("{}: expected {expected}, found {found}; {remedy}", sanitize(file))]
    File { file: String, expected: String, found: String, remedy: String },
    /// A schedule that the format cannot express.
    #[error("schedule {} has no PyTorch file: {reason}; {remedy}", sanitize(schedule))]
    Schedule { schedule: String, reason: String, remedy: String },
}
