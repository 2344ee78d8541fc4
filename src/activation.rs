//! Activations: the one place where they are counted, in whole numbers, so that a cap equal to what can be reached is reached.
//!
//! A chunk's activation counts [`WHOLE`], what is left of it from I to W the share [`Keep`] of that, rounded once where costs
//! enter: whatever decimal share of 15 digits is exact. Peaks, caps, levels and searches all count so; only what is printed
//! is divided by the chunks of a device.

use crate::op::Kind;

/// What one chunk's activation counts.
pub(crate) const WHOLE: i128 = 1_000_000_000_000_000;

/// The cap where there is none.
pub(crate) const UNLIMITED: i128 = i128::MAX / 4;

// What 2^31 micro-batches on 2^28 stages keep is below that.
const _: () = assert!((1_i128 << 31) * (1 << 28) * WHOLE < UNLIMITED);

/// The share of an activation that lives from I to W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Keep(i128);

impl Keep {
    /// All of it.
    pub const ALL: Keep = Keep(WHOLE);

    /// The nearest to `share`, which is between 0 and 1.
    pub fn new(share: f64) -> Keep {
        Keep((share.clamp(0.0, 1.0) * WHOLE as f64).round() as i128)
    }

    /// As a number between 0 and 1.
    pub fn share(self) -> f64 {
        self.0 as f64 / WHOLE as f64
    }

    /// By how much ops of each kind change what their device holds: F at its start, the others at their end.
    pub(crate) fn changes(self) -> [i128; Kind::ALL.len()] {
        Kind::ALL.map(|kind| {
            let (whole, kept) = kind.change();
            i128::from(whole) * WHOLE + i128::from(kept) * self.0
        })
    }
}

/// The most that a device holds which runs ops of `kinds` in this order.
pub(crate) fn peak(kinds: impl Iterator<Item = Kind>, keep: Keep) -> i128 {
    let changes = keep.changes();
    let (mut held, mut peak) = (0, 0);
    for kind in kinds {
        held += changes[kind as usize];
        peak = peak.max(held);
    }
    peak
}

/// `held` in activation units: `chunks` chunks are a device's whole share of layers in one direction.
pub(crate) fn units(held: i128, chunks: u32) -> f64 {
    held as f64 / (f64::from(chunks) * WHOLE as f64)
}

/// The most that may be held under a cap of so many activation units. A cap is known to a floating-point number's precision
/// only, and means the larger of two counts that differ by less: [`units`] of a count is a cap that allows it.
pub(crate) fn cap(units: f64, chunks: u32) -> i128 {
    let count = units * f64::from(chunks) * WHOLE as f64 * (1.0 + 4.0 * f64::EPSILON);
    (count as i128).min(UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is held, as it is printed and read again, is a cap that allows it, and a billionth of an activation less does not.
    #[test]
    fn a_cap_equal_to_what_is_held_allows_it() {
        for share in [0.0, 0.1, 0.3, 1.0 / 3.0, 0.366412213740458, 0.7, 1.0] {
            let keep = Keep::new(share);
            for chunks in [1, 2, 3, 4, 7] {
                for (whole, kept) in (0..40).flat_map(|whole| (0..40).map(move |kept| (whole * whole, kept))) {
                    let held = whole * WHOLE + kept * (WHOLE + keep.changes()[Kind::I as usize]);
                    let printed: f64 = units(held, chunks).to_string().parse().unwrap();
                    assert!(cap(printed, chunks) >= held, "{whole} + {kept} * {share} in {chunks}");
                    assert!(held == 0 || cap(printed - 1e-9, chunks) < held, "{whole} + {kept} * {share} in {chunks}");
                }
            }
        }
        assert_eq!((cap(1e300, 1), cap(f64::INFINITY, 3)), (UNLIMITED, UNLIMITED));
        assert_eq!((Keep::new(0.3).share(), Keep::new(1.0)), (0.3, Keep::ALL));
    }
}
