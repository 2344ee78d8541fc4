//! A lower bound of a step's time over all orders of its ops, from each device's work and the path of the first and last
//! micro-batch.

use super::step::After;
use super::{Analytic, Passes, ns};
use pipesim_models::model_spec::Stage;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;

/// Nanoseconds of one stage's ops, as [`Analytic::table`] rounds them.
#[derive(Clone, Copy)]
struct LeastTimes {
    forward: u64,
    /// B, or I + W if the backward is split.
    backward: u64,
}

impl Analytic {
    /// Returns a lower bound, in seconds, of the iteration time of every order on `placement`, whether or not it fits into memory.
    /// `split`: whether the order splits the backward. `alike[device]` is the first device with the same number of each part.
    ///
    /// A device cannot start before the first forward reaches it, and then has to do all its work. Without a split backward, the
    /// backwards of earlier stages follow its last one. Exchange and optimizer are as in [`Analytic::step`].
    pub fn least_iteration(&self, placement: &Placement, stages: &[Stage], split: bool, alike: &[u32]) -> f64 {
        let stack = &self.machine.stack;
        let passes = self.passes_on(placement, stages);
        let of = |stage, direction| LeastTimes::new(&passes(Op::new(Kind::F, stage, 0).in_direction(direction)), split);
        let of = |direction| (0..placement.stages()).map(|stage| of(stage, direction)).collect::<Vec<LeastTimes>>();
        let times: Vec<Vec<LeastTimes>> = (0..placement.directions()).map(of).collect();
        let ways: Vec<[Vec<u64>; 2]> =
            (0..).zip(&times).map(|(direction, times)| self.ways(placement, direction, times)).collect();
        let blocked = self.blocked(placement);
        let overlaps = stack.step_overlaps > 0.0 && split;
        let mut after = vec![After::default(); alike.len()];
        let (mut pipeline, mut exchanged, mut optimizer) = (0, 0.0_f64, 0.0_f64);
        for device in 0..placement.devices() {
            let (mut head, mut tail, mut work, mut leaving) = (u64::MAX, u64::MAX, 0, 0);
            for chunk in placement.held_by(device) {
                let (stage, [down, up]) = (chunk.stage as usize, &ways[chunk.direction as usize]);
                let micro = u64::from(placement.microbatches_of(chunk.direction, self.layout.micro).len() as u32);
                (head, tail) = (head.min(down[stage]), tail.min(up[stage]));
                let LeastTimes { forward, backward } = times[chunk.direction as usize][stage];
                work += micro * (forward + backward);
                let sends = [Kind::F, Kind::B].map(|kind| Op::new(kind, chunk.stage, 0).in_direction(chunk.direction));
                leaving += micro * sends.into_iter().filter(|op| placement.leaves_device(*op)).count() as u64;
            }
            // the device need not be free again after its last op
            let work = work + leaving.saturating_sub(1) * blocked;
            let tail = if split { 0 } else { tail };
            let lasted = if overlaps { work } else { head + work };
            let first = alike[device as usize] as usize;
            if first == device as usize {
                after[first] = self.after(placement, stages, device);
            }
            let After { exchange, optimizer: update } = after[first];
            pipeline = pipeline.max(if overlaps { work } else { head + work + tail });
            exchanged = exchanged.max(lasted as f64 * 1e-9 + exchange);
            optimizer = optimizer.max(update);
        }
        let step = exchanged.max(pipeline as f64 * 1e-9) + optimizer + self.tied_exchange(placement, stages);
        let step = step + stack.host_step_ms * 1e-3;
        // sums in another order than the step's
        step * (1.0 + stack.straggler_share * self.doublings()) * (1.0 - 1e-9)
    }

    /// Returns, by stage of one direction, the time until its first forward may start and the time from the end of its last backward
    /// to the end of stage 0's last backward.
    fn ways(&self, placement: &Placement, direction: u32, times: &[LeastTimes]) -> [Vec<u64>; 2] {
        let (mut down, mut up) = (vec![0; times.len()], vec![0; times.len()]);
        for stage in 1..times.len() {
            let send = |kind, from: usize| {
                let op = Op::new(kind, from as u32, 0).in_direction(direction);
                if placement.leaves_device(op) { ns(self.arrival(placement, op)) } else { 0 }
            };
            down[stage] = down[stage - 1] + times[stage - 1].forward + send(Kind::F, stage - 1);
            up[stage] = up[stage - 1] + times[stage - 1].backward + send(Kind::B, stage);
        }
        [down, up]
    }
}

impl LeastTimes {
    fn new(passes: &Passes, split: bool) -> LeastTimes {
        let backward = match split {
            true => ns(passes.input.total()) + ns(passes.split_weights().total()),
            false => ns(passes.backward.total()),
        };
        LeastTimes { forward: ns(passes.forward.total()), backward }
    }
}
