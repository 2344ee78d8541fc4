//! Costs given on the command line: `F=1,I=1,W=1,B=2,comm=0.1,keep=1`, per device, exact.

use super::{CostError, CostTable, OpTime, Summary};
use crate::op::Kind;
use crate::placement::Placement;
use std::collections::BTreeMap;
use std::str::FromStr;

/// A decimal number, exact: `digits / 10^scale`, not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: u128,
    scale: u32,
}

/// Most digits after the point, and before it.
const MAX_DIGITS: u32 = 12;

impl Decimal {
    /// The whole number `n`.
    pub const fn whole(n: u32) -> Decimal {
        Decimal { digits: n as u128, scale: 0 }
    }

    /// The nearest floating-point number.
    pub fn to_f64(self) -> f64 {
        self.digits as f64 / 10_f64.powi(self.scale as i32)
    }

    /// The sum, exact.
    pub fn plus(self, other: Decimal) -> Decimal {
        let scale = self.scale.max(other.scale);
        Decimal { digits: self.scaled(scale) + other.scaled(scale), scale }
    }

    /// The number times 10^`scale`, which must be its scale or more.
    fn scaled(self, scale: u32) -> u128 {
        self.digits * 10_u128.pow(scale - self.scale)
    }
}

impl FromStr for Decimal {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Decimal, CostError> {
        let fail = |what: &str| Err(CostError(format!("expected a number such as 1.25, found '{text}': {what}")));
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => {
                (mantissa, exponent.parse::<i32>().map_err(|_| CostError(format!("'{text}' has no whole exponent")))?)
            }
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if mantissa.starts_with('-') {
            return fail("costs and factors are not negative");
        }
        let digits = format!("{whole}{fraction}");
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) || exponent.abs() > 30 {
            return fail("only digits, a point and an exponent are understood");
        }
        let digits = digits.trim_start_matches('0');
        let shift = fraction.len() as i32 - exponent; // value = digits / 10^shift
        let (trimmed, shift) = match digits.trim_end_matches('0') {
            "" => ("0", 0),
            trimmed => (trimmed, shift - (digits.len() - trimmed.len()) as i32),
        };
        if shift > MAX_DIGITS as i32 || trimmed.len() as i32 - shift > MAX_DIGITS as i32 {
            return fail("it has more than 12 digits before or after the point");
        }
        let digits: u128 = trimmed.parse().map_err(|_| CostError(format!("'{text}' is too long")))?;
        if shift >= 0 {
            Ok(Decimal { digits, scale: shift as u32 })
        } else {
            Ok(Decimal { digits: digits * 10_u128.pow(shift.unsigned_abs()), scale: 0 })
        }
    }
}

/// Devices that run slower than given, by factor: `2=1.3`.
pub type Slow = BTreeMap<u32, Decimal>;

/// Costs per device, from `F=18.5,I=18.1,W=9.3,B=27.4,comm=0.6,keep=0.4`: what a forward, the halves of a backward and a whole
/// backward of its whole share of layers last, the latency between devices, and the share of an activation that lives from I to W.
/// In any order; F, I, W and keep are 1 unless given, B is I + W, comm 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCosts {
    /// F, I, W, and B (I + W unless given).
    durations: [Decimal; 4],
    comm: Decimal,
    keep: Decimal,
}

impl Default for GivenCosts {
    /// Unit costs: F = I = W = 1, B = 2, comm = 0, keep = 1.
    fn default() -> GivenCosts {
        let one = Decimal::whole(1);
        GivenCosts { durations: [one, one, one, Decimal::whole(2)], comm: Decimal::whole(0), keep: one }
    }
}

impl FromStr for GivenCosts {
    type Err = CostError;

