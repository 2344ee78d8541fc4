//! Costs given on the command line: `F=1,I=1,W=1,B=2,comm=0.1,keep=1`, exact to the tick.

use super::share::Shares;
use super::{CostError, CostTable, Decimal, OpTime, Per, Summary, TimeUnit};
use crate::op::Kind;
use crate::placement::Placement;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Devices that run slower than given, by factor: `2=1.3`.
pub type Slow = BTreeMap<u32, Decimal>;

/// Costs from `F=18.5,I=18.1,W=9.3,B=27.4,comm=0.6,keep=0.4`: what a forward, the halves of a backward and a whole
/// backward of a device's whole share of layers last, the latency between devices, and the share of an activation that lives from
/// I to W. In any order. Where B is given I and W are its halves, or one of them the rest of it; else B is I + W, and what is not
/// given of F, I and W lasts as long as the others do. keep is 1 unless given, comm 0. Times have no unit, or all of them one:
/// `F=18.5ms,comm=300us`; the largest of these is that of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCosts {
    /// F, I, W, and B (I + W unless given).
    durations: [Decimal; 4],
    comm: Decimal,
    keep: Decimal,
    unit: Option<TimeUnit>,
    /// What stands for those of F, I and W that are not given, in words.
    assumed: Vec<&'static str>,
    per: Per,
    layers: Option<Vec<usize>>,
}

impl Default for GivenCosts {
    /// Unit costs: F = I = W = 1, B = 2, comm = 0, keep = 1.
    fn default() -> GivenCosts {
        let one = Decimal::whole(1);
        GivenCosts {
            durations: [one, one, one, Decimal::whole(2)],
            comm: Decimal::whole(0),
            keep: one,
            unit: None,
            assumed: Vec::new(),
            per: Per::Device,
            layers: None,
        }
    }
}

impl FromStr for GivenCosts {
    type Err = CostError;

    fn from_str(text: &str) -> Result<GivenCosts, CostError> {
        let mut given: BTreeMap<&str, (Decimal, Option<TimeUnit>)> = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| CostError(format!("expected key=number, as in F=1,I=1,W=1, found '{pair}'")))?;
            let key = key.trim();
            if !["F", "I", "W", "B", "comm", "keep"].contains(&key) {
                return Err(CostError(format!("no cost is called '{key}'; known: F, I, W, B, comm, keep")));
            }
            if given.insert(key, TimeUnit::read(value.trim())?).is_some() {
                return Err(CostError(format!("'{key}' is given twice")));
            }
        }
        if let Some((_, Some(_))) = given.get("keep") {
            return Err(CostError("keep is a share, not a time; leave its unit out".to_string()));
        }
        let unit = unit_of_all(&given)?;
        let costs = GivenCosts::default();
        let get = |key: &str, default: Decimal| match (given.get(key), unit) {
            (Some((number, Some(own))), Some(unit)) => unit.of(*number, *own),
            (found, _) => found.map_or(default, |(number, _)| *number),
        };
        let known = ["F", "I", "W", "B"].map(|key| given.contains_key(key).then(|| get(key, costs.keep)));
        let Times { durations, mut assumed } = Times::completed(known)?;
        if unit.is_none() && known.iter().all(Option::is_none) {
            assumed.clear(); // unit costs are what there is without --costs, too
        }
        let keep = get("keep", costs.keep);
        if keep.to_f64() > 1.0 {
            return Err(CostError(format!("keep is a share between 0 and 1, found {}", keep.to_f64())));
        }
        Ok(GivenCosts { durations, comm: get("comm", costs.comm), keep, unit, assumed, ..costs })
    }
}

/// ` (assumed: I = W = B/2)`; nothing where nothing is.
pub fn assumed_in_words(rules: &[&str]) -> String {
    if rules.is_empty() { String::new() } else { format!(" (assumed: {})", rules.join(", ")) }
}

