//! The slowness of a machine's devices over a measured step.
//!
//! Processors are shared, throttled and interrupted: the same op takes 60 ms now and 70 ms later. In a pipeline such variation costs
//! more than its mean, since each device waits for the slower one, and it comes in phases, not op by op. So cost files keep the
//! variation of each measured step, and predictions are made with it.

use serde::{Deserialize, Serialize};

/// The slowness of each device over one measured step, in stretches of time. Slowness is the duration of ops in millionths of their
/// typical duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slowdown {
    /// By device: (end of a stretch in ns from the step's start, slowness), in order.
    pub devices: Vec<Vec<(u64, u64)>>,
}

/// Slowness at typical speed.
pub const TYPICAL: u64 = 1_000_000;

/// Limit of slowness either way: factors of typical beyond it count as this.
pub const EXTREME: u64 = 100;

impl Slowdown {
    /// Returns the duration of an op on `device` from `start`, `duration` being its typical one. The step repeats after its end;
    /// a device beyond the measured ones is taken modulo their number.
    pub fn stretch(&self, device: u32, start: u64, duration: u64) -> u64 {
        let Some(stretches) = self.devices.get(device as usize % self.devices.len().max(1)) else { return duration };
        let Some(&(period, _)) = stretches.last().filter(|&&(end, _)| end > 0) else { return duration };
        let mut time = start % period;
        let mut at = stretches.partition_point(|&(end, _)| end <= time);
        let (mut work, mut lasted) = (u128::from(duration) * u128::from(TYPICAL), 0_u128);
        loop {
            let (end, slowness) = stretches[at];
            let slowness = bounded(slowness);
            let room = u128::from(end - time);
            let left = work * slowness / u128::from(TYPICAL) / u128::from(TYPICAL);
            if left <= room {
                return (lasted + left) as u64;
            }
            lasted += room;
            work -= (room * u128::from(TYPICAL) * u128::from(TYPICAL) / slowness).min(work);
            time = end;
            at += 1;
            if at == stretches.len() {
                (at, time) = (0, 0);
                let each = work_of(stretches).max(1);
                lasted += work / each * u128::from(period); // whole repetitions at once
                work %= each;
            }
        }
    }

    /// Converts to ticks that are `n` times finer.
    pub fn finer(&self, n: u32) -> Slowdown {
        let finer = |&(end, slowness): &(u64, u64)| (end.saturating_mul(u64::from(n)), slowness);
        Slowdown { devices: self.devices.iter().map(|stretches| stretches.iter().map(finer).collect()).collect() }
    }

    /// Whether the stretches of every device are in order.
    pub fn is_ordered(&self) -> bool {
        self.devices.iter().all(|stretches| stretches.windows(2).all(|pair| pair[0].0 < pair[1].0))
    }
}

fn bounded(slowness: u64) -> u128 {
    u128::from(slowness.clamp(TYPICAL / EXTREME, TYPICAL * EXTREME))
}

/// Typical ns, times [`TYPICAL`], that a device completes in the stretches of one step.
fn work_of(stretches: &[(u64, u64)]) -> u128 {
    let starts = std::iter::once(0).chain(stretches.iter().map(|&(end, _)| end));
    let square = u128::from(TYPICAL) * u128::from(TYPICAL);
    stretches
        .iter()
        .zip(starts)
        .map(|(&(end, slowness), start)| u128::from(end - start) * square / bounded(slowness))
        .sum()
}
