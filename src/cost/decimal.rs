//! Exact decimal numbers; excess digits, as scripts print them, are rounded.

use super::error::CostError;
use super::share::wide_gcd;
use std::fmt;
use std::str::FromStr;

/// A non-negative number `digits / 10^scale`, without trailing zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: u128,
    scale: u32,
}

/// Decimals that are always kept.
const DECIMALS: i64 = 12;
/// Significant digits that are always kept, as in a floating-point number.
const SIGNIFICANT: i64 = 15;
const MOST_DECIMALS: i64 = 24;
/// Maximum number of digits before the point.
const MOST_WHOLE: i64 = 15;

impl Decimal {
    /// More decimals than any number has.
    pub(super) const MOST_SCALE: u32 = 64;

    /// Returns the whole number `n`.
    pub const fn whole(n: u32) -> Decimal {
        Decimal { digits: n as u128, scale: 0 }
    }

    fn new(digits: u128, scale: u32) -> Decimal {
        let mut number = Decimal { digits, scale };
        while number.scale > 0 && number.digits.is_multiple_of(10) {
            number = Decimal { digits: number.digits / 10, scale: number.scale - 1 };
        }
        number
    }

    /// Returns the nearest floating-point number.
    pub fn to_f64(self) -> f64 {
        format!("{}e-{}", self.digits, self.scale).parse().unwrap_or(f64::INFINITY)
    }

    /// Returns the number of decimals.
    pub fn scale(self) -> u32 {
        self.scale
    }

    /// Returns whether a person may have written every digit; a longer number was computed and may be rounded to the tick.
    pub fn is_short(self) -> bool {
        i64::from(self.scale) <= DECIMALS
    }

    /// Returns the number times 10^`scale`, rounded; `None` on overflow.
    pub fn times_ten_to(self, scale: u32) -> Option<u128> {
        match self.scale.checked_sub(scale) {
            None | Some(0) => self.digits.checked_mul(10_u128.checked_pow(scale - self.scale)?),
            Some(less) => Some(10_u128.checked_pow(less).map_or(0, |unit| (self.digits + unit / 2) / unit)),
        }
    }

    /// Returns the number over 10^`power`.
    pub(super) fn over_ten_to(self, power: u32) -> Decimal {
        Decimal::new(self.digits, self.scale + power)
    }

    /// Returns the sum, with as many decimals as fit.
    pub fn plus(self, other: Decimal) -> Decimal {
        let sum = |scale: u32| {
            let digits = self.times_ten_to(scale)?.checked_add(other.times_ten_to(scale)?)?;
            Some(Decimal::new(digits, scale))
        };
        (0..=self.scale.max(other.scale)).rev().find_map(sum).unwrap_or(self)
    }

    /// Returns the difference, with as many decimals as fit; `None` if it is negative.
    pub fn minus(self, other: Decimal) -> Option<Decimal> {
        let difference = |scale: u32| Some((self.times_ten_to(scale)?, other.times_ten_to(scale)?, scale));
        let (digits, less, scale) = (0..=self.scale.max(other.scale)).rev().find_map(difference)?;
        Some(Decimal::new(digits.checked_sub(less)?, scale))
    }

    /// Returns half the number.
    pub fn half(self) -> Decimal {
        self.times(Decimal { digits: 5, scale: 1 })
    }

    /// Returns the product, with as many decimals as fit.
    pub fn times(self, other: Decimal) -> Decimal {
        let product = |a: Decimal, b: Decimal| Some(Decimal::new(a.digits.checked_mul(b.digits)?, a.scale + b.scale));
        product(self, other).or_else(|| product(self.shortened(), other.shortened())).unwrap_or(self)
    }

    /// Returns this share of `whole`, rounded. It is exact if `whole` is a multiple of the share's denominator.
    pub fn share_of(self, whole: u64) -> u64 {
        let share = if self.digits.checked_mul(whole.into()).is_some() { self } else { self.shortened() };
        let unit = 10_u128.pow(share.scale);
        ((share.digits.saturating_mul(whole.into()) + unit / 2) / unit) as u64
    }

    /// Returns into how many parts `whole` has to be cut for this share of it to be a whole number of them.
    pub fn share_parts(self, whole: u64) -> u128 {
        self.parts() / wide_gcd(self.parts(), whole.into())
    }

