//! A shorter schedule with the same peak of memory.

use crate::op::{Kind, Op};
use crate::schedule::{Programs, Schedule};
use std::collections::{BTreeMap, BTreeSet};

impl Schedule {
    /// Returns the schedule without the repetitions of each device's program. Every device passes the same moments, so the peak of memory is
    /// the same.
    #[must_use]
    pub fn moments(&self) -> Schedule {
        let rows = (0..self.devices()).map(|device| without_repetitions(self.program(device)));
        Schedule::new(&self.name, self.placement.clone(), self.microbatches, Programs::from_iter(rows))
    }
}

/// Returns a number that represents one micro-batch held by a stage, from F on or from I on; sums of these numbers represent states.
fn weight(stage: u32, from: u64) -> u128 {
    // two rounds of SplitMix64 (Steele et al. 2014)
    let mix = |seed: u64| {
        let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let seed = 4 * u64::from(stage) + 2 * from + 1;
    u128::from(mix(seed)) << 64 | u128::from(mix(seed ^ (1 << 40)))
}

/// Returns `ops` without runs that lead back to a state already reached and contain no moment that has not been passed before. A state is
/// what each stage holds; a moment is a state and the op that runs in it.
fn without_repetitions(ops: &[Op]) -> Vec<Op> {
    let mut state = 0_u128;
    let mut kept: Vec<Op> = Vec::new();
    let mut new_until = 0; // no moment after this many kept ops is new
    let mut reached: BTreeMap<u128, usize> = BTreeMap::from([(0, 0)]);
    // the state after each kept op
    let mut path: Vec<u128> = Vec::new();
    let mut seen: BTreeSet<(u128, u32, Kind)> = BTreeSet::new();
    for &op in ops {
        let is_new = seen.insert((state, op.stage(), op.kind()));
        let [forward, input] = [0, 1].map(|from| weight(op.stage(), from));
        state = match op.kind() {
            Kind::F => state.wrapping_add(forward),
            Kind::B => state.wrapping_sub(forward),
            Kind::I => state.wrapping_sub(forward).wrapping_add(input),
            _ => state.wrapping_sub(input),
        };
        kept.push(op);
        path.push(state);
        if is_new {
            new_until = kept.len();
        }
        match reached.get(&state).copied() {
            // back in a known state with no new moments: drop the loop
            Some(length) if new_until <= length => {
                for dropped in path.drain(length..) {
                    if dropped != state {
                        reached.remove(&dropped);
                    }
                }
                kept.truncate(length);
            }
            _ => drop(reached.insert(state, kept.len())),
        }
    }
    kept
}
