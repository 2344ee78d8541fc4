//! What of this machine can be used: one probe a row, each with what was found and, where it is not well, one thing to do.
//!
//! Libraries and drivers may crash, hang or end the process that opens them. So a probe that opens one runs in a child
//! process (this program again, `doctor --probe NAME`, which prints one JSON line) with a time limit.

mod child;
mod devices;
mod driver;
mod host;
mod libraries;
mod needs;
mod peers;

pub use needs::{Need, Verdict};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Version of the JSON of [`Diagnosis`].
pub const SCHEMA_VERSION: u32 = 1;

/// Whether this program was built with MPI.
pub const BUILT_WITH_MPI: bool = crate::ranks::HAS_MPI;

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
    fn ok(found: impl Into<String>) -> Finding {
        Finding { status: Status::Ok, found: found.into(), fix: None }
    }

    fn missing(found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { status: Status::Missing, found: found.into(), fix: Some(fix.into()) }
    }

    fn broken(found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { status: Status::Broken, found: found.into(), fix: Some(fix.into()) }
    }

    fn unknown(found: impl Into<String>, fix: impl Into<String>) -> Finding {
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
    fn is_isolated(self) -> bool {
        !matches!(self, Probe::Mpi | Probe::Slurm | Probe::SharedMemory | Probe::LockedMemory | Probe::Processor)
    }

    /// Asks, in this process: it may crash or hang. What a child process does.
    pub fn ask(self) -> Finding {
        match self {
            Probe::Driver => devices::driver(),
            Probe::Devices => devices::devices(),
            Probe::PeerAccess => peers::peer_access(),
            Probe::NvLink => libraries::nvlink(),
            Probe::GreenContexts => devices::green_contexts(),
            Probe::Nvrtc => libraries::nvrtc(),
            Probe::CublasLt => libraries::cublaslt(),
            Probe::Nccl => libraries::nccl(),
            Probe::Nvshmem => libraries::nvshmem(),
            Probe::Mpi => host::mpi(),
            Probe::Slurm => host::slurm(),
            Probe::SharedMemory => host::shared_memory(),
            Probe::LockedMemory => host::locked_memory(),
            Probe::Processor => host::processor(),
        }
    }
}

impl FromStr for Probe {
    type Err = String;

    fn from_str(text: &str) -> Result<Probe, String> {
        let names: Vec<&str> = Probe::ALL.iter().map(|probe| probe.name()).collect();
        let found = Probe::ALL.into_iter().find(|probe| probe.name() == text);
        found.ok_or_else(|| format!("expected one of {}, found '{text}'", names.join(", ")))
    }
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

/// The machine, examined.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// A row a probe, in the order of [`Probe::ALL`].
    pub probes: Vec<Row>,
    /// What follows from them, for each need.
    pub needs: Vec<Verdict>,
}

/// Asks all probes, each within `limit`: all at once but the copies between GPUs, which are measured alone.
pub fn examine(limit: Duration) -> Diagnosis {
    let (alone, together): (Vec<Probe>, Vec<Probe>) =
        Probe::ALL.into_iter().partition(|probe| *probe == Probe::PeerAccess);
    let mut rows: Vec<(Probe, Row)> = std::thread::scope(|scope| {
        let asked: Vec<_> = together.iter().map(|probe| (*probe, scope.spawn(|| row(*probe, limit)))).collect();
        let crashed = |probe: Probe| Row {
            name: probe.name(),
            finding: Finding::broken("the probe itself crashed", "report this as a bug"),
            duration_ms: 0.0,
        };
        asked.into_iter().map(|(probe, thread)| (probe, thread.join().unwrap_or_else(|_| crashed(probe)))).collect()
    });
    rows.extend(alone.into_iter().map(|probe| (probe, row(probe, limit))));
    rows.sort_by_key(|(probe, _)| *probe);
    let needs = Need::ALL.into_iter().map(|need| need.verdict(&rows)).collect();
    Diagnosis { schema_version: SCHEMA_VERSION, probes: rows.into_iter().map(|(_, row)| row).collect(), needs }
}

fn row(probe: Probe, limit: Duration) -> Row {
    let begin = Instant::now();
    let finding = if probe.is_isolated() { child::ask(probe, limit) } else { probe.ask() };
    Row { name: probe.name(), finding, duration_ms: begin.elapsed().as_micros() as f64 / 1e3 }
}

impl Diagnosis {
    /// The verdict on one need.
    pub fn verdict(&self, need: Need) -> Option<&Verdict> {
        self.needs.iter().find(|verdict| verdict.need == need)
    }

    /// For people: a line a probe, what to do below it, then what can be used.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let width = self.probes.iter().map(|row| row.name.len()).max().unwrap_or(0);
        for Row { name, finding, .. } in &self.probes {
            text += &format!("{name:width$}  {:7}  {}\n", finding.status, finding.found);
            if let Some(fix) = &finding.fix {
                text += &format!("{:width$}           to do: {fix}\n", "");
            }
        }
        text += "\nusable:\n";
        for Verdict { need, because, blocked_by, .. } in &self.needs {
            let verdict = match blocked_by {
                None => format!("yes  {because}"),
                Some((probe, status)) => format!("no   {probe} is {status}"),
            };
            text += &format!("  {:width$}{verdict}\n", need.name());
        }
        text
    }
}
