//! A probe, and what it found.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// There and usable.
    Ok,
    /// Not there.
    Missing,
    /// There and not usable.
    Broken,
    /// Cannot be said.
    Unknown,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Broken => "broken",
            Status::Unknown => "unknown",
        })
    }
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How it ended.
    pub status: Status,
    /// What is there.
    pub found: String,
    /// The one thing to do; none where all is well.
    pub fix: Option<String>,
}

impl Finding {
    pub(super) fn ok(found: impl Into<String>) -> Finding {
        Finding { status: Status::Ok, found: found.into(), fix: None }
    }

    pub(super) fn missing(found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { status: Status::Missing, found: found.into(), fix: Some(fix.into()) }
    }

    pub(super) fn broken(found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { status: Status::Broken, found: found.into(), fix: Some(fix.into()) }
    }

    pub(super) fn unknown(found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { status: Status::Unknown, found: found.into(), fix: Some(fix.into()) }
    }
}

/// A library that is nowhere, or there and not to be opened.
impl From<crate::cuda::library::Missing> for Finding {
    fn from(missing: crate::cuda::library::Missing) -> Finding {
        let found = match missing.broken.is_empty() {
            true => format!("no {} in {}", missing.files.join(" or "), missing.places.join(", ")),
            false => missing.found(),
        };
        let status = if missing.broken.is_empty() { Status::Missing } else { Status::Broken };
        Finding { status, found, fix: Some(missing.fix) }
    }
}

/// One question to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// The NVIDIA driver and its version.
    Driver,
    /// The GPUs.
    Devices,
    /// A copy from each GPU to each other one, checked byte for byte.
    PeerAccess,
    /// NVLink's links.
    NvLink,
    /// Shares of a GPU's multiprocessors.
    GreenContexts,
    /// The run-time compiler.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// NCCL.
    Nccl,
    /// NVSHMEM and its bootstrap.
    Nvshmem,
    /// A launcher, and this build.
    Mpi,
    /// Whether Slurm hides GPUs from one another.
    Slurm,
    /// `/dev/shm`.
    SharedMemory,
    /// How much memory may be locked.
    LockedMemory,
    /// Cores and their instructions.
    Processor,
}

impl Probe {
    /// All, in the order in which they are told.
    pub const ALL: [Probe; 14] = [
        Probe::Driver,
        Probe::Devices,
        Probe::PeerAccess,
        Probe::NvLink,
        Probe::GreenContexts,
        Probe::Nvrtc,
        Probe::CublasLt,
        Probe::Nccl,
        Probe::Nvshmem,
        Probe::Mpi,
        Probe::Slurm,
        Probe::SharedMemory,
        Probe::LockedMemory,
        Probe::Processor,
    ];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Probe::Driver => "driver",
            Probe::Devices => "devices",
            Probe::PeerAccess => "peer-access",
            Probe::NvLink => "nvlink",
            Probe::GreenContexts => "green-contexts",
            Probe::Nvrtc => "nvrtc",
            Probe::CublasLt => "cublaslt",
            Probe::Nccl => "nccl",
            Probe::Nvshmem => "nvshmem",
            Probe::Mpi => "mpi",
            Probe::Slurm => "slurm",
            Probe::SharedMemory => "shared-memory",
            Probe::LockedMemory => "locked-memory",
            Probe::Processor => "processor",
        }
    }

    /// Whether it opens a library, and so runs in a child process.
    pub(super) fn is_isolated(self) -> bool {
        !matches!(self, Probe::Mpi | Probe::Slurm | Probe::SharedMemory | Probe::LockedMemory | Probe::Processor)
    }
}

impl FromStr for Probe {
    type Err = NoSuchName;

    fn from_str(text: &str) -> Result<Probe, NoSuchName> {
        let names: Vec<&str> = Probe::ALL.iter().map(|probe| probe.name()).collect();
        let found = Probe::ALL.into_iter().find(|probe| probe.name() == text);
        found.ok_or_else(|| NoSuchName { known: format!("one of {}", names.join(", ")), found: text.to_string() })
    }
}

/// A text that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {known}, found '{found}'")]
pub struct NoSuchName {
    pub(super) known: String,
    pub(super) found: String,
}

/// A probe's row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The probe's name.
    pub name: &'static str,
    /// What it found.
    #[serde(flatten)]
    pub finding: Finding,
    /// How long it took, the child process included.
    pub duration_ms: f64,
}