/// F, I, W and B, where not all of them may be given.
struct Times {
    durations: [Decimal; 4],
    assumed: Vec<&'static str>,
}

impl Times {
    /// What is given of F, I, W and B, completed: one rule for each set of what is not.
    fn completed([f, i, w, b]: [Option<Decimal>; 4]) -> Result<Times, CostError> {
        let one = Decimal::whole(1);
        let rest = |half: Decimal, name: &str, b: Decimal| {
            b.minus(half).ok_or_else(|| {
                let (b, half) = (b.to_f64(), half.to_f64());
                CostError(format!("expected B, a whole backward, to last as long as {name} or longer, found B={b} and {name}={half}; raise B, or give I and W"))
            })
        };
        let (i, w, halves) = match (i, w, b) {
            (Some(i), Some(w), _) => (i, w, None),
            (Some(i), None, Some(b)) => (i, rest(i, "I", b)?, Some("W = B - I")),
            (None, Some(w), Some(b)) => (rest(w, "W", b)?, w, Some("I = B - W")),
            (None, None, Some(b)) => (b.half(), b.half(), Some("I = W = B/2")),
            (Some(i), None, None) => (i, i, Some("W = I")),
            (None, Some(w), None) => (w, w, Some("I = W")),
            (None, None, None) => match f {
                Some(f) => (f, f, Some("I = W = F")),
                None => (one, one, Some("F = I = W = 1")),
            },
        };
        let forward = (f.is_none() && halves != Some("F = I = W = 1")).then_some("F = I");
        let durations = [f.unwrap_or(i), i, w, b.unwrap_or_else(|| i.plus(w))];
        Ok(Times { durations, assumed: halves.into_iter().chain(forward).collect() })
    }
}

/// The largest unit of all times; none where none has one. 0 is as much in any unit.
fn unit_of_all(given: &BTreeMap<&str, (Decimal, Option<TimeUnit>)>) -> Result<Option<TimeUnit>, CostError> {
    let times = || given.iter().filter(|(key, (number, _))| **key != "keep" && number.to_f64() > 0.0);
    let unit = given.values().filter_map(|(_, unit)| *unit).max();
    match (unit, times().find(|(_, (_, unit))| unit.is_none())) {
        (Some(unit), Some((key, (number, _)))) => Err(CostError(format!(
            "expected a unit after every time or after none, found {key}={} without one; write {key}={0}{} if that is meant",
            number.to_f64(),
            unit.name()
        ))),
        _ => Ok(unit),
    }
}

impl GivenCosts {
    /// The same costs, of something else than a device's share.
    pub fn per(self, per: Per) -> GivenCosts {
        GivenCosts { per, ..self }
    }

    /// The same of a model with so many layers in each stage, or in all where it is one number. Where costs are of a device or
    /// a stage, they are those of an average one.
    pub fn with_layers(self, layers: Option<Vec<usize>>) -> GivenCosts {
        GivenCosts { layers, ..self }
    }

    /// The unit that times have, where they have one.
    pub fn unit(&self) -> Option<TimeUnit> {
        self.unit
    }

    /// What the costs are of, in one line, as they were given.
    pub fn described(&self) -> String {
        let unit = self.unit.map_or_else(String::new, |unit| format!(" in {}", unit.name()));
        let [f, i, w, b] = self.durations.map(Decimal::to_f64);
        let (comm, keep, of) = (self.comm.to_f64(), self.keep.to_f64(), self.per.name());
        let assumed = assumed_in_words(&self.assumed);
        format!("costs per {of}{unit}: F = {f}, I = {i}, W = {w}, B = {b}, comm = {comm}, keep = {keep}{assumed}")
    }

