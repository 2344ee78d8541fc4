//! Probes that check which devices and libraries work on this machine. Each has a finding and, unless it is ok, one thing to do.
//!
//! A library or driver may crash, hang or end the process that opens it. Therefore a probe that opens one runs in a child process
//! (this program again, `doctor --probe NAME`, which prints one line of JSON) with a time limit.

mod child;
mod finding;
mod gpus;
mod host;
mod libraries;

pub use finding::{Asked, Finding, Need, NoSuchName, Row, Status, Verdict};
pub use gpus::{COPIED_BYTES, Copied, pattern, peer_finding};
pub use host::{locked_memory_finding, mpi_finding, shared_memory_finding, slurm_finding};

use child::NVSHMEM;
use serde::Serialize;
use std::time::{Duration, Instant};

pub const SCHEMA_VERSION: u32 = 1;

/// A check of one device or library.
#[derive(Debug)]
pub struct Probe {
    /// Name in reports and on the command line.
    pub name: &'static str,
    /// Whether it opens a library and thus runs in a child process.
    is_isolated: bool,
    /// Whether it opens a context on a GPU, which may admit one process at a time.
    opens_gpu: bool,
    /// The probe, which may crash or hang.
    ask: fn() -> Asked,
}

const fn probe(name: &'static str, is_isolated: bool, ask: fn() -> Asked) -> Probe {
    Probe { name, is_isolated, opens_gpu: false, ask }
}

const fn gpu_probe(name: &'static str, ask: fn() -> Asked) -> Probe {
    Probe { name, is_isolated: true, opens_gpu: true, ask }
}

/// All probes, in the order of reports.
pub static PROBES: [Probe; 15] = [
    probe("driver", true, gpus::driver),
    gpu_probe("devices", gpus::devices),
    gpu_probe("peer-access", gpus::peer_access),
    probe("nvlink", true, libraries::nvlink),
    gpu_probe("green-contexts", gpus::green_contexts),
    gpu_probe("nvrtc", libraries::nvrtc),
    gpu_probe("cublaslt", libraries::cublaslt),
    probe("cudnn", true, libraries::cudnn),
    probe("nccl", true, libraries::nccl),
    gpu_probe(NVSHMEM, libraries::nvshmem),
    probe("mpi", false, || Ok(host::mpi())),
    probe("slurm", false, || Ok(host::slurm())),
    probe("shared-memory", false, || Ok(host::shared_memory())),
    probe("locked-memory", false, || Ok(host::locked_memory())),
    probe("processor", false, || Ok(host::processor())),
];

/// Opens the libraries that every run on GPUs opens. Not reported.
static OPENING: Probe = probe("opening", true, libraries::opening);

/// Why NVIDIA's libraries must not be opened in this process.
#[derive(Clone, Debug, thiserror::Error)]
#[error("expected NVIDIA's libraries to open, found that a process that opens them {how}, or use `device` cpu")]
pub struct Unopened {
    how: String,
}

/// Opens NVIDIA's libraries in a child process, so that one that hangs or crashes does not affect this process. The environment
/// variable `variable` sets the limit.
///
/// # Errors
/// The child does not end within `limit`, or crashes.
pub fn may_open_libraries(limit: Duration, variable: &str) -> Result<(), Unopened> {
    let (seconds, ended) = (limit.as_secs(), child::survives(OPENING.name, limit));
    ended.map_err(|how| Unopened {
        how: match how {
            None => format!("does not end within {seconds} s: set {variable}={} if the disk is slow", 2 * seconds),
            Some(how) => format!("{how}: see pipesim doctor"),
        },
    })
}

impl Probe {
    /// Runs the probe in this process.
    pub fn finding(&self) -> Finding {
        (self.ask)().unwrap_or_else(|early| early)
    }

    /// Returns the probe of this name.
    pub fn named(text: &str) -> Result<&'static Probe, NoSuchName> {
        let names: Vec<&str> = PROBES.iter().map(|probe| probe.name).collect();
        let found = PROBES.iter().chain([&OPENING]).find(|probe| probe.name == text);
        found.ok_or_else(|| NoSuchName { known: format!("one of {}", names.join(", ")), found: text.to_string() })
    }
}

/// All findings about this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    pub schema_version: u32,
    /// One row per probe, in the order of [`PROBES`].
    pub probes: Vec<Row>,
    /// Whether each feature can be used.
    pub needs: Vec<Verdict>,
}

/// Runs all probes, each within `limit`. Those that open a GPU run one after the other: a GPU in exclusive-process mode admits one
/// process, and copies between GPUs are timed.
pub fn examine(limit: Duration) -> Diagnosis {
    let probes: Vec<Row> = std::thread::scope(|scope| {
        // A probe that gets no thread runs afterwards, like those that open a GPU.
        let start = |probe: &'static Probe| std::thread::Builder::new().spawn_scoped(scope, || row(probe, limit)).ok();
        let together = |probe: &'static Probe| (!probe.opens_gpu).then(|| start(probe)).flatten();
        let started: Vec<_> = PROBES.iter().map(|probe| (probe, together(probe))).collect();
        let ended = started.into_iter().map(|(probe, thread)| (probe, thread.map(|thread| thread.join())));
        let ended: Vec<_> = ended.collect();
        let crashed = |probe: &Probe| Row {
            name: probe.name,
            finding: Finding::broken("the probe itself crashed", "report this as a bug"),
            duration_ms: 0.0,
        };
        let rows = ended.into_iter().map(|(probe, ended)| match ended {
            Some(row) => row.unwrap_or_else(|_| crashed(probe)),
            None => row(probe, limit),
        });
        rows.collect()
    });
    let needs = Need::ALL.into_iter().map(|need| need.verdict(&probes)).collect();
    Diagnosis { schema_version: SCHEMA_VERSION, probes, needs }
}

fn row(probe: &Probe, limit: Duration) -> Row {
    let begin = Instant::now();
    let finding = if probe.is_isolated { child::ask(probe.name, limit) } else { probe.finding() };
    Row { name: probe.name, finding, duration_ms: begin.elapsed().as_micros() as f64 / 1e3 }
}

impl Diagnosis {
    pub fn verdict(&self, need: Need) -> Option<&Verdict> {
        self.needs.iter().find(|verdict| verdict.need == need)
    }

    /// Formats the findings for the terminal.
    pub fn text(&self) -> String {
        let mut text =
            "cpu: yes, `pipesim run` works here; what follows is about GPUs and several machines\n\n".to_string();
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
