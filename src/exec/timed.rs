//! A clock as a device: each op lasts as long as predicted, data and waits are real. So the executor itself can be tried
//! with far more devices than there are cores.

use super::device::{Device, State};
use crate::cost::CostTable;
use crate::model::Lap;
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

impl State for Timed {}

impl Device for Timed {
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
}
