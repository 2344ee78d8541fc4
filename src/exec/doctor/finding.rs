//! Findings of probes, and which features they allow.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Present and usable.
    Ok,
    /// Not present.
    Missing,
    /// Present but unusable.
    Broken,
    /// Cannot be determined.
    Unknown,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub status: Status,
    pub found: String,
    /// One thing to do, unless the status is ok.
    pub fix: Option<String>,
}

/// What a probe finds: an error is a finding, too, and ends the probe early.
pub type Asked = Result<Finding, Finding>;

impl Finding {
    /// Returns the finding that all is well.
    pub fn ok(found: impl Into<String>) -> Finding {
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

impl From<pipesim_gpu::library::Missing> for Finding {
    fn from(missing: pipesim_gpu::library::Missing) -> Finding {
        let found = match missing.broken.is_empty() {
            true => format!("no {} in {}", missing.files.join(" or "), missing.places.join(", ")),
            false => missing.found(),
        };
        let status = if missing.broken.is_empty() { Status::Missing } else { Status::Broken };
        Finding { status, found, fix: Some(missing.fix) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {known}, found '{found}'")]
pub struct NoSuchName {
    pub(super) known: String,
    pub(super) found: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: &'static str,
    #[serde(flatten)]
    pub finding: Finding,
    /// Duration in ms, including the child process.
    pub duration_ms: f64,
}

/// A feature of a run that depends on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Training on a GPU.
    Cuda,
    /// Links through NVSHMEM.
    Nvshmem,
    /// Links through NCCL.
    Nccl,
    /// Ranks and links through MPI.
    Mpi,
}

impl Need {
    pub const ALL: [Need; 4] = [Need::Cuda, Need::Nvshmem, Need::Nccl, Need::Mpi];

    /// Name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Need::Cuda => "cuda",
            Need::Nvshmem => "nvshmem",
            Need::Nccl => "nccl",
            Need::Mpi => "mpi",
        }
    }

    /// Probes that must be ok.
    fn needed(self) -> &'static [&'static str] {
        match self {
            Need::Cuda => &["driver", "devices", "nvrtc", "cublaslt"],
            Need::Nvshmem => &["driver", "devices", "nvrtc", "cublaslt", "nvshmem"],
            Need::Nccl => &["driver", "devices", "nvrtc", "cublaslt", "nccl"],
            Need::Mpi => &["mpi"],
        }
    }

    /// Probes that must not be broken, but may be missing or unknown.
    fn unbroken(self) -> &'static [&'static str] {
        match self {
            Need::Cuda => &[],
            Need::Nvshmem | Need::Nccl => &["peer-access", "slurm", "shared-memory"],
            Need::Mpi => &["shared-memory"],
        }
    }

    /// Decides from the findings whether it can be used.
    pub fn verdict(self, rows: &[Row]) -> Verdict {
        let row = |probe: &&str| rows.iter().find(|row| row.name == *probe);
        let needed = self.needed().iter().filter_map(row).find(|row| row.finding.status != Status::Ok);
        let unbroken = self.unbroken().iter().filter_map(row).find(|row| row.finding.status == Status::Broken);
        let because = match needed.or(unbroken) {
            Some(Row { name, finding, .. }) => {
                let fix = finding.fix.as_ref().map(|fix| format!("; {fix}")).unwrap_or_default();
                format!("{name} is {}: {}{fix}", finding.status, finding.found)
            }
            None => {
                let names = self.needed();
                format!("{} {} ok", names.join(", "), if names.len() == 1 { "is" } else { "are" })
            }
        };
        let blocked_by = needed.or(unbroken).map(|row| (row.name, row.finding.status));
        Verdict { need: self, usable: blocked_by.is_none(), because, blocked_by }
    }
}

impl FromStr for Need {
    type Err = NoSuchName;

    fn from_str(text: &str) -> Result<Need, NoSuchName> {
        let found = Need::ALL.into_iter().find(|need| need.name() == text);
        let known = "cuda, nvshmem, nccl or mpi".to_string();
        found.ok_or_else(|| NoSuchName { known, found: text.to_string() })
    }
}

/// Whether a feature can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub need: Need,
    pub usable: bool,
    /// The reason, with what to do if it is not usable.
    pub because: String,
    /// The probe that rules it out, with its status.
    #[serde(skip)]
    pub blocked_by: Option<(&'static str, Status)>,
}
