//! Given costs are exact: durations and makespans are those of a calculation in fractions.

use crate::support::Dice;
use pipesim::costs::Slow;
use pipesim::models::StageLayout;
use pipesim::simulation::OpTimes;
use pipesim::{Costs, GivenCosts, Kind, Op, Resolved, Selection, Slices};
use std::collections::BTreeMap;

/// A fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fraction(i128, i128);

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

impl Fraction {
    const ZERO: Fraction = Fraction(0, 1);

    fn new(numerator: i128, denominator: i128) -> Fraction {
        let common = gcd(numerator, denominator).max(1);
        Fraction(numerator / common, denominator / common)
    }

    fn of(n: u64) -> Fraction {
        Fraction(n.into(), 1)
    }

    /// Reads a decimal number.
    fn read(text: &str) -> Fraction {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        Fraction::new(format!("{whole}{decimals}").parse().unwrap(), 10_i128.pow(decimals.len() as u32))
    }

    fn plus(self, other: Fraction) -> Fraction {
        Fraction::new(self.0 * other.1 + other.0 * self.1, self.1 * other.1)
    }

    fn minus(self, other: Fraction) -> Fraction {
        self.plus(Fraction(-other.0, other.1))
    }

    fn times(self, other: Fraction) -> Fraction {
        Fraction::new(self.0 * other.0, self.1 * other.1)
    }

    fn over(self, other: Fraction) -> Fraction {
        Fraction::new(self.0 * other.1, self.1 * other.0)
    }

    fn max(self, other: Fraction) -> Fraction {
        if self.0 * other.1 >= other.0 * self.1 { self } else { other }
    }
}

/// A cost set, as text and in fractions.
#[derive(Debug)]
struct Given {
    text: String,
    numbers: BTreeMap<&'static str, Fraction>,
    /// Times of F, I and W of each stage, if they are given like this.
    stages: BTreeMap<&'static str, Vec<Fraction>>,
    layers: Option<Vec<usize>>,
    straggler: Option<(u32, String)>,
    lengths: Vec<u32>,
}

/// A number of up to `decimals` decimals between 0 and 1, or more with `whole` before the point.
fn number(dice: &mut Dice, whole: usize, decimals: usize) -> String {
    let digits = dice.below(decimals + 1);
    let below = 10_usize.pow(digits as u32);
    match digits {
        0 => format!("{}", 1 + dice.below(whole.max(1))),
        _ => format!("{}.{:0digits$}", dice.below(whole.max(1)), 1 + dice.below(below - 1)),
    }
}

impl Given {
    fn random(dice: &mut Dice, stages: usize, slices: usize, devices: u32) -> Given {
        let (mut text, mut numbers, mut of_stages) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        // two values with one slash would be a fraction
        let per_stage = stages > 2 && dice.below(3) == 0;
        for key in ["F", "I", "W"] {
            let count = if per_stage { stages } else { 1 };
            let times: Vec<String> = (0..count).map(|_| number(dice, 20, 3)).collect();
            text.push(format!("{key}={}", times.join("/")));
            let times: Vec<Fraction> = times.iter().map(|time| Fraction::read(time)).collect();
            if per_stage {
                of_stages.insert(key, times)
            } else {
                numbers.insert(key, times[0]);
                None
            };
        }
        for (key, whole) in [
            ("comm", 3),
            ("copy", 3),
            ("S", 3),
            ("S_rest", 3),
            ("IF", 2),
            ("IB", 2),
            ("attention", 0),
            ("recompute", 0),
        ] {
            let value = number(dice, whole, 2);
            text.push(format!("{key}={value}"));
            numbers.insert(key, Fraction::read(&value));
        }
        let layers = (!per_stage && dice.below(2) == 0).then(|| (0..stages).map(|_| 1 + dice.below(5)).collect());
        let straggler = (dice.below(2) == 0).then(|| (dice.below(devices as usize) as u32, number(dice, 3, 2)));
        let lengths = (0..slices).map(|_| 1 + dice.below(4) as u32).collect();
        Given { text: text.join(","), numbers, stages: of_stages, layers, straggler, lengths }
    }

