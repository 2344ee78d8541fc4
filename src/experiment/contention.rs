//! How much devices that compute beside each other slow each other down, from measured steps.
//!
//! Cores share caches, memory and power, and what other programs leave of them; with more devices than cores they share these. So
//! what counts is how many devices compute: with n of them each goes at 1/s(n) of the speed that it has alone. In fill and drain
//! some of the devices compute, in the steady state all do, and with one micro-batch only one does: s follows from how long ops
//! of one stage and kind took there, always compared within a moment, as the machine's own speed comes and goes.

use crate::exec::{DeviceRecord, StepRecord};
use crate::graph::TaskGraph;
use crate::statistics::median;
use std::collections::BTreeMap;

/// Passes over the unknowns, of which each is found from the others.
const PASSES: usize = 20;

/// Least share of an op's time with n devices for which it says something about n.
const LEAST_SHARE: f64 = 0.5;

/// Least share of a put's time alone for which it is one that was alone.
const ALONE: f64 = 0.999;

/// Least samples of a number of devices.
const LEAST_SAMPLES: usize = 5;

/// Least speed that neighbours leave a device.
const LEAST_SPEED: f64 = 0.01;

/// Shares of an op's time by the number of devices that computed, from 1, its own included.
type Shares = Vec<f64>;

/// By number of devices that compute, from 1, the speed of each, as a share of that of one alone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Neighbours {
    speeds: Vec<f64>,
}

impl Neighbours {
    /// From pairs of steps that ran beside each other: of a schedule with neighbours, and one in which each op ran alone.
    pub(super) fn of(devices: usize, pairs: &[[(&TaskGraph, &StepRecord); 2]]) -> Neighbours {
        Neighbours::from_samples(
            devices,
            &pairs.iter().flat_map(|&[among, alone]| speeds(among, alone)).collect::<Vec<_>>(),
        )
    }

    /// Of puts: how fast one is while others are under way, from steps in which some are alone; none where nothing is put.
    pub(super) fn of_puts(devices: usize, records: &[StepRecord]) -> Option<Neighbours> {
        let of_step = |record| {
            let puts = puts(record);
            let shares = busy(&puts, devices);
            puts.into_iter().flatten().zip(shares.into_iter().flatten()).collect::<Vec<_>>()
        };
        let all: Vec<(Span, Shares)> = records.iter().flat_map(of_step).collect();
        let lasts = |&(start, end): &Span| (end - start) as f64;
        let alone: Vec<f64> = all.iter().filter(|(_, shares)| shares[0] >= ALONE).map(|(put, _)| lasts(put)).collect();
        if all.is_empty() || alone.len() < LEAST_SAMPLES {
            return (!all.is_empty()).then(|| Neighbours::none(devices));
        }
        let alone = median(&alone);
        let samples: Vec<_> = all.into_iter().map(|(put, shares)| (alone / lasts(&put), shares)).collect();
        Some(Neighbours::from_samples(devices, &samples))
    }

