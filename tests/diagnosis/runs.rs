//! Synthetic runs: a schedule's order, ops with noise, and a simulator of its own.

use crate::faults::Fault;
use pipesim_language::{Budget, Request, compile, named};
use pipesim_schedule::open::Order;
use pipesim_schedule::timeline::Timeline;
use std::collections::BTreeMap;

/// A linear congruential generator (Knuth's constants), its upper bits.
pub struct Draw(pub u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.next() as f64 / (1_u64 << 31) as f64
    }

    pub fn between(&mut self, least: f64, most: f64) -> f64 {
        least + self.share() * (most - least)
    }
}

#[derive(Clone, Debug)]
pub struct SimOp {
    pub device: u32,
    pub kind: char,
    pub stage: u32,
    pub microbatch: u32,
    /// Duration in ns without faults.
    pub ns: f64,
    /// Number of the op before it on its device, and of the op whose output it needs.
    before: Option<usize>,
    maker: Option<usize>,
}

impl SimOp {
    pub fn name(&self) -> String {
        format!("{}{}{}", self.stage, self.kind, self.microbatch)
    }
}

#[derive(Debug)]
pub struct Run {
    name: &'static str,
    pub devices: u32,
    pub chunks: u32,
    microbatches: u32,
    pub ops: Vec<SimOp>,
    /// Latency of a message, and delay of a host, in ns.
    link: f64,
    host: f64,
}

const SCHEDULES: [(&str, u32); 6] =
    [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 4), ("zb-v", 2), ("dualpipe-v", 2)];

impl Run {
    pub fn draw(draw: &mut Draw) -> Run {
        let (name, chunks) = SCHEDULES[draw.below(SCHEDULES.len() as u64) as usize];
        let devices = 2 + draw.below(7) as u32;
        // Interleaved schedules take multiples of p, DualPipeV at least 2 p.
        let microbatches = match name {
            "gpipe" | "1f1b" => 4 + draw.below(29) as u32,
            "dualpipe-v" => (2 * devices) + draw.below(8) as u32,
            _ => (devices * (1 + draw.below(3) as u32)).clamp(4, 32) / devices.max(1) * devices,
        };
        let microbatches = if microbatches < 4 { 2 * microbatches.max(devices) } else { microbatches };
        let chunks_asked = Some(chunks).filter(|_| name == "interleaved-1f1b");
        let request = Request {
            devices,
            microbatches,
            chunks: chunks_asked,
            options: Default::default(),
            budget: Budget::default(),
        };
        let Order::Fixed(schedule) = compile(&named(name).unwrap(), &request).unwrap().order else {
            panic!("{name} has a fixed order")
        };
        let noise = draw.between(0.01, 0.02);
        let stage_ns = 20e6 / f64::from(chunks);
        let mut ops = Vec::new();
        for device in 0..devices {
            for op in schedule.program(device) {
                let op = op.alone();
                let kind = op.kind().letter();
                let work = if kind == 'B' { 2.0 } else { 1.0 };
                let ns = work * stage_ns * (1.0 + noise * (draw.between(-1.0, 1.0) + draw.between(-1.0, 1.0)));
                let (stage, microbatch) = (op.stage(), op.microbatch());
                ops.push(SimOp { device, kind, stage, microbatch, ns, before: None, maker: None });
            }
        }
        let number: BTreeMap<(bool, u32, u32), usize> = (0..)
            .zip(&ops)
            .filter(|(_, op)| op.kind != 'W')
            .map(|(at, op)| ((op.kind == 'F', op.stage, op.microbatch), at))
            .collect();
        let last = devices * chunks - 1;
        for at in 0..ops.len() {
            ops[at].before = at.checked_sub(1).filter(|&before| ops[before].device == ops[at].device);
            let (stage, microbatch) = (ops[at].stage, ops[at].microbatch);
            let makes = match ops[at].kind {
                'F' if stage == 0 => None,
                'F' => Some((true, stage - 1)),
                'W' => Some((false, stage)),
                _ if stage == last => Some((true, stage)),
                _ => Some((false, stage + 1)),
            };
            ops[at].maker = makes.map(|(forward, stage)| number[&(forward, stage, microbatch)]);
        }
        Run { name, devices, chunks, microbatches, ops, link: 100e3, host: 40e3 }
    }

