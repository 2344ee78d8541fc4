//! Patterns: the words of closed-form schedules, and of building blocks repeated once a period.

use super::problem::Problem;
use super::trial::Words;
use crate::op::{Kind, Op};

/// A building block (Qi et al., arXiv 2405.15362): how long each wave of one micro-batch lingers at every hop from device
/// to device beyond what it takes at least, by chunk, and where it turns from forward to backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block {
    /// Forward on the first chunk, on the others; backward on the first, on the others.
    pub hops: [i64; 4],
    pub turn: i64,
    /// What every op is taken to last, transfers nothing; else they last what they do.
    pub even: Option<i64>,
}

impl Block {
    /// When, by slot, each op of micro-batch 0 starts.
    pub fn offsets(&self, problem: &Problem, backward: Kind) -> Vec<i64> {
        let placement = &problem.placement;
        let (stages, devices) = (placement.stages(), placement.devices());
        let mut offsets = vec![0; problem.rules.len()];
        for direction in 0..placement.directions() {
            let mut time = 0;
            let mut place = |kind: Kind, stage: u32, time: &mut i64| {
                let op = Op::new(kind, stage, 0).in_direction(direction);
                let rule = problem.rules[op.slot()];
                offsets[op.slot()] = *time;
                let leaves = rule.consumer != placement.device_of(op);
                let hop = usize::from(stage >= devices) + if kind == Kind::F { 0 } else { 2 };
                let even = self.even.map(|unit| unit * i64::from(kind.width()));
                let lasts = even.unwrap_or((rule.duration + rule.lag) as i64);
                *time += lasts + if leaves { self.hops[hop] } else { 0 };
            };
            (0..stages).for_each(|stage| place(Kind::F, stage, &mut time));
            time += self.turn;
            (0..stages).rev().for_each(|stage| place(backward, stage, &mut time));
        }
        offsets
    }
}

/// Every device's ops in the order of a pattern.
pub(super) fn in_order(problem: &Problem, backward: Kind, offsets: &[i64], period: i64) -> Words {
    let row = |device: usize| {
        let mut ops: Vec<(i64, u32)> = Vec::new();
        for chunk in problem.placement.held_by(device as u32) {
            for kind in [Kind::F, backward] {
                let slot = Op::new(kind, chunk.stage, 0).in_direction(chunk.direction).slot();
                let share = i64::from(problem.share(chunk.direction));
                ops.extend((0..share).map(|j| (offsets[slot] + period * j, slot as u32)));
            }
        }
        ops.sort_unstable();
        ops.into_iter().map(|(_, slot)| slot).collect()
    };
    Words::new(&(0..problem.devices()).map(row).collect::<Vec<Vec<u32>>>())
}

/// Zero-bubble's hand-made schedules on a linear placement (arXiv 2401.10241 sections 2.1 and 2.2) between and beyond H1 and
/// H2: `twelfths` / 12 times (p - 1 - r) forwards to begin with, then backward and forward in turn.
pub(super) fn alternating(problem: &Problem, backward: Kind, twelfths: usize) -> Words {
    let (p, m) = (problem.devices(), problem.microbatches as usize);
    let row = |r: usize| {
        let stage = problem.placement.held_by(r as u32)[0].stage;
        let (f, i) = (Op::new(Kind::F, stage, 0).slot() as u32, Op::new(backward, stage, 0).slot() as u32);
        let warm = (twelfths * (p - 1 - r)).div_ceil(12).min(m);
        let mut row = vec![f; warm];
        (warm..m).for_each(|_| row.extend([f, i]));
        row.extend(vec![i; warm]);
        row
    };
    Words::new(&(0..p).map(row).collect::<Vec<Vec<u32>>>())
}

/// ZB-V's hand-made schedule (arXiv 2401.10241 section 6), without its W's.
pub(super) fn zero_bubble_v(problem: &Problem, backward: Kind) -> Words {
    let (p, m) = (problem.devices(), problem.microbatches as usize);
    let n = m.max(2 * p - 1);
    let row = |r: usize| {
        let chunks = problem.placement.held_by(r as u32);
        let slot = |kind: Kind, chunk: usize| Op::new(kind, chunks[chunk].stage, 0).slot() as u32;
        let (fa, fb, ia, ib) = (slot(Kind::F, 0), slot(Kind::F, 1), slot(backward, 0), slot(backward, 1));
        let mut row = vec![fa; 2 * (p - r) - 1];
        (0..r).for_each(|_| row.extend([fb, fa]));
        (0..p - r).for_each(|_| row.extend([fb, ib]));
        (0..n + r + 1 - 2 * p).for_each(|_| row.extend([fa, ia, fb, ib]));
        (0..p - r - 1).for_each(|_| row.extend([ia, fb, ib]));
        (0..r).for_each(|_| row.extend([ia, ib]));
        row.extend(vec![ia; p - r]);
        first(m, row)
    };
    Words::new(&(0..p).map(row).collect::<Vec<Vec<u32>>>())
}

/// What of a row is for the first `m` micro-batches.
fn first(m: usize, row: Vec<u32>) -> Vec<u32> {
    let mut kept: Vec<u32> = Vec::with_capacity(row.len());
    let mut counts: Vec<(u32, usize)> = Vec::new();
    for slot in row {
        let at = counts.iter().position(|&(other, _)| other == slot).unwrap_or_else(|| {
            counts.push((slot, 0));
            counts.len() - 1
        });
        counts[at].1 += 1;
        if counts[at].1 <= m {
            kept.push(slot);
        }
    }
    kept
}
