//! What neighbours cost: how much longer an op lasts while other cores compute beside it.
//!
//! Cores share caches, memory and power, slices of a GPU its memory: an op lasts longer the more of them are busy. How much
//! longer depends on the op's kind (products of matrices mind less than passes over memory) and is measured, not modelled.

use crate::op::Kind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How long ops last, by kind and by how many cores compute, per mille of what they last alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Contention {
    /// By `F`, `I`, `W`, `B`: with one core busy (1000), with two, and so on; the last holds for more.
    per_mille: BTreeMap<Kind, Vec<u32>>,
}

/// Alone.
const ALONE: u32 = 1000;

impl Contention {
    /// The same for every kind: `per_mille[n - 1]` with n cores busy.
    pub fn of_all(per_mille: &[u32]) -> Contention {
        let all = Kind::ALL.into_iter().map(|kind| (kind, per_mille.to_vec()));
        Contention { per_mille: all.filter(|(_, of)| !of.is_empty()).collect() }
    }

    /// How long an op of `kind` lasts with `cores` cores busy, its own included, per mille.
    pub fn per_mille(&self, cores: u32, kind: Kind) -> u32 {
        let of = self.per_mille.get(&kind).map_or(&[][..], Vec::as_slice);
        of.get(cores.max(1) as usize - 1).or(of.last()).copied().unwrap_or(ALONE)
    }

    /// All that neighbours cost, per mille.
    pub fn factors(&self) -> impl Iterator<Item = u32> {
        self.per_mille.values().flatten().copied()
    }

    /// The most that neighbours cost, per mille.
    pub fn worst(&self) -> u32 {
        self.per_mille.values().flatten().copied().max().unwrap_or(ALONE).max(ALONE)
    }

    /// Whether neighbours cost nothing.
    pub fn is_empty(&self) -> bool {
        self.per_mille.values().flatten().all(|&per_mille| per_mille == ALONE)
    }

    /// Whether some op is faster with neighbours than alone.
    pub fn is_faster(&self) -> bool {
        self.per_mille.values().flatten().any(|&per_mille| per_mille < ALONE)
    }
}
