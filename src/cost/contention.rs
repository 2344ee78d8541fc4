//! Measured contention: how much devices that compute at the same time slow each other down.

use super::speed::EXTREME;
use serde::{Deserialize, Serialize};

/// Factor of a device alone, per mille.
const ALONE: u32 = 1000;

/// Duration of ops while several devices compute. A cost file with contention holds the durations of ops that run alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// Cores of the machine, or slices of the GPU.
    pub cores: u32,
    /// Duration of an op while 1, 2, .. devices compute, per mille of alone.
    pub per_mille: Vec<u32>,
}

impl Contention {
    /// Largest factor, per mille.
    pub(super) const MOST: u32 = ALONE * EXTREME as u32;

    /// Whether there is a core, and the factors grow from 1 and are not absurd.
    pub(super) fn is_sound(&self) -> bool {
        self.cores > 0 && Contention::grows(&self.per_mille)
    }

    /// Whether factors, if any, start at 1, never decrease and are at most [`Self::MOST`].
    pub(super) fn grows(per_mille: &[u32]) -> bool {
        let grows = per_mille.windows(2).all(|pair| pair[0] <= pair[1]);
        let (first, last) = (per_mille.first().unwrap_or(&ALONE), per_mille.last().unwrap_or(&ALONE));
        *first == ALONE && grows && *last <= Contention::MOST
    }

    /// Returns the duration of an op while 1, 2, .. `devices` devices compute, per mille of alone. Devices beyond those measured take
    /// turns on the cores.
    pub fn of(&self, devices: u32) -> Vec<u32> {
        let (measured, last) = (self.per_mille.len() as u32, *self.per_mille.last().unwrap_or(&ALONE));
        let beyond =
            |n: u32| (u64::from(last) * u64::from(n.max(self.cores)) / u64::from(measured.max(self.cores))) as u32;
        (1..=devices).map(|n| self.per_mille.get(n as usize - 1).copied().unwrap_or_else(|| beyond(n))).collect()
    }

    /// Whether `devices` devices slow each other down at all.
    pub fn matters(&self, devices: u32) -> bool {
        self.of(devices).last().is_some_and(|&last| last > ALONE)
    }
}
