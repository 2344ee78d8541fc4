//! Costs from a table of stage times.

use super::{CostTable, OpTime, Summary};
use crate::op::{Kind, Op};
use crate::placement::Placement;

/// Times of one stage's ops for one micro-batch, in milliseconds. A full backward takes `input + weights`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageTimes {
    /// Forward.
    pub forward: f64,
    /// Backward for the input.
    pub input: f64,
    /// Backward for the weights.
    pub weights: f64,
}

impl StageTimes {
    fn of(self, kind: Kind) -> f64 {
        match kind {
            Kind::F => self.forward,
            Kind::I => self.input,
            Kind::W => self.weights,
            _ => self.input + self.weights,
        }
    }
}

impl CostTable {
    /// Makes a table from the times of each stage, in model order, and the milliseconds from the end of an op until another device has its
    /// output.
    ///
    /// # Panics
    /// `stages` has fewer entries than the placement has stages.
    pub fn from_stage_times(placement: &Placement, stages: &[StageTimes], transfer_ms: f64) -> CostTable {
        let ns = |ms: f64| (ms * 1e6).round().clamp(0.0, 1e15) as u64;
        let devices = f64::from(placement.devices());
        let mean = |kind| stages.iter().map(|stage| stage.of(kind)).sum::<f64>() / devices;
        let [f, i, w, b] = [Kind::F, Kind::I, Kind::W, Kind::B].map(mean);
        let summary = Summary { F: f, I: i, W: w, B: b, comm: transfer_ms, keep: 1.0 };
        CostTable::new(placement, (1e6, "ms", 1_000_000), summary, |op: Op| OpTime {
            duration: ns(stages[op.stage() as usize].of(op.kind())),
            after: 0,
            arrival: if placement.leaves_device(op) { ns(transfer_ms) } else { 0 },
        })
    }
}
