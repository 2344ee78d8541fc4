//! How much devices that compute at the same time slow each other down, from measured steps.
//!
//! Cores share caches, memory and power; with more devices than cores, devices share the cores themselves. What counts is the number
//! of devices that compute: with n of them, each runs at 1/s(n) of the speed it has alone. During fill and drain some devices
//! compute, in the steady state all of them, and with one micro-batch only one. So s follows from the durations of ops of one
//! stage and kind in these phases, always compared within a moment, as the machine's own speed varies.

use pipesim_exec::StepRecord;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::statistics::median;
use std::collections::BTreeMap;

/// Passes over the unknown speeds; each speed is estimated from the others.
const PASSES: usize = 20;

/// Least share of an op's time with n devices for the op to count for n.
const LEAST_SHARE: f64 = 0.5;

/// Least number of samples for a number of devices.
const LEAST_SAMPLES: usize = 5;

/// Lower limit of an estimated speed.
const LEAST_SPEED: f64 = 0.01;

/// Shares of an op's time by the number of devices that computed, from 1 (only its own device).
type Shares = Vec<f64>;

/// Speed of a device while 1, 2, .. devices compute, as a share of its speed alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbours {
    speeds: Vec<f64>,
}

impl Neighbours {
    /// Estimates the speeds from pairs of steps measured next to each other: one in which devices compute at the same time, and
    /// one in which each op runs alone.
    pub fn of(devices: usize, pairs: &[[(&TaskGraph, &StepRecord); 2]]) -> Neighbours {
        let samples: Vec<(f64, Shares)> = pairs.iter().flat_map(|&[among, alone]| samples(among, alone)).collect();
        let mut speeds = vec![1.0; devices];
        for _ in 0..PASSES {
            for n in 1..devices {
                let without =
                    |shares: &Shares| -> f64 { (0..devices).filter(|&k| k != n).map(|k| shares[k] * speeds[k]).sum() };
                let found: Vec<f64> = samples
                    .iter()
                    .filter(|(_, shares)| shares[n] >= LEAST_SHARE)
                    .map(|(speed, shares)| (speed - without(shares)) / shares[n])
                    .collect();
                // More neighbours never help.
                let found = if found.len() < LEAST_SAMPLES { speeds[n - 1] } else { median(&found) };
                speeds[n] = found.clamp(LEAST_SPEED, speeds[n - 1]);
            }
        }
        Neighbours { speeds }
    }

    /// Returns neighbours that cost nothing.
    pub fn none(devices: usize) -> Neighbours {
        Neighbours { speeds: vec![1.0; devices] }
    }

    /// Duration of an op while 1, 2, .. devices compute, per mille of its duration alone.
    pub fn contention(&self) -> Vec<u32> {
        self.speeds.iter().map(|speed| (1000.0 / speed).round() as u32).collect()
    }

    /// The share of its duration that each op of a step would have taken alone, by device and op.
    pub fn alone(&self, record: &StepRecord) -> Vec<Vec<f64>> {
        let share = |shares: &Shares| shares.iter().zip(&self.speeds).map(|(share, speed)| share * speed).sum();
        let of_device = |device: &Vec<Shares>| device.iter().map(share).collect();
        computing(record, self.speeds.len()).iter().map(of_device).collect()
    }
}

/// The speed of each op of a step compared with the same stage and kind alone, with the op's shares.
fn samples(among: (&TaskGraph, &StepRecord), alone: (&TaskGraph, &StepRecord)) -> Vec<(f64, Shares)> {
    let mut durations: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for op in alone.1.devices.iter().flat_map(|device| &device.ops) {
        durations.entry(alone.0.schedule().class(alone.0.op(op.index))).or_default().push((op.end - op.start) as f64);
    }
    let shares = computing(among.1, among.1.devices.len());
    let mut found = Vec::new();
    for (device, shares) in among.1.devices.iter().zip(shares) {
        for (op, shares) in device.ops.iter().zip(shares).filter(|(op, _)| op.end > op.start) {
            if let Some(alone) = durations.get(&among.0.schedule().class(among.0.op(op.index))) {
                found.push((median(alone) / (op.end - op.start) as f64, shares));
            }
        }
    }
    found
}

/// The shares of each op's time with 1, 2, .. `most` devices computing, by device and op.
fn computing(record: &StepRecord, most: usize) -> Vec<Vec<Shares>> {
    let ops = record.devices.iter().flat_map(|device| &device.ops);
    let mut edges: Vec<(u64, i32)> = ops.flat_map(|op| [(op.start, 1), (op.end, -1)]).collect();
    edges.sort_unstable();
    let counted = edges.iter().scan(0, |count, &(time, step)| {
        *count += step;
        Some((time, *count))
    });
    let counts: Vec<(u64, i32)> = counted.collect();
    let shares = |start: u64, end: u64| {
        let mut shares = vec![0.0; most];
        let first = counts.partition_point(|&(time, _)| time <= start).saturating_sub(1);
        for (&(time, count), next) in counts[first..].iter().zip(counts[first + 1..].iter().map(|&(time, _)| time)) {
            if time >= end {
                break;
            }
            let overlap = next.min(end).saturating_sub(time.max(start));
            shares[(count.max(1) as usize).min(most) - 1] += overlap as f64 / (end - start).max(1) as f64;
        }
        shares
    };
    let of_device = |ops: &[pipesim_exec::OpRecord]| ops.iter().map(|op| shares(op.start, op.end)).collect();
    record.devices.iter().map(|device| of_device(&device.ops)).collect()
}
