//! Errors.

use crate::Status;
use std::fmt;
use std::path::PathBuf;

/// A failure of the library, or an invalid call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened.
    Open {
        /// The file.
        path: PathBuf,
        /// Message of the loader.
        reason: String,
    },
    /// The file is no NVSHMEM host library, or of an unsupported version.
    Symbols {
        /// The file.
        path: PathBuf,
        /// Functions that it lacks.
        absent: Vec<&'static str>,
    },
    /// The library has another major version.
    Version {
        /// The file.
        path: PathBuf,
        /// Its version: major, minor, patch.
        found: (i32, i32, i32),
    },
    /// An argument is invalid.
    Argument(String),
    /// The library is not in the state that this call needs.
    State {
        /// The function.
        call: &'static str,
        /// Required status.
        expected: Status,
        /// Status of the library.
        found: Status,
    },
    /// A call failed.
    Call {
        /// The function.
        call: &'static str,
        /// Returned code.
        code: i32,
        /// Status of the library.
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