    /// From how fast something was against alone, and its neighbours.
    fn from_samples(devices: usize, samples: &[(f64, Shares)]) -> Neighbours {
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

    /// Neighbours that cost nothing.
    pub(super) fn none(devices: usize) -> Neighbours {
        Neighbours { speeds: vec![1.0; devices] }
    }

    /// How long an op lasts while 1, 2, .. devices compute, per mille of alone.
    pub(super) fn contention(&self) -> Vec<u32> {
        self.speeds.iter().map(|speed| (1000.0 / speed).round() as u32).collect()
    }

    /// By device and op of a step, the share of its time that it would have taken alone.
    pub(super) fn alone(&self, record: &StepRecord) -> Vec<Vec<f64>> {
        let of_device = |device: &Vec<Shares>| device.iter().map(|shares| self.share(shares)).collect();
        busy(&ops(record), self.speeds.len()).iter().map(of_device).collect()
    }

    /// How long, in ns, the puts of a step would have taken alone.
    pub(super) fn puts_alone(&self, record: &StepRecord) -> Vec<u64> {
        let puts = puts(record);
        let shares = busy(&puts, self.speeds.len());
        let alone =
            |((start, end), shares): (Span, Shares)| ((end - start) as f64 * self.share(&shares)).round() as u64;
        puts.into_iter().flatten().zip(shares.into_iter().flatten()).map(alone).collect()
    }

    fn share(&self, shares: &Shares) -> f64 {
        shares.iter().zip(&self.speeds).map(|(share, speed)| share * speed).sum()
    }
}

/// The speed of each op of a step among neighbours, against the same stage's and kind's alone, and its neighbours.
fn speeds(among: (&TaskGraph, &StepRecord), alone: (&TaskGraph, &StepRecord)) -> Vec<(f64, Shares)> {
    let mut durations: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for op in alone.1.devices.iter().flat_map(|device| &device.ops) {
        durations.entry(alone.0.op(op.index).slot()).or_default().push((op.end - op.start) as f64);
    }
    let busy = busy(&ops(among.1), among.1.devices.len());
    let mut found = Vec::new();
    for (device, shares) in among.1.devices.iter().zip(busy) {
        for (op, shares) in device.ops.iter().zip(shares).filter(|(op, _)| op.end > op.start) {
            if let Some(alone) = durations.get(&among.0.op(op.index).slot()) {
                found.push((median(alone) / (op.end - op.start) as f64, shares));
            }
        }
    }
    found
}

/// Start and end.
type Span = (u64, u64);

/// By device, when it computed.
fn ops(record: &StepRecord) -> Vec<Vec<Span>> {
    record.devices.iter().map(|device| device.ops.iter().map(|op| (op.start, op.end)).collect()).collect()
}

/// By device, when it put.
fn puts(record: &StepRecord) -> Vec<Vec<Span>> {
    let of_device = |device: &DeviceRecord| {
        let puts = device.ops.iter().map(|op| (op.put_start, op.put_end));
        puts.filter(|(start, end)| start < end).collect()
    };
    record.devices.iter().map(of_device).collect()
}

/// By device and span, the shares of its time with 1, 2, .. `most` spans at the same time.
fn busy(spans: &[Vec<Span>], most: usize) -> Vec<Vec<Shares>> {
    let mut edges: Vec<(u64, i32)> = spans.iter().flatten().flat_map(|&(start, end)| [(start, 1), (end, -1)]).collect();
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
    spans.iter().map(|device| device.iter().map(|&(start, end)| shares(start, end)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostTable;
    use crate::exec::OpRecord;
    use crate::resolve::{self, Selection, unknown_costs};
    use crate::sim::event::{Config, Network, Processor, Put, Record, Scope, Sharing, simulate};

    /// How long a put takes alone in [`step`].
    const PUT: u64 = 300;

    /// A step of `schedule` as the event engine plays it: ops of 1000 ticks alone, `slower` per mille; puts of 300.
    fn step(schedule: &str, shape: (u32, u32), [ops, puts]: [&[u32]; 2], slower: u64) -> (TaskGraph, StepRecord) {
        let graph = Selection::new(shape.0, shape.1).graph::<resolve::Error>(schedule, &unknown_costs).unwrap().graph;
        let placement = &graph.schedule().placement;
        let put = |op| if placement.leaves_device(op) { PUT } else { 0 };
        let cost = |op: crate::op::Op| crate::cost::OpTime {
            duration: slower * if op.kind() == crate::op::Kind::B { 2 } else { 1 },
            after: put(op),
            arrival: put(op),
        };
        let summary = crate::cost::Summary { F: 1.0, I: 1.0, W: 1.0, B: 2.0, comm: 0.0, keep: 1.0 };
        let costs = CostTable::new(placement, (1e6, "ms", 1_000_000), summary, cost);
        let processor = Processor { devices: (0..shape.0).collect(), cores: shape.0, contention: ops.to_vec() };
        let network = Network {
            transfer: PUT,
            sharing: Sharing::FairShare,
            scope: Scope::Machine,
            contention: puts.to_vec(),
            put: Put::Holding,
        };
        let config = Config { processors: vec![processor], network, ..Config::default() };
        let mut record = Record::new(&graph);
        simulate(&graph, &costs, &config, &mut record).unwrap();
        let mut devices = vec![DeviceRecord::default(); shape.0 as usize];
        for (index, &(start, end)) in record.ops.iter().enumerate() {
            let (mut put_start, mut put_end) = (end, end);
            if let Some(transfer) = record.transfers.iter().find(|transfer| transfer.op == index) {
                (put_start, put_end) = (transfer.start, transfer.end);
            }
            let op = OpRecord { index, turn: start, start, end, put_start, put_end };
            devices[graph.device_of(index) as usize].ops.push(op);
        }
        devices.iter_mut().for_each(|device| device.ops.sort_by_key(|op| op.start));
        (graph, StepRecord { devices, ..StepRecord::default() })
    }

    #[test]
    fn what_neighbours_cost_is_found_again_in_steps_of_a_machine_that_drifts() {
        for (schedule, p) in [("1f1b", 2), ("gpipe", 2), ("zb-h1", 2), ("1f1b", 4), ("zb-h1", 3)] {
            for contention in [[1000; 4], [1000, 1250, 1400, 1400], [1000, 1100, 1650, 2200]] {
                let contention = &contention[..p as usize];
                let steps = [1000, 1050, 1100].map(|slower: u64| {
                    let step = |m| step(schedule, (p, m), [contention, &[]], slower);
                    (step(8), step(1))
                });
                let pairs: Vec<_> =
                    steps.iter().map(|(among, alone)| [(&among.0, &among.1), (&alone.0, &alone.1)]).collect();
                let found = Neighbours::of(p as usize, &pairs);
                for (wanted, found) in contention.iter().zip(found.contention()) {
                    assert!(wanted.abs_diff(found) <= 3, "{schedule} {p}: {found} for {wanted}");
                }
                let (graph, record) = &steps[0].0;
                for (device, shares) in record.devices.iter().zip(&found.alone(record)) {
                    for (op, share) in device.ops.iter().zip(shares) {
                        let alone = (op.end - op.start) as f64 * share;
                        let units = if graph.op(op.index).kind() == crate::op::Kind::B { 2.0 } else { 1.0 };
                        assert!((alone - 1000.0 * units).abs() < 8.0 * units, "{schedule}: {alone}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_puts_cost_each_other_is_found_again() {
        for (schedule, p) in [("1f1b", 2), ("zb-h1", 3), ("gpipe", 4), ("1f1b", 4)] {
            for contention in [[1000, 1000], [1000, 1250], [1000, 1800]] {
                // Ops as short as puts: puts meet often.
                let records: Vec<StepRecord> =
                    (0..5).map(|n| step(schedule, (p, 8), [&[], &contention], 200 + 40 * n).1).collect();
                let found = Neighbours::of_puts(p as usize, &records).unwrap();
                let slower = found.contention();
                assert!(slower[1].abs_diff(contention[1]) <= 6, "{schedule} {p}: {slower:?} for {contention:?}");
                for alone in records.iter().flat_map(|record| found.puts_alone(record)) {
                    assert!(alone.abs_diff(PUT) <= 6, "{schedule}: {alone}");
                }
            }
        }
        assert_eq!(Neighbours::of_puts(2, &[]), None, "no puts tell nothing");
    }
}