    /// What stands for costs that were not given, and what all of them are then; `None` where nothing is assumed.
    pub fn assumption(&self) -> Option<String> {
        let [f, i, w, b] = self.durations.map(Decimal::to_f64);
        let (rules, unit) = (self.assumed.join(", "), self.unit.map_or("", TimeUnit::name));
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        (!rules.is_empty()).then(|| {
            format!("costs: --costs leaves some out, so {rules} is assumed: F = {f}, I = {i}, W = {w}, B = {b}{unit}")
        })
    }

    /// What stands for those of F, I and W that are not given: `I = W = B/2`.
    pub fn assumed(&self) -> &[&'static str] {
        &self.assumed
    }

    /// The table for `placement`. The tick is chosen such that every stage's share of a cost is a whole number of ticks; what has
    /// more than 12 decimals is rounded to a tick that is small beside the longest op.
    ///
    /// # Errors
    /// A device of `slow` that does not exist, layers that do not fit the stages, or costs so large that `microbatches` of them
    /// overflow.
    pub fn table(&self, placement: &Placement, microbatches: u32, slow: &Slow) -> Result<CostTable, CostError> {
        if let Some(device) = slow.keys().find(|&&device| device >= placement.devices()) {
            return Err(CostError(format!(
                "--straggler names device {device}, but there are devices 0 to {}",
                placement.devices() - 1
            )));
        }
        let one = Decimal::whole(1);
        let of = |kind: usize, device: u32| self.durations[kind].times(*slow.get(&device).unwrap_or(&one));
        let all: Vec<Decimal> =
            (0..placement.devices()).flat_map(|device| [0, 1, 2, 3].map(|kind| of(kind, device))).collect();
        let ops = 4 * u128::from(placement.stages()) * u128::from(microbatches);
        let shares = Shares::new(placement, self.per, self.layers.as_deref())?;
        let scale = self.scale(slow, |scale| {
            let longest =
                all.iter().map(|cost| cost.times_ten_to(scale)).try_fold(0, |most, cost| Some(cost?.max(most)))?;
            let longest = longest.checked_mul(shares.largest().into())?;
            let comm = self.comm.times_ten_to(scale)?.checked_mul(shares.whole.into())?;
            (longest.checked_add(comm)?.checked_mul(ops)? < 1 << 63).then_some(longest)
        });
        let Some(scale) = scale else {
            return Err(CostError(
                "these costs times so many ops overflow the clock; give smaller or rounder numbers".to_string(),
            ));
        };
        let ticks = |cost: Decimal| cost.times_ten_to(scale).unwrap_or(0) as u64; // it was found to fit
        let units = (
            10_f64.powi(scale as i32) * shares.whole as f64,
            self.unit.map_or("unit", TimeUnit::name),
            self.unit_ns(placement.devices(), microbatches, slow, shares.of_device)?,
        );
        let table = CostTable::new(placement, units, self.of_device(shares.of_device), |op| OpTime {
            duration: ticks(of(op.kind() as usize, placement.device_of(op))) * shares.parts[op.stage() as usize],
            after: 0,
            arrival: ticks(self.comm) * shares.whole,
        });
        Ok(CostTable { assumed: self.assumed.clone(), ..table })
    }

    /// How many of a timeline's nanoseconds a unit is: as many as it has, where it is one of time. Else 10^9, but for steps so
    /// long that they would be beyond what a timeline holds, or so short that little of them would be left; the same for all
    /// placements.
    fn unit_ns(&self, devices: u32, microbatches: u32, slow: &Slow, of_device: f64) -> Result<u64, CostError> {
        const LONGEST: f64 = (1_u64 << 50) as f64;
        const SHORTEST: f64 = 1e9;
        let slowest = slow.values().map(|factor| factor.to_f64()).fold(1.0, f64::max);
        let ops: f64 =
            self.durations.iter().map(|duration| duration.to_f64()).sum::<f64>() * slowest * of_device.min(1e6);
        let messages = 16.0 * self.comm.to_f64();
        let most = (ops + messages) * f64::from(devices) * f64::from(microbatches.max(1));
        if let Some(unit) = self.unit {
            if most * unit.ns() as f64 > 8.0 * LONGEST {
                return Err(CostError(format!(
                    "these costs times so many ops last longer than the 104 days that a timeline holds; give them in less than {}",
                    unit.name()
                )));
            }
            return Ok(unit.ns());
        }
        let mut unit: u64 = 1_000_000_000;
        while unit > 1 && most * unit as f64 > LONGEST {
            unit /= 10;
        }
        while unit < 1_000_000_000_000_000_000 && most > 0.0 && most * (unit as f64) < SHORTEST {
            unit *= 10;
        }
        Ok(unit)
    }

