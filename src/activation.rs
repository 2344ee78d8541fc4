//! Counting activations in whole numbers, so that a peak is exactly within a cap equal to it.
//!
//! A chunk's activation counts [`WHOLE`]; from I to W the share [`Keep`] of it is kept, rounded once, when costs are read: every
//! decimal share of up to 15 digits is exact. Peaks, caps, levels and searches all use these counts; only printed values are
//! divided by the chunks per device.

use crate::op::Kind;

/// Count of one chunk's activation.
pub(crate) const WHOLE: i128 = 1_000_000_000_000_000;

/// Stands for no cap.
pub(crate) const UNLIMITED: i128 = i128::MAX / 4;

// 2^31 micro-batches on 2^28 stages hold less than that.
const _: () = assert!((1_i128 << 31) * (1 << 28) * WHOLE < UNLIMITED);

/// Share of an activation that is kept from I to W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Keep(i128);

impl Keep {
    pub const ALL: Keep = Keep(WHOLE);

    /// Rounds `share`, which is between 0 and 1.
    pub fn new(share: f64) -> Keep {
        Keep((share.clamp(0.0, 1.0) * WHOLE as f64).round() as i128)
    }

    /// Returns it as a number between 0 and 1.
    pub fn share(self) -> f64 {
        self.0 as f64 / WHOLE as f64
    }

    /// Returns by how much an op of each kind changes what its device holds: F at its start, the others at their end.
    pub(crate) fn changes(self) -> [i128; Kind::ALL.len()] {
        Kind::ALL.map(|kind| {
            let (whole, kept) = kind.change();
            i128::from(whole) * WHOLE + i128::from(kept) * self.0
        })
    }
}

/// Returns the peak of a device that runs ops of `kinds` in this order.
pub(crate) fn peak(kinds: impl Iterator<Item = Kind>, keep: Keep) -> i128 {
    let changes = keep.changes();
    let (mut held, mut peak) = (0, 0);
    for kind in kinds {
        held += changes[kind as usize];
        peak = peak.max(held);
    }
    peak
}

/// Converts `held` to activation units: 1 is the activation of all `chunks` chunks of a device in one direction.
pub(crate) fn units(held: i128, chunks: u32) -> f64 {
    held as f64 / (f64::from(chunks) * WHOLE as f64)
}

/// Converts a cap in activation units to a count. As `units` has the precision of a floating-point number, the result is the
/// largest count that it may stand for, so that [`units`] of a count, used as a cap, allows that count.
pub(crate) fn cap(units: f64, chunks: u32) -> i128 {
    let count = units * f64::from(chunks) * WHOLE as f64 * (1.0 + 4.0 * f64::EPSILON);
    (count as i128).min(UNLIMITED)
}
