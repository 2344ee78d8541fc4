//! The measured steps of one schedule, and those of another that ran beside them in time.

use crate::exec::StepRecord;
use crate::graph::TaskGraph;
use crate::statistics::{median, nearest_median};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a schedule is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Its costs alone.
    Calibrates,
    /// The costs of micro-batches of another size, by its number.
    CalibratesSize(usize),
    /// What messages cost each other: nothing is computed in its steps.
    CalibratesLinks,
    /// To be held against its prediction, which knows nothing of it.
    Judged,
    /// The same in another training than the one that calibrates, by its number.
    Transferred(usize),
}

impl Role {
    /// The number of the other size or training.
    pub fn number(self) -> Option<usize> {
        match self {
            Role::CalibratesSize(number) | Role::Transferred(number) => Some(number),
            Role::Calibrates | Role::CalibratesLinks | Role::Judged => None,
        }
    }
}

/// Smallest change of speed that is called a jump.
const NOTICED_JUMP: f64 = 0.05;

/// A machine that all at once was slower or faster, and stayed so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jump {
    /// When, since measuring began.
    pub at_ns: u64,
    /// How much longer steps took from then on; below 0 they were shorter.
    pub change: f64,
}

impl std::fmt::Display for Jump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.0} % after {:.0} s", 100.0 * self.change, self.at_ns as f64 / 1e9)
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
    /// None yet.
    pub fn new(graph: Arc<TaskGraph>, role: Role) -> Steps {
        Steps { graph, role, records: Vec::new() }
    }

    /// Whether it is measured for its costs alone.
    pub fn calibrates(&self) -> bool {
        matches!(self.role, Role::Calibrates | Role::CalibratesSize(_) | Role::CalibratesLinks)
    }

    /// How much slower the second half of the steps was than the first: the machine's drift.
    pub fn drift(&self) -> f64 {
        let makespans: Vec<f64> = self.records.iter().map(|record| record.makespan_ns() as f64).collect();
        let (first, second) = makespans.split_at(makespans.len() / 2);
        if first.is_empty() { 0.0 } else { median(second) / median(first) - 1.0 }
    }

    /// Where the machine's speed jumped: the five steps before, typically, against the five after, by more than they scatter.
    pub fn jumps(&self) -> Vec<Jump> {
        const FEW: usize = 5;
        let makespans: Vec<f64> = self.records.iter().map(|record| record.makespan_ns() as f64).collect();
        let change = |at: usize| {
            let (before, after) = (&makespans[at - FEW..at], &makespans[at..at + FEW]);
            let scatter = |few: &[f64]| {
                let middle = median(few);
                median(&few.iter().map(|time| (time / middle - 1.0).abs()).collect::<Vec<_>>())
            };
            let change = median(after) / median(before) - 1.0;
            (change.abs() > NOTICED_JUMP.max(5.0 * scatter(before).max(scatter(after)))).then_some(change)
        };
        let mut found: Vec<(usize, f64)> = Vec::new();
        for at in FEW..(makespans.len() + 1).saturating_sub(FEW).max(FEW) {
            let Some(change) = change(at) else { continue };
            match found.last_mut().filter(|(last, _)| at - *last < FEW) {
                Some(last) if last.1.abs() >= change.abs() => {}
                Some(last) => *last = (at, change),
                None => found.push((at, change)),
            }
        }
        found.into_iter().map(|(at, change)| Jump { at_ns: self.records[at].at_ns, change }).collect()
    }

    /// The recorded step nearest to the median makespan: the one that is drawn and judged.
    pub fn median_step(&self) -> &StepRecord {
        let figures = |record: &StepRecord| (record.makespan_ns() as f64, record.busy_ns() as f64);
        &self.records[nearest_median(&self.records.iter().map(figures).collect::<Vec<_>>())]
    }

    /// The numbers of the steps just before and just after `other`; the same number twice where one side has none.
    pub fn beside(&self, other: &StepRecord) -> [usize; 2] {
        let after = self.records.partition_point(|record| record.at_ns <= other.at_ns);
        [after.saturating_sub(1), after.min(self.records.len().saturating_sub(1))]
    }

    /// The same of all `others`, one after the other; nothing where there are no steps.
    pub fn all_beside(&self, others: &Steps) -> Vec<usize> {
        if self.records.is_empty() {
            return Vec::new();
        }
        others.records.iter().flat_map(|other| self.beside(other)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::{DeviceRecord, OpRecord};
    use crate::resolve::{self, Selection, unknown_costs};

    /// Steps at these seconds that took so many ns.
    fn steps(times: &[(u64, u64)]) -> Steps {
        let graph = Selection::new(2, 2).graph::<resolve::Error>("1f1b", &unknown_costs).unwrap().graph;
        let record = |&(at, end): &(u64, u64)| {
            let ops = vec![OpRecord { end, ..OpRecord::default() }];
            let devices = vec![DeviceRecord { ops, ..DeviceRecord::default() }];
            StepRecord { devices, at_ns: at * 1_000_000_000, ..StepRecord::default() }
        };
        Steps { records: times.iter().map(record).collect(), ..Steps::new(Arc::new(graph), Role::Calibrates) }
    }

    #[test]
    fn a_step_lies_between_those_beside_it() {
        let calibrating = steps(&[(0, 1), (10, 1), (20, 1)]);
        assert_eq!(calibrating.all_beside(&steps(&[(1, 1), (11, 1), (25, 1)])), [0, 1, 1, 2, 2, 2]);
        assert_eq!(steps(&[]).all_beside(&calibrating), [] as [usize; 0]);
    }

    #[test]
    fn a_jump_is_seen_once_and_noise_or_drift_are_none() {
        let noise = |i: u64| i * 37 % 11;
        let jump: Vec<(u64, u64)> = (0..30).map(|i| (i, if i < 13 { 1000 } else { 1200 } + noise(i))).collect();
        let found = steps(&jump).jumps();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].at_ns == 13_000_000_000 && (found[0].change - 0.2).abs() < 0.02, "{found:?}");
        assert_eq!(found[0].to_string(), "+20 % after 13 s");
        let drift: Vec<(u64, u64)> = (0..30).map(|i| (i, 1000 + 4 * i + noise(i))).collect();
        assert_eq!(steps(&drift).jumps(), []);
        let burst: Vec<(u64, u64)> = (0..30).map(|i| (i, if i == 13 { 3000 } else { 1000 } + noise(i))).collect();
        assert_eq!(steps(&burst).jumps(), []);
        assert_eq!(steps(&jump[..9]).jumps(), []);
    }
}
