//! How fast any schedule with this placement, these kinds of ops and these costs could be.

use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};

/// A lower bound of the makespan in ticks: the largest of
/// - work: a device's ops one after the other;
/// - critical path: one micro-batch there and back, with the weights' half of any stage after it;
/// - head + work + tail: before a device's first op its input must be made, after its last op that op's result must
///   travel on; once for all its ops, once for all but the W's (a W has no tail, but the last backward has).
pub fn lower_bound(graph: &TaskGraph, costs: &CostTable) -> u64 {
    let placement = &graph.schedule().placement;
    let stages = placement.stages();
    let counts = graph.schedule().counts();
    let count = |kind: Kind, stage: u32| counts[Op::new(kind, stage, 0).slot()];
    let time = |kind: Kind, stage: u32| costs.of(Op::new(kind, stage, 0));
    let fused = |stage: u32| count(Kind::I, stage) == 0;
    let back = |stage: u32| if fused(stage) { Kind::B } else { Kind::I };
    let hop = |kind: Kind, from: u32, to: u32| {
        if placement.device_of_stage(from, 0) == placement.device_of_stage(to, 0) {
            0
        } else {
            time(kind, from).arrival
        }
    };

    // head[s]: earliest start of a forward of stage s. tail[s]: what must follow the end of a backward of stage s.
    let mut head = vec![0; stages as usize];
    for s in 1..stages {
        head[s as usize] = head[s as usize - 1] + time(Kind::F, s - 1).duration + hop(Kind::F, s - 1, s);
    }
    let own_weights = |s: u32| if fused(s) { 0 } else { time(Kind::W, s).duration };
    let mut tail = vec![0; stages as usize];
    for s in 0..stages {
        let onward = s
            .checked_sub(1)
            .map_or(0, |below| hop(back(s), s, below) + time(back(below), below).duration + tail[below as usize]);
        tail[s as usize] = own_weights(s).max(onward);
    }
    let last = stages - 1;
    let path =
        head[last as usize] + time(Kind::F, last).duration + time(back(last), last).duration + tail[last as usize];

    let mut bound = if graph.is_empty() { 0 } else { path };
    for device in 0..placement.devices() {
        let (mut work, mut without_weights, mut shortest_tail) = (0, 0, u64::MAX);
        for stage in placement.stages_of(device) {
            for kind in Kind::ALL.into_iter().filter(|&kind| count(kind, stage) > 0) {
                let duration = count(kind, stage) * time(kind, stage).duration;
                work += duration;
                if kind != Kind::W {
                    without_weights += duration;
                }
                if kind.is_backward() {
                    shortest_tail = shortest_tail.min(tail[stage as usize]);
                }
            }
        }
        let first = placement.stages_of(device).map(|s| head[s as usize]).min().unwrap_or(0);
        let any_weights = placement.stages_of(device).any(|s| !fused(s));
        let all_tail = if any_weights || shortest_tail == u64::MAX { 0 } else { shortest_tail };
        let last_tail = if shortest_tail == u64::MAX { 0 } else { shortest_tail };
        bound = bound.max(first + work + all_tail).max(first + without_weights + last_tail);
    }
    bound
}
