//! The measured steps of one schedule, and what they are measured for.

use pipesim_cost::CostTable;
use pipesim_exec::StepRecord;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::statistics::{median, nearest_median, relative_error};
use pipesim_sim::replay;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a schedule is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Its costs: all predictions are made from these steps.
    Calibrates,
    /// The duration of ops without neighbours: the calibrating schedule with one micro-batch.
    CalibratesAlone,
    /// The costs of micro-batches of another size, by its number.
    CalibratesSize(usize),
    /// The costs of slices: the calibrating schedule with each op cut into slices.
    CalibratesSlices,
    /// The costs of copies to the host: the calibrating schedule with all of its activations offloaded.
    CalibratesCopies,
    /// Comparison with its prediction, which knows nothing of these steps.
    Judged,
    /// The same in another training than the one that calibrates, by its number.
    Transferred(usize),
    /// The time of one device, for speed-ups.
    Baseline,
}

impl Role {
    /// Whether costs are made of the steps.
    pub fn calibrates(self) -> bool {
        !matches!(self, Role::Judged | Role::Transferred(_) | Role::Baseline)
    }

    /// Returns which of the runs with these roles were asked for: all but those that calibrate; if all do, the first one.
    pub fn asked_for(roles: &[Role]) -> Vec<bool> {
        let all_calibrate = roles.iter().all(|role| role.calibrates());
        roles.iter().enumerate().map(|(number, role)| !role.calibrates() || (number == 0 && all_calibrate)).collect()
    }

    /// Whether the steps are compared with a prediction.
    pub fn is_judged(self) -> bool {
        matches!(self, Role::Judged | Role::Transferred(_))
    }
}

/// The measured steps of one schedule.
#[derive(Clone)]
pub struct Steps {
    /// What was executed.
    pub graph: Arc<TaskGraph>,
    /// What for.
    pub role: Role,
    /// The steps, in order.
    pub records: Vec<StepRecord>,
}

impl Steps {
    /// Returns an empty list of steps of `graph`.
    pub fn new(graph: Arc<TaskGraph>, role: Role) -> Steps {
        Steps { graph, role, records: Vec::new() }
    }

    /// Makespans in milliseconds.
    pub fn makespans_ms(&self) -> Vec<f64> {
        self.records.iter().map(|record| record.makespan_ns() as f64 / 1e6).collect()
    }

    /// Drift of the machine's speed: how much longer the second half of the steps took than the first, as a share.
    pub fn drift(&self) -> f64 {
        let makespans = self.makespans_ms();
        let (first, second) = makespans.split_at(makespans.len() / 2);
        if first.is_empty() { 0.0 } else { median(second) / median(first) - 1.0 }
    }

    /// Returns the step nearest to the median makespan: the one that is drawn and judged.
    ///
    /// # Panics
    /// There are no steps.
    pub fn median_step(&self) -> &StepRecord {
        let figures = |record: &StepRecord| (record.makespan_ns() as f64, record.busy_ns() as f64);
        &self.records[nearest_median(&self.records.iter().map(figures).collect::<Vec<_>>())]
    }

    /// Returns the numbers of the steps just before and just after `other` in time; the same number twice at either end.
    pub fn around(&self, other: &StepRecord) -> [usize; 2] {
        let after = self.records.partition_point(|record| record.at_ns <= other.at_ns);
        [after.saturating_sub(1), after.min(self.records.len().saturating_sub(1))]
    }

    /// Returns [`Steps::around`] of all `others`, one after the other; nothing if there are no steps.
    pub fn around_all(&self, others: &Steps) -> Vec<usize> {
        if self.records.is_empty() {
            return Vec::new();
        }
        others.records.iter().flat_map(|other| self.around(other)).collect()
    }

    /// Returns the makespan error when each step's own durations are fed back into the simulation, the median over steps.
    pub(super) fn self_replay(&self, costs: &CostTable) -> f64 {
        let graph = &*self.graph;
        let replayed = |record: &StepRecord| {
            let mut own = vec![0; graph.len()];
            let ops = record.devices.iter().flat_map(|device| device.ops.iter().chain(&device.host_copies));
            ops.for_each(|op| own[op.index] = op.end - op.start);
            let replayed = match pauses(record, graph.len()) {
                pauses if pauses.is_empty() => replay(graph, costs, &own),
                pauses => {
                    let mut costs = costs.clone();
                    costs.extras.pauses = pauses;
                    replay(graph, &costs, &own)
                }
            };
            relative_error(replayed as f64, record.makespan_ns() as f64)
        };
        median(&self.records.iter().map(replayed).collect::<Vec<_>>())
    }
}

/// Returns for each of `ops` ops how long its device summed gradients behind it in a step, waits for other replicas included: these
/// are not part of the graph. Empty if none did.
fn pauses(record: &StepRecord, ops: usize) -> Vec<u64> {
    let mut pauses = Vec::new();
    for device in &record.devices {
        for pair in device.ops.windows(2) {
            let is_between = |start: u64| (pair[0].end..pair[1].turn).contains(&start);
            let ends = device.steps.iter().filter(|(_, start, _)| is_between(*start)).map(|&(.., end)| end);
            if let Some(end) = ends.max() {
                pauses.resize(ops, 0);
                pauses[pair[0].index] = end.saturating_sub(pair[0].put_end);
            }
        }
    }
    pauses
}