    fn costs(&self) -> Costs {
        let costs: GivenCosts = self.text.parse().unwrap();
        let slow: Slow = self.straggler.iter().map(|(device, factor)| (*device, factor.parse().unwrap())).collect();
        Costs::Given { costs: Box::new(costs.with_layers(self.layers.clone())), slow }
    }

    /// The stage's share of what is given for a device.
    fn share(&self, resolved: &Resolved, stage: usize) -> Fraction {
        let placement = &resolved.graph.schedule().placement;
        let devices = u64::from(placement.devices());
        match &self.layers {
            None => Fraction::new(devices.into(), placement.stages().into()),
            Some(layers) => {
                Fraction::of(layers[stage] as u64 * devices).over(Fraction::of(layers.iter().sum::<usize>() as u64))
            }
        }
    }

    /// The share of a slice: its length l of t tokens, or with the share a of attention that grows with the P tokens before it,
    /// (1 - a) l / t + a l (l + 2 P) / t^2.
    fn slice(&self, slice: usize, attention: Fraction) -> Fraction {
        if self.lengths.is_empty() {
            return Fraction::of(1);
        }
        let sum = |lengths: &[u32]| Fraction::of(lengths.iter().map(|&length| u64::from(length)).sum());
        let (length, total) = (Fraction::of(self.lengths[slice].into()), sum(&self.lengths));
        let before = sum(&self.lengths[..slice]);
        let plain = Fraction::of(1).minus(attention).times(length).over(total);
        let grown = length.times(length.plus(before).plus(before)).over(total.times(total));
        plain.plus(attention.times(grown))
    }

    fn duration(&self, resolved: &Resolved, op: Op) -> Fraction {
        let (stage, slice) = (op.stage() as usize, op.slice_number());
        let device = resolved.graph.schedule().placement.device_of(op);
        let slower = match &self.straggler {
            Some((slow, factor)) if *slow == device => Fraction::read(factor),
            _ => Fraction::of(1),
        };
        let whole = |key: &str| match self.stages.get(key) {
            Some(times) => times[stage],
            None => self.numbers[key].times(self.share(resolved, stage)),
        };
        let attention = self.numbers["attention"];
        let forward = || whole("F").times(slower).times(self.slice(slice, attention));
        let input = || whole("I").times(slower).times(self.slice(slice, attention));
        let weights = || whole("W").times(slower).times(self.slice(slice, Fraction::ZERO));
        let last = resolved.graph.schedule().microbatches;
        match op.kind() {
            Kind::F => forward(),
            Kind::I => input(),
            Kind::W => weights(),
            Kind::B => input().plus(weights()),
            Kind::R => forward().times(self.numbers["recompute"]),
            Kind::O | Kind::L if self.stages.is_empty() => {
                self.numbers["copy"].times(self.share(resolved, stage)).times(self.slice(slice, Fraction::ZERO))
            }
            Kind::O | Kind::L => {
                let placement = &resolved.graph.schedule().placement;
                self.numbers["copy"].over(Fraction::of(placement.chunks().into()))
            }
            Kind::S if op.microbatch() == 0 => self.numbers["S"],
            Kind::S if op.microbatch() == last => self.numbers["S_rest"],
            Kind::S => self.numbers["S"].plus(self.numbers["S_rest"]),
            Kind::IF => self.numbers["IF"],
            Kind::IB => self.numbers["IB"],
        }
    }