    pub fn described(&self) -> String {
        format!("{} v={} p={} m={}", self.name, self.chunks, self.devices, self.microbatches)
    }

    /// Returns the links between devices that messages use.
    pub fn links(&self) -> Vec<[u32; 2]> {
        let link = |op: &SimOp| {
            let from = self.ops[op.maker?].device;
            (from != op.device).then(|| [from.min(op.device), from.max(op.device)])
        };
        let mut links: Vec<[u32; 2]> = self.ops.iter().filter_map(link).collect();
        links.sort_unstable();
        links.dedup();
        links
    }

    /// Returns start and end of all ops, in ns.
    fn simulate(&self, faults: &[Fault], without: Option<&Fault>) -> Vec<(u64, u64)> {
        let faults: Vec<&Fault> = faults.iter().filter(|&fault| without != Some(fault)).collect();
        let free_links = matches!(without, Some(Fault::AllLinks(_)));
        let free_hosts = matches!(without, Some(Fault::AllHosts(_)));
        let mut times: Vec<Option<(u64, u64)>> = vec![None; self.ops.len()];
        let mut left = true;
        while left {
            left = false;
            for at in 0..self.ops.len() {
                if times[at].is_some() {
                    continue;
                }
                let op = &self.ops[at];
                let ended = |other: Option<usize>| other.map_or(Some(0), |other| Some(times[other]?.1));
                let (Some(free), Some(made)) = (ended(op.before), ended(op.maker)) else {
                    left = true;
                    continue;
                };
                let from = op.maker.map_or(op.device, |maker| self.ops[maker].device);
                let link = [from.min(op.device), from.max(op.device)];
                let message = if from == op.device || free_links { 0.0 } else { self.link };
                let message = faults.iter().fold(message, |ns, fault| fault.message(ns, link));
                let host = if free_hosts { 0.0 } else { self.host };
                let host = faults.iter().fold(host, |ns, fault| fault.host(ns, op.device));
                let pause: f64 = faults.iter().map(|fault| fault.pause(at)).sum();
                let lasts = faults.iter().fold(op.ns, |ns, fault| fault.lasts(ns, at, op));
                let start = (free + pause as u64).max(made + message as u64) + host as u64;
                times[at] = Some((start, start + lasts as u64));
            }
        }
        times.into_iter().flatten().collect()
    }

    /// Returns the time from the first start to the last end: a timeline begins with its first op.
    fn step(times: &[(u64, u64)]) -> u64 {
        let first = times.iter().map(|time| time.0).min().unwrap_or(0);
        times.iter().map(|time| time.1).max().unwrap_or(0) - first
    }

    pub fn makespan(&self, faults: &[Fault]) -> u64 {
        Run::step(&self.simulate(faults, None))
    }

    pub fn makespan_without(&self, faults: &[Fault], without: &Fault) -> u64 {
        Run::step(&self.simulate(faults, Some(without)))
    }

    pub fn timeline(&self, faults: &[Fault]) -> Timeline {
        let times = self.simulate(faults, None);
        let first = times.iter().map(|time| time.0).min().unwrap_or(0);
        let span = |(op, (start, end)): (&SimOp, &(u64, u64))| {
            format!(
                r#"{{"device": {}, "queue": "compute", "op": "{}", "start_ns": {}, "end_ns": {}}}"#,
                op.device,
                op.name(),
                start - first,
                end - first
            )
        };
        let spans: Vec<String> = self.ops.iter().zip(&times).map(span).collect();
        let text = format!(
            r#"{{"schema_version": 1, "source": "measured", "schedule": "{}", "devices": {}, "chunks": {}, "microbatches": {},
            "time_unit": "ms", "unit_ns": 1000000, "keep": 1.0, "clock_uncertainty_ns": 0, "spans": [{}]}}"#,
            self.name,
            self.devices,
            self.chunks,
            self.microbatches,
            spans.join(",")
        );
        Timeline::from_json(&text).unwrap()
    }
}
