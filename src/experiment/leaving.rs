//! Offloads that have ended for certain, however long copies take: the bound on what a device holds.
//!
//! Copies to the host run in their order. An op that waits for a RELOAD waits for its OFFLOAD, too, so this and all OFFLOADs before it
//! have ended when the op runs. A unit whose OFFLOAD may still run counts as held, and one that has left counts again from its RELOAD
//! on, which may start as soon as the op before it has ended.

use crate::op::{Kind, Op};
use std::collections::{BTreeMap, VecDeque};

/// The units of a device that go to the host, while its program is followed in order.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// OFFLOADs that may still run, in order.
    queue: VecDeque<Op>,
    units: BTreeMap<Op, Unit>,
}

/// A unit that was offloaded.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// What its OFFLOAD returns.
    amount: i64,
    has_left: bool,
    /// Whether its RELOAD may have started.
    is_back: bool,
}

impl Leaving {
    /// Follows the OFFLOAD `op`, which returns `amount`.
    pub fn offload(&mut self, op: Op, amount: i64) {
        self.units.insert(op.alone(), Unit { amount, has_left: false, is_back: false });
        self.queue.push_back(op.alone());
    }

    /// Follows the RELOAD `op`. Returns what it adds to the bound.
    pub fn reload(&mut self, op: Op) -> i64 {
        let Some(unit) = self.units.get_mut(&op.alone().of_kind(Kind::O)) else { return 0 };
        unit.is_back = true;
        if unit.has_left { unit.amount } else { 0 }
    }

    /// Follows an op that waits for the RELOAD of its unit, if there is one. Returns by how much the bound falls before it runs.
    pub fn used(&mut self, op: Op) -> i64 {
        let awaited = op.alone().of_kind(Kind::O);
        let mut returned = 0;
        if !self.queue.contains(&awaited) {
            return 0;
        }
        while let Some(ended) = self.queue.pop_front() {
            if let Some(unit) = self.units.get_mut(&ended) {
                unit.has_left = true;
                returned += if unit.is_back { 0 } else { unit.amount };
            }
            if ended == awaited {
                break;
            }
        }
        returned
    }
}
