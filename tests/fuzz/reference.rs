//! A second, slow method for dependencies and start times.

use pipesim::{CostTable, Kind, Op, Overlap, Schedule};
use std::collections::BTreeMap;

/// Start and end of every op, in the order of [`Schedule::ops`].
pub type Times = Vec<(u64, u64)>;

/// A message between stages: whether it is a gradient, its stage, its micro-batch.
type Output = (bool, u32, u32);

/// Advances all devices, one op or overlapped pair at a time, until none can continue. `None` if some device never completes.
pub fn run(schedule: &Schedule, costs: &CostTable, overlap: Overlap) -> Option<Times> {
    let mut times = vec![(0, 0); schedule.ops().len()];
    let mut made: BTreeMap<Output, (u64, Op)> = BTreeMap::new(); // time, and the op that made it
    let mut next: Vec<usize> = (0..schedule.devices()).map(|device| schedule.range(device).start).collect();
    let mut free = vec![0_u64; schedule.devices() as usize];
    loop {
        let mut moved = false;
        for device in 0..schedule.devices() as usize {
            while next[device] < schedule.range(device as u32).end {
                let at = next[device];
                let paired = schedule.ops()[at].opens_pair() && overlap != Overlap::Serial;
                let unit = &schedule.ops()[at..at + 1 + usize::from(paired)];
                let inputs: Option<Vec<u64>> = unit.iter().map(|&op| arrival(schedule, costs, &made, op)).collect();
                let Some(inputs) = inputs else { break };
                let durations: Vec<u64> = unit.iter().map(|&op| costs.of(op).duration).collect();
                let spans = place(overlap, free[device], &inputs, &durations);
                let end = spans[spans.len() - 1].1;
                for (number, &op) in unit.iter().enumerate() {
                    times[at + number] = spans[number];
                    if op.kind() != Kind::W {
                        made.insert((op.kind() != Kind::F, op.stage(), op.microbatch()), (end, op));
                    }
                }
                free[device] = end;
                next[device] += unit.len();
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    (0..schedule.devices()).all(|device| next[device as usize] == schedule.range(device).end).then_some(times)
}

/// Returns when the input of `op` from another stage arrives; `None` if that is not known yet.
fn arrival(schedule: &Schedule, costs: &CostTable, made: &BTreeMap<Output, (u64, Op)>, op: Op) -> Option<u64> {
    let last = schedule.placement.stages() - 1;
    let needed = match op.kind() {
        Kind::F if op.stage() > 0 => (false, op.stage() - 1, op.microbatch()),
        Kind::I | Kind::B if op.stage() < last => (true, op.stage() + 1, op.microbatch()),
        _ => return Some(0),
    };
    let &(end, maker) = made.get(&needed)?;
    let near = schedule.placement.device_of(maker) == schedule.placement.device_of(op);
    Some(end + if near { 0 } else { costs.of(maker).arrival })
}

/// Returns when a device that is free from `free` on runs an op or an overlapped pair (see Overlap). Under
/// [`Overlap::Max`] both ops get the pair's whole time.
fn place(overlap: Overlap, free: u64, inputs: &[u64], durations: &[u64]) -> Vec<(u64, u64)> {
    let start = free.max(inputs[0]);
    let (&[first, second], &[_, input]) = (durations, inputs) else { return vec![(start, start + durations[0])] };
    match overlap {
        // Without the times of sub-ops, streams are as atomic.
        Overlap::Atomic | Overlap::Streams => {
            let start = start.max(input);
            vec![(start, start + first), (start + first, start + first + second)]
        }
        Overlap::Max => vec![(start.max(input), start.max(input) + first.max(second)); 2],
        Overlap::Runtime | Overlap::Serial => {
            let other = (start + first).max(input);
            vec![(start, start + first), (other, other + second)]
        }
    }
}

/// Returns the largest number of activations that `device` holds at once, in units of its whole share of layers (with the cost `keep`).
pub fn peak(schedule: &Schedule, device: u32, keep: f64) -> f64 {
    let (mut held, mut peak) = (0.0, 0.0_f64);
    for op in schedule.program(device) {
        held += match op.kind() {
            Kind::F => 1.0,
            Kind::I => keep - 1.0,
            Kind::W => -keep,
            _ => -1.0,
        };
        peak = peak.max(held);
    }
    peak / f64::from(schedule.placement.chunks())
}
