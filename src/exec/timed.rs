//! A clock as a device: each op lasts as long as predicted, data and waits are real. So the executor itself can be tried
//! with far more devices than there are cores.

use super::device::{Batch, Device, State, Update};
use crate::cost::CostTable;
use crate::model::{Lap, Parameters};
use crate::op::Op;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device that only lets time pass.
pub struct Timed {
    costs: Arc<CostTable>,
    /// Last part of an op's time that is spun rather than slept, where cores are free for it.
    spin: Duration,
}

impl Timed {
    /// A device whose ops last what `costs` says, its unit taken as `unit_ns` nanoseconds there.
    pub fn new(costs: Arc<CostTable>, spin: Duration) -> Timed {
        Timed { costs, spin }
    }
}

impl State for Timed {
    fn clear(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn save(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn restore(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn export(&mut self, _into: &mut Parameters, _gradients: bool) -> anyhow::Result<()> {
        Ok(())
    }

    fn peak_held_bytes(&self) -> usize {
        0
    }
}

impl Device for Timed {
    fn begin(&mut self, _batch: &Arc<Batch>) {}

    fn compute(
        &mut self,
        op: Op,
        _input: Option<&[f32]>,
        _output: Option<&mut [f32]>,
        _laps: &mut Vec<Lap>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + Duration::from_nanos(self.costs.to_ns(self.costs.of(op).duration));
        let sleep = end.saturating_duration_since(Instant::now()).saturating_sub(self.spin);
        if !sleep.is_zero() {
            std::thread::sleep(sleep);
        }
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn tied_gradient(&self) -> &[f32] {
        &[]
    }

    fn add_tied(&mut self, _other: &[f32]) {}

    fn stage_gradient(&mut self, _stage: u32, _into: &mut Vec<f32>) {}

    fn add_stage_gradient(&mut self, _stage: u32, _other: &[f32]) {}

    fn squared_norms(&self) -> Vec<(usize, f64)> {
        Vec::new()
    }

    fn update(&mut self, _update: &Update, _scale: f32) {}

    fn losses(&self) -> Option<&[f32]> {
        None
    }
}
