//! What else the machine did while steps were measured, summed up.

use super::{Role, Steps};

/// Other loads over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Measured steps.
    pub steps: usize,
    /// Those in which something was noticed.
    pub hit: usize,
    /// Cores that other programs kept busy, on average.
    pub other_cores: f64,
    /// Cores that a hypervisor took, on average.
    pub stolen_cores: f64,
    /// How often a thread of this process had to make room, on average over steps.
    pub preempted: f64,
    /// How long, in ms, threads of this process together stood in a run queue, on average over steps.
    pub queued_ms: f64,
}

impl Seen {
    /// In all steps of `runs`.
    pub fn of(runs: &[Steps]) -> Seen {
        // Steps in which nothing is computed are too short to tell.
        let told = || runs.iter().filter(|run| run.role != Role::CalibratesLinks);
        let loads = || told().flat_map(|run| &run.records).map(|record| record.load);
        let steps = loads().count();
        let mean = |sum: f64| sum / steps.max(1) as f64;
        Seen {
            steps,
            hit: loads().filter(|load| load.is_noticed()).count(),
            other_cores: mean(loads().map(|load| load.other_cores).sum()),
            stolen_cores: mean(loads().map(|load| load.stolen_cores).sum()),
            preempted: mean(loads().map(|load| load.preempted as f64).sum()),
            queued_ms: mean(loads().map(|load| load.queued_ns as f64 / 1e6).sum()),
        }
    }

    /// Whether the system told anything: in many steps it always counts something.
    pub fn is_known(&self) -> bool {
        self.other_cores + self.stolen_cores + self.preempted > 0.0
    }

    /// A sentence where a tenth of the steps or more were hit.
    pub fn in_words(&self) -> Option<String> {
        let Seen { steps, hit, other_cores, stolen_cores, preempted, queued_ms } = self;
        (*hit > 0 && 10 * hit >= *steps).then(|| {
            format!(
                "other loads: in {hit} of the {steps} steps of all schedules; other programs kept {other_cores:.1} cores busy, a hypervisor took \
                 {stolen_cores:.1}, threads had to make room {preempted:.0} times a step and waited {queued_ms:.0} ms for cores"
            )
        })
    }
}
