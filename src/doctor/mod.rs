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

pub use finding::{Finding, NoSuchName, Row, Status};
pub use needs::{Need, Verdict};

use child::NVSHMEM;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Version of the JSON of [`Diagnosis`].
pub const SCHEMA_VERSION: u32 = 1;

/// One question to the machine: a row of [`PROBES`].
#[derive(Debug)]
pub struct Probe {
    /// Its name in reports and on the command line.
    pub name: &'static str,
    /// Whether it opens a library, and so runs in a child process.
    is_isolated: bool,
    /// Asks, in this process: it may crash or hang. What a child process does.
    pub ask: fn() -> Finding,
}

const fn probe(name: &'static str, is_isolated: bool, ask: fn() -> Finding) -> Probe {
    Probe { name, is_isolated, ask }
}

/// All, in the order in which they are told.
pub static PROBES: [Probe; 14] = [
    probe("driver", true, devices::driver),
    probe("devices", true, devices::devices),
    probe(PEER_ACCESS, true, peers::peer_access),
    probe("nvlink", true, libraries::nvlink),
    probe("green-contexts", true, devices::green_contexts),
    probe("nvrtc", true, libraries::nvrtc),
    probe("cublaslt", true, libraries::cublaslt),
    probe("nccl", true, libraries::nccl),
    probe(NVSHMEM, true, libraries::nvshmem),
    probe("mpi", false, host::mpi),
    probe("slurm", false, host::slurm),
    probe("shared-memory", false, host::shared_memory),
    probe("locked-memory", false, host::locked_memory),
    probe("processor", false, host::processor),
];

/// Opens what every run on GPUs opens. Told in no report.
static OPENING: Probe = probe("opening", true, libraries::opening);

/// Whether this process may open NVIDIA's libraries: a child process opens them first, so that one which hangs or crashes when it is
/// loaded does not take this process with it.
///
/// # Errors
/// The child does not end within `limit`, or crashes.
pub fn may_open_libraries(limit: Duration) -> Result<(), String> {
    child::survives(OPENING.name, limit).map_err(|how| {
        format!(
            "expected NVIDIA's libraries to open, found that a process which opens them {how}: see pipesim doctor, or use --device cpu"
        )
    })
}

/// The probe that is measured alone.
const PEER_ACCESS: &str = "peer-access";

impl Probe {
    /// The probe of this name.
    ///
    /// # Errors
    /// There is none; the error lists them.
    pub fn named(text: &str) -> Result<&'static Probe, NoSuchName> {
        let names: Vec<&str> = PROBES.iter().map(|probe| probe.name).collect();
        let found = PROBES.iter().chain([&OPENING]).find(|probe| probe.name == text);
        found.ok_or_else(|| NoSuchName { known: format!("one of {}", names.join(", ")), found: text.to_string() })
    }
}

/// The machine, examined.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// A row a probe, in the order of [`PROBES`].
    pub probes: Vec<Row>,
    /// What follows from them, for each need.
    pub needs: Vec<Verdict>,
}

/// Asks all probes, each within `limit`: all at once but the copies between GPUs, which are measured alone.
pub fn examine(limit: Duration) -> Diagnosis {
    let probes: Vec<Row> = std::thread::scope(|scope| {
        // A probe that gets no thread is asked afterwards, as the copies between GPUs are.
        let start = |probe: &'static Probe| std::thread::Builder::new().spawn_scoped(scope, || row(probe, limit)).ok();
        let together = |probe: &'static Probe| (probe.name != PEER_ACCESS).then(|| start(probe)).flatten();
        let asked: Vec<_> = PROBES.iter().map(|probe| (probe, together(probe))).collect();
        let told = asked.into_iter().map(|(probe, thread)| (probe, thread.map(|thread| thread.join())));
        let told: Vec<_> = told.collect();
        let crashed = |probe: &Probe| Row {
            name: probe.name,
            finding: Finding::broken("the probe itself crashed", "report this as a bug"),
            duration_ms: 0.0,
        };
        let rows = told.into_iter().map(|(probe, told)| match told {
            Some(told) => told.unwrap_or_else(|_| crashed(probe)),
            None => row(probe, limit),
        });
        rows.collect()
    });
    let needs = Need::ALL.into_iter().map(|need| need.verdict(&probes)).collect();
    Diagnosis { schema_version: SCHEMA_VERSION, probes, needs }
}

fn row(probe: &Probe, limit: Duration) -> Row {
    let begin = Instant::now();
    let finding = if probe.is_isolated { child::ask(probe.name, limit) } else { (probe.ask)() };
    Row { name: probe.name, finding, duration_ms: begin.elapsed().as_micros() as f64 / 1e3 }
}

impl Diagnosis {
    /// The verdict on one need.
    pub fn verdict(&self, need: Need) -> Option<&Verdict> {
        self.needs.iter().find(|verdict| verdict.need == need)
    }

    /// For people: that the CPU is enough, a line a probe, what to do below it, then what can be used.
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
