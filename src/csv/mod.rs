//! PyTorch's schedule files: comma-separated, one row of ops per device, read and written.
//!
//! Two formats (torch.distributed.pipelining, `_load_csv`): `compute_only` holds ops alone, `compute_comms` also what is
//! sent, received, gathered and reduced. pipesim derives communication from placement and order, so a file in either
//! format becomes the same [`Schedule`].

mod cells;
mod communication;
mod read;
mod table;
mod write;

pub use read::read;
pub use write::write;

use crate::legible::legible;
use crate::schedule::Schedule;

/// A schedule read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What the file says.
    pub schedule: Schedule,
    /// What was understood otherwise than it stands there, or left out.
    pub warnings: Vec<String>,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Ops only; PyTorch adds the communication when it loads the file.
    #[default]
    ComputeOnly,
    /// Ops, sends, receives, and the actions for sharded parameters and gradients; PyTorch takes the file as it is.
    ComputeComms {
        /// Whether sends and reductions are also waited for: PyTorch 2.15 asks for that, 2.14 and before refuse it.
        waits: bool,
    },
}

/// Longest file that is read.
pub const MAX_BYTES: usize = 256 << 20;

/// Why a file was not read or a schedule not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// One cell is wrong, or a cell shows what is wrong elsewhere. Rows and cells count from 1.
    #[error("{}, row {row} (device {}), cell {cell}: expected {expected}, found '{}'; {remedy}", legible(file), row - 1, legible(found))]
    Cell { file: String, row: usize, cell: usize, expected: String, found: String, remedy: String },
    /// The file as a whole is wrong.
    #[error("{}: expected {expected}, found {found}; {remedy}", legible(file))]
    File { file: String, expected: String, found: String, remedy: String },
    /// The schedule has no such file.
    #[error("schedule {} has no PyTorch file: {reason}; {remedy}", legible(schedule))]
    Schedule { schedule: String, reason: String, remedy: String },
}
