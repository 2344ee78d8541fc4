//! Counting activations in whole numbers, so that a peak is exactly within a cap equal to it.
//!
//! A chunk's activation of a slice of length 1 counts [`WHOLE`]; from I to W the share [`Keep`] of it is kept, rounded once, when
//! costs are read: every decimal share of up to 15 digits is exact. Peaks, caps, levels and searches all use these counts; only
//! printed values are divided by the chunks per device and the length of a sequence.

use crate::op::{Kind, Op};
use crate::slices::Slices;

/// Count of one chunk's activation.
pub const WHOLE: i128 = 1_000_000_000_000_000;

/// Stands for no cap.
pub const UNLIMITED: i128 = i128::MAX / 4;

// 2^31 micro-batches on 2^20 stages of 2^24 tokens hold less than that.
const _: () = assert!((1_i128 << 31) * (1 << 20) * Slices::MAX_LENGTH as i128 * WHOLE < UNLIMITED);

/// Shares of an activation: what is kept from I to W, what a recomputed forward keeps, and gradients of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Keep {
    kept: i128,
    stub: i128,
    kv: i128,
}

/// Rounds a share, which is between 0 and 1.
fn rounded(share: f64) -> i128 {
    (share.clamp(0.0, 1.0) * WHOLE as f64).round() as i128
}

impl Keep {
    /// Everything is kept from I to W, nothing by a forward that is recomputed.
    pub const ALL: Keep = Keep { kept: WHOLE, stub: 0, kv: 0 };

    /// Creates one that keeps `share`, between 0 and 1, from I to W.
    pub fn new(share: f64) -> Keep {
        Keep { kept: rounded(share), ..Keep::ALL }
    }

    /// Returns it with the share `stub` that a forward keeps whose unit is recomputed: the stage's input.
    pub fn with_stub(self, stub: f64) -> Keep {
        Keep { stub: rounded(stub), ..self }
    }

    /// Returns it with the share `kv` of keys and values, whose gradients earlier slices hold during backward.
    pub fn with_kv(self, kv: f64) -> Keep {
        Keep { kv: rounded(kv), ..self }
    }

    /// Returns what is kept from I to W as a number between 0 and 1.
    pub fn share(self) -> f64 {
        self.kept as f64 / WHOLE as f64
    }

    /// Returns what a recomputed forward keeps as a number between 0 and 1.
    pub fn stub(self) -> f64 {
        self.stub as f64 / WHOLE as f64
    }

    /// Returns the share of keys and values as a number between 0 and 1.
    pub fn kv(self) -> f64 {
        self.kv as f64 / WHOLE as f64
    }

    /// Whether everything is kept from I to W.
    pub fn is_whole(self) -> bool {
        self.kept == WHOLE
    }

    /// Returns by how much an op of each kind on a slice of length 1 changes what its device holds.
    pub fn changes(self) -> [i128; Kind::ALL.len()] {
        Kind::ALL.map(|kind| {
            let (whole, kept, stub) = kind.change();
            i128::from(whole) * WHOLE + i128::from(kept) * self.kept + i128::from(stub) * self.stub
        })
    }
}

/// Returns the peak of a device that runs ops of `kinds` on whole micro-batches in this order.
pub fn peak(kinds: impl Iterator<Item = Kind>, keep: Keep) -> i128 {
    let changes = keep.changes();
    let (mut held, mut peak) = (0, 0);
    for kind in kinds {
        held += changes[kind as usize];
        peak = peak.max(held);
    }
    peak
}

/// What ops take and return.
#[derive(Clone, Debug)]
pub struct Holding<'a> {
    keep: Keep,
    changes: [i128; Kind::ALL.len()],
    slices: &'a Slices,
}

impl<'a> Holding<'a> {
    /// Counts the shares that ops of `slices` take and return.
    pub fn new(keep: Keep, slices: &'a Slices) -> Holding<'a> {
        Holding { keep, changes: keep.changes(), slices }
    }

    /// Returns by how much `op` changes what its device holds at its start, and at its end. `recomputed` says whether the unit of a
    /// forward is recomputed.
    pub fn of(&self, op: Op, recomputed: bool) -> (i128, i128) {
        let (kind, slice) = (op.kind(), op.slice_number());
        let change = if recomputed && kind == Kind::F { self.keep.stub } else { self.changes[kind as usize] };
        let own = change * i128::from(self.slices.length(slice));
        let (start, end) = if kind.takes() { (own, 0) } else { (0, own) };
        if self.keep.kv == 0 || !kind.is_backward() {
            return (start, end);
        }
        // The last slice's backward begins the gradients of the keys and values of all earlier ones.
        match slice + 1 == self.slices.count() as usize {
            true => (start + self.keep.kv * i128::from(self.slices.before(slice)), end),
            false => (start, end - self.keep.kv * i128::from(self.slices.length(slice))),
        }
    }
}

/// Converts `held` to activation units: 1 is the activation of all `chunks` chunks of a device in one direction. `chunks` counts the
/// chunks times the length of a sequence.
pub fn units(held: i128, chunks: u32) -> f64 {
    held as f64 / (f64::from(chunks) * WHOLE as f64)
}

/// Converts a cap in activation units to a count. As `units` has the precision of a floating-point number, the result is the
/// largest count that it may represent, so that [`units`] of a count, used as a cap, allows that count.
pub fn cap(units: f64, chunks: u32) -> i128 {
    let count = units * f64::from(chunks) * WHOLE as f64 * (1.0 + 4.0 * f64::EPSILON);
    (count as i128).min(UNLIMITED)
}
