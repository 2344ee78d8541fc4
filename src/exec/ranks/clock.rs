//! Clock alignment: converts the readings of every rank to rank 0's clock.
//!
//! Processes of one machine read the same clock. Between machines the offset is bracketed (Cristian, "Probabilistic clock
//! synchronization", 1989): rank 0 reads its clock after every rank has entered one exchange and before it leaves the next, so
//! the reading is between two of ours. The tightest of many such brackets counts; half its width is the uncertainty.

use super::lost::Lost;

/// Number of brackets around a reading of rank 0's clock.
pub const ROUNDS: usize = 40;

/// The alignment of a rank's clock with rank 0's.
#[derive(Debug)]
pub struct Alignment {
    pub method: String,
    /// Offset to add to this rank's clock, in ns.
    pub offset_ns: i64,
    pub uncertainty_ns: u64,
}

impl Alignment {
    /// Aligns the clocks of all ranks; all must call this together.
    pub fn align(
        rank: u32,
        size: u32,
        one_machine: bool,
        exchange: impl Fn(Vec<u8>) -> Result<Vec<Vec<u8>>, Lost>,
    ) -> Result<Alignment, Lost> {
        if size == 1 || one_machine {
            let method = "one machine, one monotonic clock".to_string();
            return Ok(Alignment { method, offset_ns: 0, uncertainty_ns: 0 });
        }
        let mut best = (0, u64::MAX);
        for _ in 0..ROUNDS {
            let before = monotonic_ns();
            exchange(Vec::new())?;
            let all = exchange(monotonic_ns().to_le_bytes().to_vec())?;
            let after = monotonic_ns();
            let theirs = u64::from_le_bytes(all[0].as_slice().try_into().unwrap_or_default());
            let width = after - before;
            if width < best.1 {
                best = (theirs as i64 - (before + width / 2) as i64, width);
            }
        }
        let method = format!("tightest of {ROUNDS} brackets around a reading of rank 0's clock");
        let (offset_ns, width) = if rank == 0 { (0, 0) } else { best };
        let widths = exchange(width.to_le_bytes().to_vec())?;
        let widest = widths.iter().map(|w| u64::from_le_bytes(w.as_slice().try_into().unwrap_or_default())).max();
        let uncertainty_ns = widest.unwrap_or(0).div_ceil(2);
        Ok(Alignment { method, offset_ns, uncertainty_ns })
    }

    /// Returns the time on rank 0's clock, in ns.
    pub fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_add_signed(self.offset_ns)
    }
}

/// Reads the monotonic clock, which all processes of the machine share.
fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