    fn from_str(text: &str) -> Result<GivenCosts, CostError> {
        let mut given: BTreeMap<&str, Decimal> = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| CostError(format!("expected key=number, as in F=1,I=1,W=1, found '{pair}'")))?;
            let key = key.trim();
            if !["F", "I", "W", "B", "comm", "keep"].contains(&key) {
                return Err(CostError(format!("no cost is called '{key}'; known: F, I, W, B, comm, keep")));
            }
            if given.insert(key, value.trim().parse()?).is_some() {
                return Err(CostError(format!("'{key}' is given twice")));
            }
        }
        let costs = GivenCosts::default();
        let get = |key: &str, default: Decimal| given.get(key).copied().unwrap_or(default);
        let [f, i, w, _] = costs.durations;
        let (f, i, w) = (get("F", f), get("I", i), get("W", w));
        let keep = get("keep", costs.keep);
        if keep.to_f64() > 1.0 {
            return Err(CostError(format!("keep is a share between 0 and 1, found {}", keep.to_f64())));
        }
        Ok(GivenCosts { durations: [f, i, w, get("B", i.plus(w))], comm: get("comm", costs.comm), keep })
    }
}

impl GivenCosts {
    /// The table for `placement`. The tick is chosen such that every cost divided by v is a whole number of ticks.
    ///
    /// # Errors
    /// A device of `slow` that does not exist, or costs so large that `microbatches` of them overflow.
    pub fn table(&self, placement: &Placement, microbatches: u32, slow: &Slow) -> Result<CostTable, CostError> {
        if let Some(device) = slow.keys().find(|&&device| device >= placement.devices()) {
            return Err(CostError(format!(
                "--slow names device {device}, but there are devices 0 to {}",
                placement.devices() - 1
            )));
        }
        let all = self.durations.iter().chain([&self.comm]);
        let cost_scale = all.map(|cost| cost.scale).max().unwrap_or(0);
        let slow_scale = slow.values().map(|factor| factor.scale).max().unwrap_or(0);
        let scale = cost_scale + slow_scale;
        let v = u128::from(placement.chunks());
        let ticks = |cost: Decimal, device: u32| -> u128 {
            let factor = slow.get(&device).map_or(10_u128.pow(slow_scale), |factor| factor.scaled(slow_scale));
            cost.scaled(cost_scale).saturating_mul(factor)
        };
        let comm = self.comm.scaled(cost_scale).saturating_mul(10_u128.pow(slow_scale) * v);
        let slowest =
            (0..placement.devices()).flat_map(|d| self.durations.map(|cost| ticks(cost, d))).max().unwrap_or(0);
        let ops = 4 * u128::from(placement.stages()) * u128::from(microbatches);
        if slowest.saturating_add(comm).saturating_mul(ops) >= 1 << 63 {
            return Err(CostError(
                "these costs times so many ops overflow the clock; give smaller or rounder numbers".to_string(),
            ));
        }
        let units = (10_f64.powi(scale as i32) * f64::from(placement.chunks()), "unit", 1_000_000_000);
        Ok(CostTable::new(placement, units, self.summary(), |op| OpTime {
            duration: ticks(self.durations[op.kind() as usize], placement.device_of(op)) as u64,
            after: 0,
            arrival: comm as u64,
        }))
    }

    /// The costs as numbers.
    pub fn summary(&self) -> Summary {
        let of = |kind: Kind| self.durations[kind as usize].to_f64();
        let (comm, keep) = (self.comm.to_f64(), self.keep.to_f64());
        Summary { F: of(Kind::F), I: of(Kind::I), W: of(Kind::W), B: of(Kind::B), comm, keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_and_bounded() {
        for (text, digits, scale) in [
            ("1", 1, 0),
            ("0.1", 1, 1),
            ("18.522", 18522, 3),
            ("1e3", 1000, 0),
            ("25e-2", 25, 2),
            ("0", 0, 0),
            ("1.50", 15, 1),
        ] {
            assert_eq!(text.parse::<Decimal>().unwrap(), Decimal { digits, scale }, "{text}");
        }
        for text in
            ["", ".", "-1", "NaN", "inf", "1e99", "1e-99", "1.0000000000001", "9999999999999", "0x1", "1,5", "é"]
        {
            assert!(text.parse::<Decimal>().is_err(), "{text}");
        }
    }

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
}
