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

impl From<pipesim_cuda::library::Missing> for Finding {
    fn from(missing: pipesim_cuda::library::Missing) -> Finding {
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
    pub(super) fn verdict(self, rows: &[Row]) -> Verdict {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that are ok, except those listed.
    fn rows(unwell: &[(&str, Status)]) -> Vec<Row> {
        let row = |name: &'static str| {
            let status = unwell.iter().find(|(other, _)| *other == name).map_or(Status::Ok, |(_, status)| *status);
            let fix = (status != Status::Ok).then(|| format!("mend {name}"));
            let finding = Finding { status, found: "this".to_string(), fix };
            Row { name, finding, duration_ms: 0.0 }
        };
        super::super::PROBES.iter().map(|probe| row(probe.name)).collect()
    }

    fn usable(unwell: &[(&str, Status)]) -> Vec<&'static str> {
        let rows = rows(unwell);
        Need::ALL.into_iter().filter(|need| need.verdict(&rows).usable).map(Need::name).collect()
    }

    #[test]
    fn what_can_be_used_follows_from_what_was_found() {
        assert_eq!(usable(&[]), ["cuda", "nvshmem", "nccl", "mpi"]);
        for status in [Status::Missing, Status::Broken, Status::Unknown] {
            assert_eq!(usable(&[("driver", status)]), ["mpi"]);
            assert_eq!(usable(&[("devices", status)]), ["mpi"]);
            assert_eq!(usable(&[("nvrtc", status)]), ["mpi"]);
            assert_eq!(usable(&[("cublaslt", status)]), ["mpi"]);
            assert_eq!(usable(&[("nvshmem", status)]), ["cuda", "nccl", "mpi"]);
            assert_eq!(usable(&[("nccl", status)]), ["cuda", "nvshmem", "mpi"]);
            assert_eq!(usable(&[("mpi", status)]), ["cuda", "nvshmem", "nccl"]);
            for probe in ["nvlink", "green-contexts", "locked-memory", "processor"] {
                assert_eq!(usable(&[(probe, status)]), ["cuda", "nvshmem", "nccl", "mpi"], "{probe}");
            }
        }
        // Unknown is acceptable: one GPU has no peers, and one machine needs no Slurm. Broken is not: wrong bytes, hidden peers.
        assert_eq!(usable(&[("peer-access", Status::Unknown)]), ["cuda", "nvshmem", "nccl", "mpi"]);
        assert_eq!(usable(&[("peer-access", Status::Broken)]), ["cuda", "mpi"]);
        assert_eq!(usable(&[("slurm", Status::Broken)]), ["cuda", "mpi"]);
        assert_eq!(usable(&[("shared-memory", Status::Broken)]), ["cuda"]);
    }

    #[test]
    fn the_first_thing_in_the_way_is_named_with_what_to_do() {
        let rows = rows(&[("driver", Status::Missing), ("devices", Status::Unknown)]);
        assert_eq!(Need::Cuda.verdict(&rows).because, "driver is missing: this; mend driver");
        assert_eq!(Need::Mpi.verdict(&rows).because, "mpi is ok");
    }
}
