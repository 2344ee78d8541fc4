//! Measured steps as a file, to be judged again: by another version of this program, or on another machine.

use super::{Error, Role, Steps};
use pipesim_exec::{DeviceRecord, StepRecord};
use pipesim_schedule::graph::TaskGraph;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

/// Version of the file's schema.
const SCHEMA_VERSION: u32 = 2;

/// Most bytes of the file, unpacked.
const MOST_BYTES: u64 = 1 << 30;

/// Key of the provenance that describes the training.
pub(super) const TRAINING: &str = "training";

/// Key of the checksum of everything else that the model's times depend on; absent in older files.
pub(super) const SHAPE: &str = "shape";

/// Longest time, 13 days: sums over many steps still fit into 64 bits.
const MOST_NS: u64 = 1 << 50;

/// The steps of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    schema_version: u32,
    /// What was measured, where and when.
    pub provenance: BTreeMap<String, String>,
    runs: Vec<Run>,
}

/// The steps of one schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    schedule: String,
    microbatches: u32,
    role: Role,
    ops: usize,
    /// Checksum of the order; absent in older files.
    #[serde(default)]
    order: Option<String>,
    steps: Vec<StepRecord>,
}

/// Returns a checksum of the ops of each device in their order. A schedule file may keep its name and number of ops when it changes.
fn order(graph: &TaskGraph) -> String {
    let schedule = graph.schedule();
    let mut hasher = crc32fast::Hasher::new();
    for device in 0..schedule.devices() {
        for op in schedule.program(device) {
            let pair = if op.opens_pair() { "+" } else { " " };
            hasher.update(format!("{op}{pair}").as_bytes());
        }
        hasher.update(b"\n");
    }
    format!("{:08x}", hasher.finalize())
}

impl Run {
    fn devices(&self) -> usize {
        self.steps.first().map_or(0, |step| step.devices.len())
    }
}

/// The part of a file that every version has.
#[derive(Deserialize)]
struct Version {
    schema_version: u32,
}

impl Recorded {
    /// Returns the steps of `runs` with their provenance.
    pub fn new(provenance: BTreeMap<String, String>, runs: &[Steps]) -> Recorded {
        let run = |run: &Steps| Run {
            schedule: run.graph.schedule().name.clone(),
            microbatches: run.graph.schedule().microbatches,
            role: run.role,
            ops: run.graph.len(),
            order: Some(order(&run.graph)),
            steps: run.records.clone(),
        };
        Recorded { schema_version: SCHEMA_VERSION, provenance, runs: runs.iter().map(run).collect() }
    }

    /// Returns JSON, packed with gzip.
    pub fn write(&self) -> Result<Vec<u8>, Error> {
        let mut encoder = flate2::GzBuilder::new().mtime(0).write(Vec::new(), flate2::Compression::new(6));
        let json = serde_json::to_vec(self).map_err(anyhow::Error::from)?;
        Ok(encoder.write_all(&json).and_then(|()| encoder.finish()).map_err(anyhow::Error::from)?)
    }

    /// Reads what [`Recorded::write`] wrote.
    pub fn read(bytes: &[u8]) -> Result<Recorded, Error> {
        let mut json = Vec::new();
        let unpacked = flate2::read::GzDecoder::new(bytes).take(MOST_BYTES).read_to_end(&mut json);
        let unknown = |why: String| {
            Error::Usage(format!(
                "expected steps as `record` of `pipesim report accuracy` writes them, found other data ({why})"
            ))
        };
        unpacked.map_err(|error| unknown(error.to_string()))?;
        // Other versions have other fields.
        let Version { schema_version: found } =
            serde_json::from_slice(&json).map_err(|error| unknown(error.to_string()))?;
        if found != SCHEMA_VERSION {
            return Err(Error::Usage(format!(
                "expected version {SCHEMA_VERSION} of recorded steps, found {found}; measure again with `record`"
            )));
        }
        serde_json::from_slice(&json).map_err(|error| unknown(error.to_string()))
    }

    /// Checks that the steps are of the training `expected` with the checksum `shape`, if the file says what training they are of.
    pub fn require_training(&self, expected: &str, shape: &str) -> Result<(), Error> {
        let has = |key, own: &str| self.provenance.get(key).is_none_or(|found| found == own);
        if let Some(found) = self.provenance.get(TRAINING).filter(|_| !has(TRAINING, expected)) {
            return Err(Error::Usage(format!(
                "expected recorded steps of {expected}, found steps of {found}; use the options that they were measured with"
            )));
        }
        if !has(SHAPE, shape) {
            return Err(Error::Usage(format!(
                "expected recorded steps of this model, {expected}, found steps of a model that differs in other sizes, or in the layers \
                 per stage; use the options and files that they were measured with"
            )));
        }
        Ok(())
    }

    /// Returns the steps of `graphs`.
    ///
    /// # Errors
    /// The steps are of other graphs.
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
            let run =
                runs.next().filter(|run| (&run.schedule, run.microbatches, run.role, run.ops) == (&name, m, role, ops));
            if run.as_ref().and_then(|run| run.order.as_ref()).is_some_and(|recorded| *recorded != order(&graph)) {
                return Err(Error::Usage(format!(
                    "expected recorded steps of {name} in the order that it has now, found another order; restore the schedule, or measure again with `record`"
                )));
            }
            let records = run.map(|run| run.steps).filter(|steps| fit(steps, &graph)).ok_or_else(|| {
                let devices = graph.schedule().devices();
                Error::Usage(format!(
                    "expected recorded steps of {name} on {devices} devices at m = {m} next, found {}; use the options that they \
                     were measured with",
                    found.join(", ")
                ))
            })?;
            steps.push(Steps { graph: Arc::new(graph), role, records });
        }
        Ok(steps)
    }
}

/// Whether there are steps, all of them of `graph` and with possible times.
fn fit(steps: &[StepRecord], graph: &TaskGraph) -> bool {
    let fits = |step: &StepRecord| {
        let ops = step.devices.iter().flat_map(|device| device.ops.iter().chain(&device.host_copies));
        let mut seen: Vec<usize> = ops.map(|op| op.index).collect();
        seen.sort_unstable();
        step.devices.len() == graph.schedule().devices() as usize
            && seen.into_iter().eq(0..graph.len())
            && step.devices.iter().all(has_times)
            && step.following.iter().map(|step| step.end_ns).chain([MOST_NS]).is_sorted()
    };
    !steps.is_empty() && steps.iter().all(fits)
}

/// Whether nothing ends before it begins or lasts too long, and ops end one after the other.
fn has_times(device: &DeviceRecord) -> bool {
    let grow = |times: &[u64]| times.is_sorted() && times.last().is_none_or(|&last| last <= MOST_NS);
    let ends: Vec<u64> = device.ops.iter().map(|op| op.end).collect();
    grow(&ends)
        && device
            .ops
            .iter()
            .chain(&device.host_copies)
            .all(|op| grow(&[op.turn, op.start, op.end]) && grow(&[op.put_start, op.put_end]))
        && device.steps.iter().all(|&(_, start, end)| grow(&[start, end]))
        && device.timings.iter().all(|(op, timing)| (*op as usize) < device.ops.len() && timing.duration_ns <= MOST_NS)
}
