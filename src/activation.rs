//! Activations: how many a device holds, and the same counted in whole units for searches.

use crate::op::Kind;

/// What a device holds, in chunks' activations: whole ones, and what I left of others for W.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Whole activations.
    pub whole: i64,
    /// Activations of which only the share `keep` is left.
    pub kept: i64,
}

impl Held {
    /// After an op of `kind`.
    pub fn after(self, kind: Kind) -> Held {
        let (whole, kept) = kind.change();
        Held { whole: self.whole + whole, kept: self.kept + kept }
    }

    /// In chunks' activations.
    pub fn chunks(self, keep: f64) -> f64 {
        self.whole as f64 + self.kept as f64 * keep
    }

    /// In activation units: `chunks` chunks are a device's whole share of layers in one direction.
    pub fn units(self, keep: f64, chunks: u32) -> f64 {
        self.chunks(keep) / f64::from(chunks)
    }

    /// The most activation units that a device holds which runs ops of `kinds` in this order.
    pub fn peak(kinds: impl Iterator<Item = Kind>, keep: f64, chunks: u32) -> f64 {
        let (mut held, mut peak) = (Held::default(), 0.0_f64);
        for kind in kinds {
            held = held.after(kind);
            peak = peak.max(held.chunks(keep));
        }
        peak / f64::from(chunks)
    }
}

/// Slack for caps and levels that are sums of decimal fractions.
const TOLERANCE: f64 = 1e-9;

/// Whether `held` activation units are within `cap`.
pub fn within(held: f64, cap: f64) -> bool {
    held <= cap + TOLERANCE * cap.abs().max(1.0)
}

/// Memory units that one chunk's activation takes.
pub(crate) const WHOLE: i64 = 1 << 20;

/// No cap, in memory units.
pub(crate) const UNLIMITED: i64 = i64::MAX / 4;

/// What is kept from I to W, in memory units: never less than it is.
pub(crate) fn kept(keep: f64) -> i64 {
    (keep * WHOLE as f64).ceil() as i64
}

/// What an op of `kind` changes, in memory units.
pub(crate) fn change(kind: Kind, kept: i64) -> i64 {
    let (whole, remainders) = kind.change();
    whole * WHOLE + remainders * kept
}

/// A cap in memory units: never more than it is, but for what rounding may have taken off.
pub(crate) fn cap(cap: Option<f64>, chunks: u32) -> i64 {
    let unit = f64::from(chunks) * WHOLE as f64;
    cap.map_or(UNLIMITED, |cap| (cap * unit + 1e-3).min(UNLIMITED as f64) as i64)
}