    /// Returns the denominator of the number in lowest terms.
    pub(super) fn parts(self) -> u128 {
        let unit = 10_u128.pow(self.scale);
        unit / wide_gcd(unit, self.digits)
    }

    /// Returns the numerator of the number in lowest terms.
    pub(super) fn numerator(self) -> u128 {
        self.digits / wide_gcd(10_u128.pow(self.scale), self.digits)
    }

    /// Returns the number rounded to 18 significant digits.
    fn shortened(self) -> Decimal {
        let surplus = (self.digits.max(1).ilog10() + 1).saturating_sub(18).min(self.scale);
        let scale = self.scale - surplus;
        Decimal::new(self.times_ten_to(scale).unwrap_or(self.digits), scale)
    }

    /// Returns `digits / 10^shift`, rounded, or what is wrong with it.
    fn rounded(digits: &str, shift: i64) -> Result<Decimal, &'static str> {
        let digits = digits.trim_start_matches('0');
        let trimmed = digits.trim_end_matches('0');
        if trimmed.is_empty() {
            return Ok(Decimal::whole(0));
        }
        let shift = shift.saturating_sub((digits.len() - trimmed.len()) as i64);
        let magnitude = (trimmed.len() as i64).saturating_sub(shift);
        if magnitude > MOST_WHOLE {
            return Err("it has more than 15 digits before the point; give a larger unit");
        }
        let decimals = SIGNIFICANT.saturating_sub(magnitude).clamp(DECIMALS, MOST_DECIMALS);
        let kept = magnitude + decimals;
        if kept < 0 {
            return Err("it is below 10^-24; give 0 or a smaller unit");
        }
        let number = |text: &str| text.parse::<u128>().unwrap_or(0); // at most 27 digits
        let number = match trimmed.get(kept as usize..) {
            None | Some("") if shift < 0 => Decimal::new(number(trimmed) * 10_u128.pow(shift.unsigned_abs() as u32), 0),
            None | Some("") => Decimal::new(number(trimmed), shift as u32),
            Some(rest) => {
                let up = u128::from(rest.as_bytes()[0] >= b'5');
                Decimal::new(number(&trimmed[..kept as usize]) + up, decimals as u32)
            }
        };
        if number.digits == 0 { Err("it is below 10^-24; give 0 or a smaller unit") } else { Ok(number) }
    }

    /// Parses a number with an optional point and exponent.
    fn plain(text: &str) -> Result<Decimal, &'static str> {
        const EXPECTED: &str = "use only digits, a point, an exponent and one /";
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| EXPECTED)?),
            None => (text, 0),
        };
        let unsigned = mantissa.strip_prefix(['-', '+']).unwrap_or(mantissa);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let digits = format!("{whole}{fraction}");
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(EXPECTED);
        }
        if mantissa.starts_with('-') && digits.bytes().any(|b| b != b'0') {
            return Err("costs, times and factors must not be negative");
        }
        Decimal::rounded(&digits, fraction.len() as i64 - i64::from(exponent))
    }

    /// Returns the quotient, rounded.
    fn over(self, other: Decimal) -> Result<Decimal, &'static str> {
        if other.digits == 0 {
            return Err("division by 0");
        }
        let more = 37 - self.digits.max(1).ilog10();
        let quotient = self.digits * 10_u128.pow(more) / other.digits;
        Decimal::rounded(&quotient.to_string(), i64::from(self.scale) + i64::from(more) - i64::from(other.scale))
    }
}

/// All digits, as they are parsed.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:0>width$}", self.digits, width = self.scale as usize + 1);
        let (whole, rest) = digits.split_at(digits.len() - self.scale as usize);
        if rest.is_empty() { f.write_str(whole) } else { write!(f, "{whole}.{rest}") }
    }
}

impl FromStr for Decimal {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Decimal, CostError> {
        let found = match text.split_once('/') {
            Some((a, b)) => Decimal::plain(a).and_then(|a| a.over(Decimal::plain(b)?)),
            None => Decimal::plain(text),
        };
        let shown: String = text.chars().take(40).collect();
        found
            .map_err(|what| CostError::Given(format!("expected a number such as 1.25 or 4/3, found '{shown}': {what}")))
    }
}
