//! Measured steps written down, to be judged again: by another version of this program, or by somebody else.

use super::{Error, Role, Steps};
use crate::exec::{DeviceRecord, StepRecord};
use crate::graph::TaskGraph;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

/// Version of the description.
const SCHEMA_VERSION: u32 = 1;

/// Most bytes of the description, unpacked.
const MOST_BYTES: u64 = 1 << 30;

/// Under which name the provenance says what was trained.
pub(super) const TRAINING: &str = "training";

/// Longest time, 13 days: sums over many steps still fit.
const MOST_NS: u64 = 1 << 50;

/// All steps of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    schema_version: u32,
    /// What was measured, where and when.
    pub provenance: BTreeMap<String, String>,
    runs: Vec<Run>,
}

/// Those of one schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    schedule: String,
    microbatches: u32,
    role: Role,
    ops: usize,
    steps: Vec<StepRecord>,
}

impl Run {
    fn devices(&self) -> usize {
        self.steps.first().map_or(0, |step| step.devices.len())
    }
}

impl Recorded {
    /// Of these runs.
    pub fn new(provenance: BTreeMap<String, String>, runs: &[Steps]) -> Recorded {
        let run = |run: &Steps| Run {
            schedule: run.graph.schedule().name.clone(),
            microbatches: run.graph.schedule().microbatches,
            role: run.role,
            ops: run.graph.len(),
            steps: run.records.clone(),
        };
        Recorded { schema_version: SCHEMA_VERSION, provenance, runs: runs.iter().map(run).collect() }
    }

    /// As JSON, packed by gzip.
    pub fn write(&self) -> Result<Vec<u8>, Error> {
        let mut encoder = flate2::GzBuilder::new().mtime(0).write(Vec::new(), flate2::Compression::new(6));
        let json = serde_json::to_vec(self).map_err(anyhow::Error::from)?;
        Ok(encoder.write_all(&json).and_then(|()| encoder.finish()).map_err(anyhow::Error::from)?)
    }

    /// What [`Recorded::write`] wrote.
    pub fn read(bytes: &[u8]) -> Result<Recorded, Error> {
        let mut json = Vec::new();
        let unpacked = flate2::read::GzDecoder::new(bytes).take(MOST_BYTES).read_to_end(&mut json);
        let read =
            unpacked.map_err(|e| e.to_string()).and_then(|_| serde_json::from_slice(&json).map_err(|e| e.to_string()));
        let recorded: Recorded = read.map_err(|why| {
            Error::Usage(format!(
                "expected steps as `pipesim report accuracy --record` writes them, found other data ({why})"
            ))
        })?;
        match recorded.schema_version {
            SCHEMA_VERSION => Ok(recorded),
            found => Err(Error::Usage(format!("expected version {SCHEMA_VERSION} of recorded steps, found {found}"))),
        }
    }

    /// Refuses steps of another training than `expected`; where it was not written down what they are of, nothing is said.
    pub fn require_training(&self, expected: &str) -> Result<(), Error> {
        match self.provenance.get(TRAINING) {
            Some(found) if found != expected => Err(Error::Usage(format!(
                "expected recorded steps of {expected}, found those of {found}; give the options that they were measured with"
            ))),
            _ => Ok(()),
        }
    }

    /// Its steps, of `graphs`.
    ///
    /// # Errors
    /// They are of other graphs, or of other numbers of devices.
    pub fn steps(self, graphs: Vec<(TaskGraph, Role)>) -> Result<Vec<Steps>, Error> {
        let found: Vec<String> = self
            .runs
            .iter()
            .map(|run| format!("{} p={} m={}", run.schedule, run.devices(), run.microbatches))
            .collect();
        let mut runs = self.runs.into_iter();
        let mut steps = Vec::with_capacity(graphs.len());
        for (graph, role) in graphs {
            let (name, m, ops) = (graph.schedule().name.clone(), graph.schedule().microbatches, graph.len());
            // Steps that were written down before links were measured have none of these.
            if role == Role::CalibratesLinks && runs.as_slice().first().is_none_or(|run| run.role != role) {
                continue;
            }
            let run =
                runs.next().filter(|run| (&run.schedule, run.microbatches, run.role, run.ops) == (&name, m, role, ops));
            let records = run.map(|run| run.steps).filter(|steps| fit(steps, &graph)).ok_or_else(|| {
                let devices = graph.schedule().devices();
                Error::Usage(format!(
                    "expected recorded steps of {name} on {devices} devices at m = {m} next, found {}; give the options that they \
                     were measured with",
                    found.join(", ")
                ))
            })?;
            steps.push(Steps { graph: Arc::new(graph), role, records });
        }
        Ok(steps)
    }
}

/// Whether there are steps, all of them of that graph, and with times that can be.
fn fit(steps: &[StepRecord], graph: &TaskGraph) -> bool {
    let fits = |step: &StepRecord| {
        let mut seen: Vec<usize> = step.devices.iter().flat_map(|device| &device.ops).map(|op| op.index).collect();
        seen.sort_unstable();
        step.devices.len() == graph.schedule().devices() as usize
            && seen.into_iter().eq(0..graph.len())
            && step.devices.iter().all(has_times)
            && step.following.iter().map(|step| step.end_ns).chain([MOST_NS]).is_sorted()
    };
    !steps.is_empty() && steps.iter().all(fits)
}

/// Whether nothing ends before it begins or lasts for ever, and ops end one after the other.
fn has_times(device: &DeviceRecord) -> bool {
    let grow = |times: &[u64]| times.is_sorted() && times.last().is_none_or(|&last| last <= MOST_NS);
    let ends: Vec<u64> = device.ops.iter().map(|op| op.end).collect();
    grow(&ends)
        && device.ops.iter().all(|op| grow(&[op.turn, op.start, op.end]) && grow(&[op.put_start, op.put_end]))
        && device.steps.iter().all(|&(_, start, end)| grow(&[start, end]))
        && device.laps.iter().all(|(op, lap)| (*op as usize) < device.ops.len() && lap.duration_ns <= MOST_NS)
}
