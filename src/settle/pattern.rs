//! Patterns: the words of closed-form schedules, and of building blocks repeated once a period.

use super::problem::Problem;
use super::trial::Words;
use crate::activation::WHOLE;
use crate::op::{Kind, Op};

/// Every device's ops in the order of a pattern.
pub(super) fn in_order(problem: &Problem, backward: Kind, offsets: &[i64], period: i64) -> Words {
    let row = |device: usize| {
        timed_ops(problem, device, backward, offsets, period).into_iter().map(|(_, slot)| slot).collect()
    };
    Words::new(&(0..problem.devices()).map(row).collect::<Vec<Vec<u32>>>())
}

/// When a device's ops run in a pattern, as slots in order, W's left out.
pub(super) fn timed_ops(
    problem: &Problem,
    device: usize,
    backward: Kind,
    offsets: &[i64],
    period: i64,
) -> Vec<(u64, u32)> {
    let mut ops: Vec<(u64, u32)> = Vec::new();
    for chunk in problem.placement.held_by(device as u32) {
        for kind in [Kind::F, backward] {
            let slot = Op::new(kind, chunk.stage, 0).in_direction(chunk.direction).slot();
            let share = i64::from(problem.share(chunk.direction));
            ops.extend((0..share).map(|j| ((offsets[slot] + period * j) as u64, slot as u32)));
        }
    }
    ops.sort_unstable();
    ops
}

/// Zero-bubble's hand-made schedules on a linear placement (arXiv 2401.10241 sections 2.1 and 2.2) between and beyond H1 and
/// H2: `twelfths` / 12 times (p - 1 - r) forwards to begin with.
pub(super) fn alternating(problem: &Problem, backward: Kind, twelfths: usize) -> Words {
    let p = problem.devices();
    warmed(problem, backward, &(0..p).map(|r| (twelfths * (p - 1 - r)).div_ceil(12)).collect::<Vec<usize>>())
}

/// The same with as many forwards as each device has time and memory for until its first backward (arXiv 2401.10241 section
/// 3.1); one more where that one may wait for the last.
pub(super) fn timed(problem: &Problem, backward: Kind, wait: bool) -> Words {
    let p = problem.devices();
    let stage = |r: usize| problem.placement.held_by(r as u32)[0].stage;
    let rule = |r: usize, kind: Kind| problem.rules[Op::new(kind, stage(r), 0).slot()];
    let mut arrivals = vec![0; p];
    for r in 1..p {
        let before = rule(r - 1, Kind::F);
        arrivals[r] = arrivals[r - 1] + before.duration + before.lag;
    }
    let mut warm = vec![0_usize; p];
    let mut back = 0; // when the first backward's input arrives
    for r in (0..p).rev() {
        let forward = rule(r, Kind::F).duration;
        let mut free = arrivals[r] + forward;
        while r + 1 < p
            && (warm[r] + 2) as i128 * WHOLE <= problem.caps[r]
            && (if wait { free < back } else { free + forward <= back })
        {
            warm[r] += 1;
            free += forward;
        }
        let first = rule(r, backward);
        back = free.max(back) + first.duration + first.lag;
    }
    for r in 1..p {
        warm[r] = warm[r].min(warm[r - 1].saturating_sub(1));
    }
    warmed(problem, backward, &warm)
}

/// So many forwards to begin with, then forward and backward in turn.
fn warmed(problem: &Problem, backward: Kind, warm: &[usize]) -> Words {
    let m = problem.microbatches as usize;
    let row = |(r, &warm): (usize, &usize)| {
        let stage = problem.placement.held_by(r as u32)[0].stage;
        let (f, i) = (Op::new(Kind::F, stage, 0).slot() as u32, Op::new(backward, stage, 0).slot() as u32);
        let warm = warm.min(m);
        let mut row = vec![f; warm];
        (warm..m).for_each(|_| row.extend([f, i]));
        row.extend(vec![i; warm]);
        row
    };
    Words::new(&warm.iter().enumerate().map(row).collect::<Vec<Vec<u32>>>())
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
