//! Where a GPU's events lie on the host's clock.

use super::api::driver::Fault;
use super::api::event::Event;
use super::gpu::Gpu;

/// A moment known on both clocks, the GPU's by an event and the host's by a reading.
pub struct Clock {
    reference: Event,
    /// The moment on the host's clock.
    pub host_ns: u64,
    /// The moment may be off by this much either way.
    pub uncertainty_ns: u64,
}

/// How often the moment is tried for.
const TRIES: usize = 16;

impl Clock {
    /// Records an event between two readings of the host's clock, several times, and keeps the try whose readings lie
    /// closest together. The compute stream should be idle. An event's time is in float32 milliseconds since this moment, so
    /// calibrate again at least every few seconds.
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

    /// When a timed event of the same context was reached, on the host's clock.
    pub fn ns(&self, event: &Event) -> Result<u64, Fault> {
        let since = event.elapsed_ns(&self.reference)?.round() as i64;
        Ok(self.host_ns.saturating_add_signed(since))
    }
}
