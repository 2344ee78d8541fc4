//! The GPU's clock relative to the host's.

use crate::api::{Event, Fault};
use crate::gpu::Gpu;

/// Converts times of a GPU's events to the host's clock, by a reference event.
pub struct Clock {
    reference: Event,
    /// When the reference event happened, on the host's clock.
    pub host_ns: u64,
    /// Largest error of `host_ns`, in either direction.
    pub uncertainty_ns: u64,
}

/// Number of attempts of a calibration.
const TRIES: usize = 16;

impl Clock {
    /// Records an event between two readings of the host's clock several times, and keeps the attempt with the closest readings.
    /// The compute stream should be idle. Event times are float32 milliseconds since the reference, so calibrate again every
    /// few seconds.
    pub fn calibrate(gpu: &Gpu, now_ns: &dyn Fn() -> u64) -> Result<Clock, Fault> {
        let mut best = Clock::attempt(gpu, now_ns)?;
        for _ in 1..TRIES {
            let clock = Clock::attempt(gpu, now_ns)?;
            if clock.uncertainty_ns < best.uncertainty_ns {
                best = clock;
            }
        }
        Ok(best)
    }

    fn attempt(gpu: &Gpu, now_ns: &dyn Fn() -> u64) -> Result<Clock, Fault> {
        let reference = gpu.events().timed()?;
        gpu.compute.synchronize()?;
        let before = now_ns();
        gpu.compute.record(&reference)?;
        reference.synchronize()?;
        let after = now_ns().max(before);
        Ok(Clock { reference, host_ns: before.midpoint(after), uncertainty_ns: (after - before).div_ceil(2) })
    }

    /// Returns when a timed event of the same context was reached, in nanoseconds on the host's clock.
    pub fn ns(&self, event: &Event) -> Result<u64, Fault> {
        let since = event.elapsed_ns(&self.reference)?.round() as i64;
        Ok(self.host_ns.saturating_add_signed(since))
    }
}
