//! Patterns: the words of closed-form schedules, and building blocks repeated once per period (Qi et al., arXiv 2405.15362
//! section 3).

use super::problem::OrderingProblem;
use super::words::Words;
use pipesim_schedule::activation::WHOLE;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Chunk;

pub(super) fn in_order(problem: &OrderingProblem, backward: Kind, offsets: &[i64], period: i64) -> Words {
    let row = |device: usize| {
        timed_ops(problem, device, backward, offsets, period).into_iter().map(|(_, slot)| slot).collect()
    };
    Words::new((0..problem.devices()).map(row))
}

/// Returns the ops of a device in a pattern, without W's, as (start, slot) in order.
pub(super) fn timed_ops(
    problem: &OrderingProblem,
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

/// Returns a hand-made zero-bubble schedule on a linear placement (arXiv 2401.10241 sections 2.1 and 2.2), between and beyond H1
/// and H2: device r begins with `twelfths` / 12 * (p - 1 - r) forwards.
pub(super) fn alternating(problem: &OrderingProblem, backward: Kind, twelfths: usize) -> Words {
    let p = problem.devices();
    warmed(problem, backward, &(0..p).map(|r| (twelfths * (p - 1 - r)).div_ceil(12)).collect::<Vec<usize>>())
}

/// Returns a zero-bubble schedule that begins with as many forwards as each device has time and memory for until its first backward
/// (arXiv 2401.10241 section 3.1); with `wait`, one more if the backward may wait for it.
pub(super) fn timed(problem: &OrderingProblem, backward: Kind, wait: bool) -> Words {
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

/// Returns the words with `warm` forwards first, then forwards and backwards alternating.
fn warmed(problem: &OrderingProblem, backward: Kind, warm: &[usize]) -> Words {
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
    Words::new(warm.iter().enumerate().map(row))
}

/// Returns the hand-made ZB-V schedule (arXiv 2401.10241 section 6), without W's.
pub(super) fn zero_bubble_v(problem: &OrderingProblem, backward: Kind) -> Words {
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
    Words::new((0..p).map(row))
}

/// Returns the ops of a row for the first `m` micro-batches.
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

/// A building block: by how much the ops of one micro-batch are delayed beyond the minimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockDelays {
    /// Delay per hop between devices: forward on the first chunk, on the others; backward on the first chunk, on the others.
    pub hops: [i64; 4],
    /// The same on devices from this one on, if different.
    pub beyond: Option<(u32, [i64; 4])>,
    /// Delay from forward to backward; between chunks of a device going forward; going backward.
    pub turns: [i64; 3],
    /// Duration that every op is assumed to have, with free transfers; `None` means the real costs.
    pub even: Option<i64>,
    /// Whether ops that would collide with ops of another period are shifted, so that the block can be repeated as it is.
    pub apart: bool,
}

impl BlockDelays {
    /// No delay.
    pub const NONE: BlockDelays = BlockDelays { hops: [0; 4], beyond: None, turns: [0; 3], even: None, apart: false };

    /// Returns, by device, for how long it holds activations of one micro-batch, summed over its chunks.
    pub fn held(&self, problem: &OrderingProblem, backward: Kind, offsets: &[i64]) -> Vec<i64> {
        let of = |chunk: &Chunk| {
            let op = |kind| Op::new(kind, chunk.stage, 0).in_direction(chunk.direction);
            offsets[op(backward).slot()] + self.lasts(problem, op(backward)) - offsets[op(Kind::F).slot()]
        };
        (0..problem.devices() as u32).map(|device| problem.placement.held_by(device).iter().map(of).sum()).collect()
    }

    /// Returns, by slot, when the op of micro-batch 0 starts if the block is repeated every `period`.
    pub fn offsets(&self, problem: &OrderingProblem, backward: Kind, period: i64) -> Vec<i64> {
        let stages = problem.placement.stages();
        let mut taken: Vec<Vec<(i64, i64)>> = vec![Vec::new(); problem.devices()];
        let mut offsets = vec![0; problem.rules.len()];
        for direction in 0..problem.placement.directions() {
            let mut time = 0;
            let forward = (0..stages).map(|stage| Op::new(Kind::F, stage, 0));
            let back = (0..stages).rev().map(|stage| Op::new(backward, stage, 0));
            for op in forward.chain(back).map(|op| op.in_direction(direction)) {
                let device = problem.placement.device_of(op);
                if self.apart {
                    time = free_from(time, self.lasts(problem, op), period, &mut taken[device as usize]);
                }
                offsets[op.slot()] = time;
                time += self.until_next(problem, op, device);
            }
        }
        offsets
    }

    /// Returns for how long `op` occupies its device.
    fn lasts(&self, problem: &OrderingProblem, op: Op) -> i64 {
        self.even.map_or(problem.rules[op.slot()].hold as i64, |unit| unit * i64::from(op.kind().width()))
    }

    /// Returns the time from the start of `op`, on `device`, to the start of the micro-batch's next op.
    fn until_next(&self, problem: &OrderingProblem, op: Op, device: u32) -> i64 {
        let rule = problem.rules[op.slot()];
        let least = self.even.map_or((rule.duration + rule.lag) as i64, |unit| unit * i64::from(op.kind().width()));
        let (stages, devices) = (problem.placement.stages(), problem.placement.devices());
        let forward = op.kind() == Kind::F;
        let delay = if forward && op.stage() + 1 == stages {
            self.turns[0]
        } else if rule.consumer == device {
            self.turns[if forward { 1 } else { 2 }]
        } else {
            let hops = self
                .beyond
                .filter(|&(first, _)| device.min(rule.consumer) >= first)
                .map_or(self.hops, |(_, hops)| hops);
            hops[usize::from(op.stage() >= devices) + if forward { 0 } else { 2 }]
        };
        least + delay
    }
}

/// Returns, and takes, the first time from `time` on at which an op that takes `lasts` fits between the `taken` intervals, all of
/// which recur every `period`; `time` if it fits nowhere.
fn free_from(time: i64, lasts: i64, period: i64, taken: &mut Vec<(i64, i64)>) -> i64 {
    let in_the_way = |start: i64| {
        taken.iter().find_map(|&(from, to)| {
            let (into, until) = ((start - from).rem_euclid(period), (from - start).rem_euclid(period));
            if into < to - from { Some(to - from - into) } else { (until < lasts).then_some(until + to - from) }
        })
    };
    let mut start = time;
    while let Some(wait) = in_the_way(start) {
        start += wait;
        if start - time >= period {
            start = time;
            break;
        }
    }
    taken.push((start, start + lasts));
    start
}
