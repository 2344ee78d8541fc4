//! Communicators of two devices, one per direction in which neighbouring stages exchange data, as PyTorch 2.15 creates them
//! (`distributed/pipelining/_p2p.py`, with `pipeline_per_edge_p2p`).

use crate::placement::Placement;
use std::collections::BTreeSet;

/// From a device to another.
pub type DirectedEdge = [u32; 2];

/// Returns the communicators in the rounds in which they are created. The communicators of a round have no device in common, so all are
/// created at the same time. All stages with the same two devices share one, and neighbours on the same device need none.
pub fn rounds(placement: &Placement) -> Vec<Vec<DirectedEdge>> {
    let mut left: BTreeSet<[u32; 2]> = BTreeSet::new();
    for direction in 0..placement.directions() {
        for stage in 1..placement.stages() {
            let [a, b] = [stage - 1, stage].map(|stage| placement.device_of_stage(stage, direction));
            if a != b {
                left.insert([a.min(b), a.max(b)]);
            }
        }
    }
    let mut rounds = Vec::new();
    while !left.is_empty() {
        let mut busy: BTreeSet<u32> = BTreeSet::new();
        let round: Vec<[u32; 2]> = left
            .iter()
            .copied()
            .filter(|edge| {
                let is_free = edge.iter().all(|device| !busy.contains(device));
                busy.extend(edge.iter().filter(|_| is_free));
                is_free
            })
            .collect();
        left.retain(|edge| !round.contains(edge));
        let back = round.iter().map(|&[low, high]| [high, low]).collect();
        rounds.extend([round, back]);
    }
    rounds
}

/// Describes rounds: `0>1 2>3, 1>0 3>2`.
pub fn described(rounds: &[Vec<DirectedEdge>]) -> String {
    let round = |round: &Vec<DirectedEdge>| round.iter().map(|[a, b]| format!("{a}>{b}")).collect::<Vec<_>>().join(" ");
    rounds.iter().map(round).collect::<Vec<_>>().join(", ")
}
