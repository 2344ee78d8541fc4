//! Jitter: random durations, the same for the same seed on every machine and in any order of ops.

/// Random durations: each op's factor depends on the seed, the sample and the op's index alone. Factors have the mean 1: on
/// average an op takes what the costs say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    /// Standard deviation of the factor's logarithm, which is normal and cut off at 3.7 sigma; per mille, at most 2000.
    pub sigma_per_mille: u32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of the sample: each has durations of its own.
    pub sample: u64,
}

/// Factors are counted in parts of 2^32.
const ONE: u64 = 1 << 32;
/// Number of intervals between the knots of a table; factors are interpolated within them.
const CELLS: usize = 4096;

/// The factors at evenly spaced quantiles.
#[derive(Clone, Debug)]
pub(super) struct FactorTable {
    knots: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'a> {
    knots: &'a [u64],
    key: u64,
}

impl Jitter {
    pub(super) fn table(&self) -> FactorTable {
        FactorTable { knots: log_normal(f64::from(self.sigma_per_mille.min(2000)) / 1000.0) }
    }
}

impl FactorTable {
    /// Returns the largest factor, rounded up.
    pub(super) fn longest(&self) -> u64 {
        self.knots[CELLS].div_ceil(ONE)
    }

    pub(super) fn sample(&self, seed: u64, sample: u64) -> Sample<'_> {
        Sample { knots: &self.knots, key: mix(mix(seed) ^ sample) }
    }
}

impl Sample<'_> {
    /// Returns how long op number `index` takes whose cost is `duration`.
    pub(super) fn stretch(&self, index: usize, duration: u64) -> u64 {
        let bits = mix(self.key ^ index as u64);
        let (cell, part) = ((bits >> 52) as usize, bits >> 20 & 0xffff_ffff);
        let (low, high) = (self.knots[cell], self.knots[cell + 1]);
        let factor = low + ((u128::from(high - low) * u128::from(part)) >> 32) as u64;
        ((u128::from(duration) * u128::from(factor) + u128::from(ONE / 2)) >> 32) as u64
    }
}

/// The finaliser of SplitMix64 (Steele, Lea & Flood 2014) after one step of its counter.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns exp(`sigma` z) at the quantiles of the normal distribution, scaled to mean 1. Uses sums, products and quotients of
/// floating-point numbers alone, which every machine rounds the same way; the functions of math libraries differ in their last
/// bits.
fn log_normal(sigma: f64) -> Vec<u64> {
    let factors: Vec<f64> = normal_quantiles().iter().map(|z| exp(sigma * z)).collect();
    // The mean of the interpolated factors.
    let mean = factors.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).sum::<f64>() / CELLS as f64;
    factors.iter().map(|factor| (factor / mean * ONE as f64 + 0.5) as u64).collect()
}

/// Returns the normal distribution's quantiles at 0, 1/n, 2/n, ..; those at 0 and 1 are taken at 1/2n from the ends.
fn normal_quantiles() -> Vec<f64> {
    let mut upper = vec![0.0];
    let mut z = 0.0;
    for knot in CELLS / 2 + 1..=CELLS {
        let target = if knot == CELLS { 1.0 - 0.5 / CELLS as f64 } else { knot as f64 / CELLS as f64 };
        // Newton's method from the previous quantile converges in a few steps.
        for _ in 0..if knot == CELLS { 20 } else { 5 } {
            let (below, density) = normal(z);
            z += (target - below) / density;
        }
        upper.push(z);
    }
    let lower = upper.iter().skip(1).rev().map(|z| -z);
    lower.chain(upper.iter().copied()).collect()
}

/// Returns the normal distribution function at z >= 0, and its density there: 1/2 + density (z + z^3/3 + z^5/15 + ...) (Marsaglia 2004).
fn normal(z: f64) -> (f64, f64) {
    const SQRT_2_PI: f64 = 2.506_628_274_631_000_5;
    let density = exp(-z * z / 2.0) / SQRT_2_PI;
    let (mut term, mut sum) = (z, z);
    for k in 1..60 {
        term *= z * z / f64::from(2 * k + 1);
        sum += term;
        if term < 1e-18 {
            break;
        }
    }
    (0.5 + density * sum, density)
}

/// Returns e^x for |x| up to about 50 as (e^(x / 1024))^1024.
fn exp(x: f64) -> f64 {
    let small = x / 1024.0;
    let mut value = 1.0;
    for k in (1..=10).rev() {
        value = 1.0 + small / f64::from(k) * value;
    }
    (0..10).fold(value, |power, _| power * power)
}
