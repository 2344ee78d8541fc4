//! Memo: the states from which nothing better can be reached, so that no worse state with the same counts is looked at again.

use std::collections::BTreeMap;

/// Refuted states: by how many ops of each row have run, the times that are not worse than others', flat.
#[derive(Default)]
pub(super) struct Memo {
    refuted: BTreeMap<Vec<u8>, Vec<i64>>,
}

/// Whether every time of `a` is no later than that of `b`.
fn no_later(a: &[i64], b: &[i64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b)
}

impl Memo {
    /// Whether a state with these counts and no later times has been refuted.
    pub fn covers(&self, counts: &[u8], times: &[i64]) -> bool {
        let fronts = self.refuted.get(counts);
        fronts.is_some_and(|fronts| fronts.chunks_exact(times.len()).any(|front| no_later(front, times)))
    }

    /// Notes that a state is refuted; those it covers are forgotten.
    pub fn refute(&mut self, counts: &[u8], times: &[i64]) {
        let Some(fronts) = self.refuted.get_mut(counts) else {
            self.refuted.insert(counts.to_vec(), times.to_vec());
            return;
        };
        let mut kept = 0;
        for at in (0..fronts.len()).step_by(times.len()) {
            if !no_later(times, &fronts[at..at + times.len()]) {
                fronts.copy_within(at..at + times.len(), kept);
                kept += times.len();
            }
        }
        fronts.truncate(kept);
        fronts.extend_from_slice(times);
    }
}
