//! A measured step again, with changes: every op runs as long as it did, waits for what it did, and is held up as it was, unless
//! something of that is taken away.

use super::MeasuredStep;

/// Durations, host delays and messages of a measured step, in ns by op.
#[derive(Clone, Debug)]
pub struct Replay<'a> {
    step: &'a MeasuredStep,
    pub durations: Vec<u64>,
    /// By how long the host starts an op later than it could.
    pub held: Vec<u64>,
    /// How long the output of an op takes to another device.
    pub messages: Vec<u64>,
    /// How long a device receives a message after an op, before it starts the next one.
    pub receives: Vec<u64>,
}

impl<'a> Replay<'a> {
    /// Takes everything over as it was measured.
    pub fn new(step: &'a MeasuredStep) -> Replay<'a> {
        let all = 0..step.graph.len();
        Replay {
            step,
            durations: all.clone().map(|index| step.times.duration(index)).collect(),
            held: all.clone().map(|index| step.times.held(index).ticks).collect(),
            messages: all.clone().map(|index| step.times.delay(index).arrival).collect(),
            receives: all.map(|index| step.times.delay(index).after).collect(),
        }
    }

    /// Returns the makespan in ns.
    pub fn makespan(&self) -> u64 {
        let graph = &self.step.graph;
        let mut ends = vec![0_u64; graph.len()];
        for index in graph.order() {
            let free = graph.before(index).map_or(0, |before| ends[before] + self.receives[before]);
            let made = graph.upstream(index).map_or(0, |maker| {
                let leaves = graph.transfer(index).is_some();
                ends[maker] + if leaves { self.messages[maker] } else { 0 }
            });
            ends[index] = free.max(made) + self.held[index] + self.durations[index];
        }
        ends.into_iter().max().unwrap_or(0)
    }

    /// Returns by which share the step would have been shorter.
    pub fn saves(&self) -> f64 {
        1.0 - self.makespan() as f64 / (self.step.makespan() as f64).max(1.0)
    }
}