    /// The makespan of the order of `resolved`: every device runs its ops in order, each as soon as its inputs have arrived.
    fn makespan(&self, resolved: &Resolved, durations: &BTreeMap<Op, Fraction>) -> Fraction {
        let schedule = resolved.graph.schedule();
        let (placement, last) = (&schedule.placement, schedule.placement.stages() - 1);
        type Key = (Kind, u32, u32, usize);
        let mut ends: BTreeMap<Key, (Fraction, u32)> = BTreeMap::new();
        let key = |op: Op, stage: u32, kind: Kind| (kind, stage, op.microbatch(), op.slice_number());
        let gradient = |op: Op, stage: u32| [key(op, stage, Kind::B), key(op, stage, Kind::I)];
        let mut next = vec![0; placement.devices() as usize];
        let mut free = vec![Fraction::ZERO; placement.devices() as usize];
        loop {
            let mut moved = false;
            for device in 0..placement.devices() {
                let place = device as usize;
                while let Some(&op) = schedule.program(device).get(next[place]) {
                    let stage = op.stage();
                    let needed: Vec<Vec<Key>> = match op.kind() {
                        Kind::F if stage == 0 => vec![],
                        Kind::F => vec![vec![key(op, stage - 1, Kind::F)]],
                        Kind::W => vec![vec![key(op, stage, Kind::I)]],
                        _ if op.kind() == Kind::R || stage == last => vec![vec![key(op, stage, Kind::F)]],
                        _ => vec![vec![key(op, stage, Kind::F)], gradient(op, stage + 1).to_vec()],
                    };
                    let found: Option<Vec<(Fraction, u32)>> =
                        needed.iter().map(|any| any.iter().find_map(|key| ends.get(key).copied())).collect();
                    let Some(found) = found else { break };
                    let arrival = |(end, from): (Fraction, u32)| {
                        if from == device { end } else { end.plus(self.numbers["comm"]) }
                    };
                    let start = found.into_iter().map(arrival).fold(free[place], Fraction::max);
                    free[place] = start.plus(durations[&alike(op)]);
                    ends.insert(key(op, stage, op.kind()), (free[place], device));
                    next[place] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        assert!((0..placement.devices()).all(|d| next[d as usize] == schedule.program(d).len()), "{}", schedule.name);
        free.into_iter().fold(Fraction::ZERO, Fraction::max)
    }
}

/// The op that stands for all that last as long: that of the first micro-batch, but of a vocabulary every one.
fn alike(op: Op) -> Op {
    let first = Op::new(op.kind(), op.stage(), 0).in_direction(op.direction());
    match op.slice() {
        _ if op.kind() == Kind::S => op,
        Some(slice) => first.on_slice(slice),
        None => first,
    }
}

/// Schedules with recomputes, slices, copies, a shared vocabulary and several stages per device; slices; and whether devices alone decide
/// when ops start.
const SCHEDULES: [(&str, u32, usize, bool); 11] = [
    ("1f1b", 1, 0, true),
    ("gpipe", 1, 0, true),
    ("1f1b-recompute", 1, 0, true),
    ("interleaved-1f1b", 2, 0, true),
    ("zb-h1", 1, 0, true),
    ("1f1b-v", 2, 0, true),
    ("chimera", 1, 0, true),
    ("seq1f1b", 1, 3, true),
    ("terapipe", 1, 4, true),
    ("1f1b-offload", 1, 0, false),
    ("1f1b-vocab", 1, 0, false),
];

#[test]
fn durations_and_makespans_are_exact() {
    let dice = &mut Dice(20);
    let (mut ops, mut makespans) = (0, 0);
    for case in 0..330 {
        let (name, chunks, slices, alone) = SCHEDULES[case % SCHEDULES.len()];
        let devices = 2 + 2 * dice.below(2) as u32;
        let given = Given::random(dice, (devices * chunks) as usize, slices, devices);
        let selection = Selection {
            chunks: (chunks > 1 && name != "1f1b-v").then_some(chunks),
            slices: (slices > 0).then(|| Slices::of_lengths(&given.lengths).unwrap()),
            ..Selection::new(devices, 4)
        };
        let name = if slices > 0 { format!("{name}:slices={slices}") } else { name.to_string() };
        let resolved =
            selection.resolve(&name, &given.costs()).unwrap_or_else(|error| panic!("{name} {given:?} {error}"));
        let units = |ticks: u64| Fraction::new(ticks.into(), resolved.costs.units.ticks_per_unit as i128);
        let microbatches = resolved.graph.schedule().microbatches;
        let mut durations: BTreeMap<Op, Fraction> = BTreeMap::new();
        for &op in resolved.graph.schedule().ops() {
            if durations.contains_key(&alike(op)) {
                continue;
            }
            let of_kind = resolved.costs.of(op).duration;
            let found = match op.kind() {
                Kind::S => resolved.costs.extras.vocabulary.duration(op, microbatches, of_kind),
                _ => of_kind,
            };
            let expected = given.duration(&resolved, op);
            assert_eq!(units(found), expected, "case {case}: {name} {op} {given:?}");
            durations.insert(alike(op), expected);
            ops += 1;
        }
        if alone {
            let found = units(OpTimes::swept(&resolved.graph, &resolved.costs).makespan());
            assert_eq!(found, given.makespan(&resolved, &durations), "case {case}: {name} {given:?}");
            makespans += 1;
        }
    }
    assert!(ops > 4_000 && makespans > 200, "{ops} ops, {makespans} makespans");
}

/// A share with more digits than a clock holds is off by less than a billionth of its op.
#[test]
fn long_shares_are_rounded_finely() {
    let dice = &mut Dice(21);
    for case in 0..200 {
        let (numerator, denominator) = (1 + dice.below(6) as u64, 7 + dice.below(90) as u64);
        let forward = number(dice, 20, 3);
        let of = |recompute: &str, attention: &str| {
            let text = format!("F={forward},I=1,W=1,recompute={recompute},attention={attention}");
            let costs = Costs::given(text.parse().unwrap());
            let selection = Selection::new(2, 4);
            let unit = |schedule: &str, op: Op| {
                let resolved = selection.resolve(schedule, &costs).unwrap();
                resolved.costs.of(op).duration as f64 / resolved.costs.units.ticks_per_unit
            };
            let slice = Op::of_unit(Kind::F, 0, 1, 2);
            [unit("1f1b-recompute", Op::new(Kind::R, 0, 0)), unit("terapipe:slices=2", slice)]
        };
        let share = format!("{numerator}/{denominator}");
        let (time, share_of) = (forward.parse::<f64>().unwrap(), numerator as f64 / denominator as f64);
        let [again, slice] = of(&share, &share);
        assert!((again / (time * share_of) - 1.0).abs() < 1e-7, "case {case}: {forward} {share} {again}");
        let expected = time * ((1.0 - share_of) / 2.0 + share_of * 0.75);
        assert!((slice / expected - 1.0).abs() < 1e-9, "case {case}: {forward} {share} {slice} {expected}");
    }
}

/// The embedding, the head and further tokens cost what is given, to the last digit.
#[test]
fn pieces_of_stages_are_exact() {
    let dice = &mut Dice(22);
    for case in 0..200 {
        let pieces = ["embedding", "mtp", "loss"].map(|key| (key, number(dice, 2, 9)));
        let of = |key: &str| Fraction::read(&pieces.iter().find(|(name, _)| *name == key).unwrap().1);
        let forward = number(dice, 9, 1);
        let text = pieces.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        let layers = [2, 1].map(|least| least + dice.below(3));
        let layout = format!("E{}|{}mL", "t".repeat(layers[0]), "t".repeat(layers[1]));
        let costs: GivenCosts = format!("F={forward},{text}").parse().unwrap();
        let costs = Costs::given(costs).with_layout(Some(StageLayout::parse(&layout).unwrap()));
        let resolved = Selection::new(2, 2).resolve("1f1b", &costs).unwrap_or_else(|e| panic!("{layout} {text}: {e}"));
        let weights = [
            Fraction::of(layers[0] as u64).plus(of("embedding")),
            Fraction::of(layers[1] as u64).plus(of("mtp")).plus(of("loss")),
        ];
        let all = weights[0].plus(weights[1]);
        for (stage, weight) in weights.into_iter().enumerate() {
            let expected = Fraction::read(&forward).times(Fraction::of(2)).times(weight).over(all);
            let found = resolved.costs.of(Op::new(Kind::F, stage as u32, 0)).duration;
            let found = Fraction::new(found.into(), resolved.costs.units.ticks_per_unit as i128);
            assert_eq!(found, expected, "case {case}: {layout} F={forward},{text}");
        }
    }
}
