//! What can go wrong.

use crate::Status;
use std::fmt;
use std::path::PathBuf;

/// A failure of the library or of what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened.
    Open {
        /// Which.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// The file is no NVSHMEM host library, or not one of those known here.
    Symbols {
        /// Which file.
        path: PathBuf,
        /// The functions that it lacks.
        absent: Vec<&'static str>,
    },
    /// The library is of another major version.
    Version {
        /// Which file.
        path: PathBuf,
        /// What it says it is: major, minor, patch.
        found: (i32, i32, i32),
    },
    /// What was asked for makes no sense.
    Argument(String),
    /// The library is not in the state that this call needs.
    State {
        /// What was called.
        call: &'static str,
        /// What it needs.
        expected: Status,
        /// How far the library is.
        found: Status,
    },
    /// A call failed.
    Call {
        /// What was called.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// How far the library is.
        status: Status,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Open { path, reason } => write!(
                f,
                "expected an NVSHMEM host library at {}, found that it cannot be opened: {reason}; \
                 pip install nvidia-nvshmem-cu13",
                path.display()
            ),
            Error::Symbols { path, absent } => write!(
                f,
                "expected the host functions of NVSHMEM 3 in {}, found none named {}; use version 3.4 or a newer 3.x",
                path.display(),
                absent.join(", ")
            ),
            Error::Version { path, found: (major, minor, patch) } => write!(
                f,
                "expected NVSHMEM 3.x in {}, found {major}.{minor}.{patch}; pip install 'nvidia-nvshmem-cu13<4'",
                path.display()
            ),
            Error::Argument(text) => f.write_str(text),
            Error::State { call, expected, found } => {
                write!(f, "expected NVSHMEM to be {expected} for {call}, found it {found}; {}", what_to_do(*expected))
            }
            Error::Call { call, code, status } => write!(
                f,
                "expected {call} to succeed, found that it returned {code} and NVSHMEM is {status}; \
                 run again with NVSHMEM_DEBUG=INFO to see why"
            ),
        }
    }
}

fn what_to_do(expected: Status) -> &'static str {
    match expected {
        Status::NotInitialized => "finalize it first",
        Status::Bootstrapped => "initialise it first",
        _ => "it needs a GPU whose primary context is current when it is initialised",
    }
}

impl std::error::Error for Error {}
