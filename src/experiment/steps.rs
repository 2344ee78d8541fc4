//! The measured steps of one schedule, and those of another that ran beside them in time.

use crate::exec::StepRecord;
use crate::graph::TaskGraph;
use crate::statistics::{median, most_typical};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a schedule is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Its costs alone.
    Calibrates,
    /// To be held against its prediction, which knows nothing of it.
    Judged,
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
    /// None yet.
    pub fn new(graph: Arc<TaskGraph>, role: Role) -> Steps {
        Steps { graph, role, records: Vec::new() }
    }

    /// Whether it is measured for its costs alone.
    pub fn calibrates(&self) -> bool {
        self.role == Role::Calibrates
    }

    /// How much slower the second half of the steps was than the first: the machine's drift.
    pub fn drift(&self) -> f64 {
        let makespans: Vec<f64> = self.records.iter().map(|record| record.makespan_ns() as f64).collect();
        let (first, second) = makespans.split_at(makespans.len() / 2);
        if first.is_empty() { 0.0 } else { median(second) / median(first) - 1.0 }
    }

    /// The recorded step with the most typical makespan and busy time: the one that is drawn.
    pub fn typical_step(&self) -> &StepRecord {
        let busy = |record: &StepRecord| -> u64 {
            record.devices.iter().flat_map(|device| &device.ops).map(|op| op.end - op.start).sum()
        };
        let figures = |record: &StepRecord| (record.makespan_ns() as f64, busy(record) as f64);
        &self.records[most_typical(&self.records.iter().map(figures).collect::<Vec<_>>())]
    }

    /// For each of `others` the numbers of the steps just before and just after it; the same number twice where one side has none.
    pub fn beside(&self, others: &Steps) -> Vec<usize> {
        let Some(last) = self.records.len().checked_sub(1) else { return Vec::new() };
        let pair = |other: &StepRecord| {
            let after = self.records.partition_point(|record| record.at_ns <= other.at_ns);
            [after.saturating_sub(1), after.min(last)]
        };
        others.records.iter().flat_map(pair).collect()
    }
}