    /// So many decimals a tick has: as many as short numbers need, and more for longer ones as long as ops last less than 10^12
    /// ticks. `longest` says how long ops last in such ticks, `None` where that overflows the clock.
    fn scale(&self, slow: &Slow, longest: impl Fn(u32) -> Option<u128>) -> Option<u32> {
        const FINE: u128 = 1_000_000_000_000;
        let all = || self.durations.iter().chain([&self.comm]);
        let most = |of: &mut dyn Iterator<Item = &Decimal>| of.map(|number| number.scale()).max().unwrap_or(0);
        let short = |number: &&Decimal| number.is_short();
        let exact = most(&mut all().filter(short)) + most(&mut slow.values().filter(short));
        let finest = most(&mut all()) + most(&mut slow.values());
        let fine = |&scale: &u32| longest(scale).is_some_and(|longest| longest < FINE);
        (exact + 1..=finest).rev().find(fine).or_else(|| longest(exact).map(|_| exact))
    }

    /// The costs as numbers, as they were given.
    pub fn summary(&self) -> Summary {
        self.of_device(1.0)
    }

    /// The costs of an average device, which are so many times what is given.
    fn of_device(&self, of_device: f64) -> Summary {
        let of = |kind: Kind| self.durations[kind as usize].to_f64() * of_device;
        let (comm, keep) = (self.comm.to_f64(), self.keep.to_f64());
        Summary { F: of(Kind::F), I: of(Kind::I), W: of(Kind::W), B: of(Kind::B), comm, keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tick_divides_every_cost() {
        let costs: GivenCosts = "F=1,I=1.1,W=0.8,comm=0.1".parse().unwrap();
        let table = costs.table(&Placement::looped("loop", 2, 3), 4, &Slow::new()).unwrap();
        let op = table.of("0B0".parse().unwrap());
        assert_eq!((op.duration, op.arrival, table.ticks_per_unit), (19, 3, 30.0));
        assert!("F=1,F=2".parse::<GivenCosts>().is_err());
        assert!("G=1".parse::<GivenCosts>().is_err());
        assert!("keep=1.5".parse::<GivenCosts>().is_err());
    }

    /// F, I, W, B and what is said of them.
    fn completed(text: &str) -> ([f64; 4], Vec<&'static str>) {
        let costs: GivenCosts = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let Summary { F, I, W, B, .. } = costs.summary();
        ([F, I, W, B], costs.assumed().to_vec())
    }

    #[test]
    fn what_is_not_given_follows_from_what_is() {
        for (text, times, assumed) in [
            ("F=18.5,B=27", [18.5, 13.5, 13.5, 27.0], vec!["I = W = B/2"]),
            ("F=1,B=0.3", [1.0, 0.15, 0.15, 0.3], vec!["I = W = B/2"]),
            ("F=2", [2.0, 2.0, 2.0, 4.0], vec!["I = W = F"]),
            ("B=5", [2.5, 2.5, 2.5, 5.0], vec!["I = W = B/2", "F = I"]),
            ("F=3,B=7,I=4", [3.0, 4.0, 3.0, 7.0], vec!["W = B - I"]),
            ("F=3,B=7,W=2.5", [3.0, 4.5, 2.5, 7.0], vec!["I = B - W"]),
            ("F=3,I=4", [3.0, 4.0, 4.0, 8.0], vec!["W = I"]),
            ("W=4", [4.0, 4.0, 4.0, 8.0], vec!["I = W", "F = I"]),
            ("I=2,W=3", [2.0, 2.0, 3.0, 5.0], vec!["F = I"]),
            ("F=1,I=2,W=3,B=4", [1.0, 2.0, 3.0, 4.0], vec![]),
            ("F=1,I=2,W=3", [1.0, 2.0, 3.0, 5.0], vec![]),
            ("comm=3,keep=0.5", [1.0, 1.0, 1.0, 2.0], vec![]),
            ("comm=3ms", [1.0, 1.0, 1.0, 2.0], vec!["F = I = W = 1"]),
            ("F=2s,B=3000ms", [2.0, 1.5, 1.5, 3.0], vec!["I = W = B/2"]),
        ] {
            assert_eq!(completed(text), (times, assumed), "{text}");
        }
        assert!("F=1,B=3,I=4".parse::<GivenCosts>().is_err_and(|e| e.to_string().contains("B=3 and I=4")));
    }

    /// Halves of an odd number of the smallest decimals are whole ticks: both together last as long as B.
    #[test]
    fn halves_are_exact() {
        for b in ["1", "0.1", "27.000001", "0.000000000001", "4/3", "18.522000000000002"] {
            let costs: GivenCosts = format!("F=1,B={b}").parse().unwrap();
            let table = costs.table(&Placement::zigzag("V", 3, 2), 4, &Slow::new()).unwrap();
            let [i, w, b] = ["0I0", "0W0", "0B0"].map(|op| table.of(op.parse().unwrap()).duration);
            assert!(
                i == w && i > 0 && (i + w).abs_diff(b) <= u64::from(costs.durations[1].scale() > 12),
                "{i} {w} {b}"
            );
        }
    }

    #[test]
    fn long_numbers_are_rounded_to_the_tick() {
        let table = |text: &str, slow: &[(u32, &str)]| {
            let slow: Slow = slow.iter().map(|&(device, factor)| (device, factor.parse().unwrap())).collect();
            text.parse::<GivenCosts>().unwrap().table(&Placement::linear(4), 8, &slow)
        };
        let noisy = table("F=18.522000000000002,I=1e-3,W=5E+2", &[]).unwrap();
        assert_eq!(noisy.ticks_per_unit, table("F=18.522,I=0.001,W=500", &[]).unwrap().ticks_per_unit);
        for (text, slow) in [
            ("F=1.3333333333333333,I=1,W=0.1,comm=2.7755575615628914e-17", "1"),
            ("F=4,I=3,W=0.3", "1.1111111111111112"),
            ("F=1e-5/3", "1/3"),
            ("F=1e14,I=1/3", "2/3"),
        ] {
            let table = table(text, &[(0, slow)]).unwrap_or_else(|e| panic!("{text}: {e}"));
            let (given, slow) = (table.summary, slow.parse::<Decimal>().unwrap().to_f64());
            for (op, cost) in
                [("0F0", given.F * slow), ("1F0", given.F), ("1I0", given.I), ("1W0", given.W), ("0B0", given.B * slow)]
            {
                let found = table.of(op.parse().unwrap()).duration as f64 / table.ticks_per_unit;
                assert!((found - cost).abs() <= 1e-11 * given.B.max(given.F), "{text}: {op} {found}, {cost}");
            }
        }
        for text in [
            "F=999999999999,W=0.000000000001",
            "F=1e15,W=1e-12",
            "F=999999999999999,W=999999999999999,I=999999999999999,comm=1",
        ] {
            let large =
                text.parse::<GivenCosts>().and_then(|costs| costs.table(&Placement::linear(64), 1 << 20, &Slow::new()));
            assert!(
                large.is_err_and(|e| e.to_string().contains("overflow") || e.to_string().contains("digits")),
                "{text}"
            );
        }
    }
}
