//! Building blocks: when the ops of one micro-batch run, so that the block can be repeated once a period (Qi et al., arXiv
//! 2405.15362 section 3).

use super::problem::Problem;
use crate::op::{Kind, Op};
use crate::placement::Chunk;

/// How long each wave of one micro-batch lingers on its way beyond what it takes at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block {
    /// At a hop from device to device: forward on the first chunk, on the others; backward on the first, on the others.
    pub hops: [i64; 4],
    /// The same on devices from this one on, where that differs.
    pub beyond: Option<(u32, [i64; 4])>,
    /// Where it turns from forward to backward, from chunk to chunk of a device going forward, and going backward.
    pub turns: [i64; 3],
    /// What every op is taken to last, transfers nothing; else they last what they do.
    pub even: Option<i64>,
    /// Whether ops that would run at once, a period earlier or later, are kept apart: then the block can be repeated as it is.
    pub apart: bool,
}

impl Block {
    /// No lingering.
    pub const NONE: Block = Block { hops: [0; 4], beyond: None, turns: [0; 3], even: None, apart: false };

    /// For how long, by device, it holds activations of one micro-batch, summed over its chunks.
    pub fn held(&self, problem: &Problem, backward: Kind, offsets: &[i64]) -> Vec<i64> {
        let of = |chunk: &Chunk| {
            let op = |kind| Op::new(kind, chunk.stage, 0).in_direction(chunk.direction);
            offsets[op(backward).slot()] + self.lasts(problem, op(backward)) - offsets[op(Kind::F).slot()]
        };
        (0..problem.devices() as u32).map(|device| problem.placement.held_by(device).iter().map(of).sum()).collect()
    }

    /// When, by slot, each op of micro-batch 0 starts if there is one every `period`.
    pub fn offsets(&self, problem: &Problem, backward: Kind, period: i64) -> Vec<i64> {
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

    /// How long `op` takes its device.
    fn lasts(&self, problem: &Problem, op: Op) -> i64 {
        self.even.map_or(problem.rules[op.slot()].hold as i64, |unit| unit * i64::from(op.kind().width()))
    }

    /// From `op`'s start, on `device`, to the start of the micro-batch's next op.
    fn until_next(&self, problem: &Problem, op: Op, device: u32) -> i64 {
        let rule = problem.rules[op.slot()];
        let least = self.even.map_or((rule.duration + rule.lag) as i64, |unit| unit * i64::from(op.kind().width()));
        let (stages, devices) = (problem.placement.stages(), problem.placement.devices());
        let forward = op.kind() == Kind::F;
        let linger = if forward && op.stage() + 1 == stages {
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
        least + linger
    }
}

/// The first time from `time` on at which an op that lasts `lasts` fits between those `taken` (start and end), all once a
/// period; takes it. `time` where there is none.
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
