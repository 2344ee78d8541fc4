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

/// Maximum number of attempts of a calibration.
const TRIES: usize = 16;

/// An uncertainty that needs no further attempt.
const GOOD_NS: u64 = 4_000;

/// How long a calibration during a step waits for its event.
const PATIENCE_NS: u64 = 300_000;

impl Clock {
    /// Records an event between two readings of the host's clock several times, and keeps the attempt with the closest readings. The
    /// event is on a stream without other work, so the compute stream may be busy. Event times are float32 milliseconds since the
    /// reference, so calibrate again every few seconds.
    pub fn calibrate(gpu: &Gpu, now_ns: &dyn Fn() -> u64) -> Result<Clock, Fault> {
        let attempt = || {
            let (reference, before) = begin(gpu, now_ns)?;
            reference.synchronize()?;
            Ok(Clock::between(reference, before, now_ns()))
        };
        let mut best = attempt()?;
        for _ in 1..TRIES {
            if best.uncertainty_ns <= GOOD_NS {
                break;
            }
            let clock = attempt()?;
            best = if clock.uncertainty_ns < best.uncertainty_ns { clock } else { best };
        }
        Ok(best)
    }

    /// Calibrates while a step runs. Returns `None` if the event does not pass soon, as if the stream shares its hardware queue with
    /// one that waits.
    pub fn calibrate_soon(gpu: &Gpu, now_ns: &dyn Fn() -> u64) -> Result<Option<Clock>, Fault> {
        let mut best: Option<Clock> = None;
        for _ in 0..TRIES {
            let (reference, before) = begin(gpu, now_ns)?;
            while !reference.is_done()? {
                if now_ns() > before + PATIENCE_NS {
                    return Ok(None);
                }
            }
            let clock = Clock::between(reference, before, now_ns());
            best = best.into_iter().chain([clock]).min_by_key(|clock| clock.uncertainty_ns);
            if best.as_ref().is_some_and(|clock| clock.uncertainty_ns <= GOOD_NS) {
                break;
            }
        }
        Ok(best)
    }

    fn between(reference: Event, before: u64, after: u64) -> Clock {
        let after = after.max(before);
        Clock { reference, host_ns: before.midpoint(after), uncertainty_ns: (after - before).div_ceil(2) }
    }

    /// Returns when a timed event of the same context was reached, in nanoseconds on the host's clock.
    pub fn ns(&self, event: &Event) -> Result<u64, Fault> {
        let since = event.elapsed_ns(&self.reference)?.round() as i64;
        Ok(self.host_ns.saturating_add_signed(since))
    }
}

/// Records an event on the idle stream. Returns it, and the host's time before.
fn begin(gpu: &Gpu, now_ns: &dyn Fn() -> u64) -> Result<(Event, u64), Fault> {
    gpu.make_current()?;
    let reference = gpu.events().timed()?;
    let before = now_ns();
    gpu.idle.record(&reference)?;
    Ok((reference, before))
}
