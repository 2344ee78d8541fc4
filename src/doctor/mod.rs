//! What of this machine can be used: one probe a row, each with what was found and, where it is not well, one thing to do.
//!
//! Libraries and drivers may crash, hang or end the process that opens them. So a probe that opens one runs in a child
//! process (this program again, `doctor --probe NAME`, which prints one JSON line) with a time limit.

mod child;
mod devices;
mod driver;
mod finding;
mod host;
mod libraries;
mod needs;
mod peers;

pub use finding::{Finding, NoSuchName, Probe, Row, Status};
pub use needs::{Need, Verdict};

use serde::Serialize;
use std::time::{Duration, Instant};

/// Version of the JSON of [`Diagnosis`].
pub const SCHEMA_VERSION: u32 = 1;

impl Probe {
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
