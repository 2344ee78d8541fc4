//! Shares of a resource: exact fractions of a tick's work.
//!
//! Work is counted in grains. A tick at full speed does as many grains as there are in [`Grain`], a number that all the
//! shares which occur divide, so that no share is ever rounded; only where more than 40 ops or 16 messages share one
//! resource (or fewer, with odd slow-down factors) is a share rounded down, by a few parts in a million at most.

use super::{Config, Sharing};

/// How many grains a tick at full speed does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Grain(pub u64);

/// Largest number of grains in a tick: with 2^63 ticks of work they fit in 128 bits.
const MAX_GRAINS: u64 = 1 << 60;

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Grain {
    /// The grain of everything that is shared on the machine of `config`.
    pub fn of(config: &Config) -> Grain {
        let Config { processors, network, overlap_per_mille, .. } = config;
        let largest = processors.iter().map(|processor| processor.devices.len()).max().unwrap_or(1);
        let of_processors = processors.iter().flat_map(|processor| &processor.contention);
        let factors: Vec<u32> = of_processors.chain(&network.contention).copied().collect();
        let flows = if network.sharing == Sharing::FairShare { 16 } else { 1 };
        Grain::new(largest.max(flows) as u64, *overlap_per_mille, &factors)
    }

    /// The grain for up to `most` sharers, each possibly slowed down to 1000 / `per_mille`, and by one of `factors`, per mille, too.
    pub fn new(most: u64, per_mille: u32, factors: &[u32]) -> Grain {
        let reduced = |per_mille: u32| u64::from(per_mille) / gcd(1000, u64::from(per_mille)).max(1);
        let slow = reduced(per_mille);
        let (mut multiple, mut odd) = (1_u64, false); // of all numbers of sharers and of all factors
        for n in factors.iter().map(|&factor| reduced(factor).max(1)) {
            match multiple.checked_mul(n / gcd(multiple, n)) {
                Some(more) if u128::from(more) * u128::from(slow) <= u128::from(MAX_GRAINS >> 10) => multiple = more,
                _ => odd = true,
            }
        }
        for n in 2..=most.min(40) {
            match multiple.checked_mul(n / gcd(multiple, n)) {
                Some(more) if u128::from(more) * u128::from(slow) <= u128::from(MAX_GRAINS) => multiple = more,
                _ => break,
            }
        }
        let mut grains = multiple * slow;
        // Where one of the shares is not exact after all, its error is small.
        while grains < 1 << 40 && (odd || most > 40) {
            grains *= 2;
        }
        Grain(grains)
    }

    /// Grains that a tick does at `share` / `of` of full speed; at least 1.
    pub fn speed(self, share: u64, of: u64) -> u64 {
        ((u128::from(self.0) * u128::from(share) / u128::from(of)) as u64).max(1)
    }

    /// The grains of so many ticks at full speed.
    pub fn work(self, ticks: u64) -> u128 {
        u128::from(self.0) * u128::from(ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact() {
        let grain = Grain::new(13, 1300, &[]);
        for n in 1..=13 {
            assert_eq!(u128::from(grain.speed(1, n)) * u128::from(n), grain.work(1), "1/{n}");
            assert_eq!(u128::from(grain.speed(1000, 1300 * n)) * u128::from(1300 * n), grain.work(1000), "1/1.3/{n}");
        }
        assert_eq!(Grain::new(1, 1000, &[]), Grain(1));
        for (most, per_mille) in [(40, 1000), (1000, 1999), (u64::MAX, u32::MAX)] {
            let Grain(grains) = Grain::new(most, per_mille, &[]);
            assert!((1 << 20..=MAX_GRAINS).contains(&grains), "{most} {per_mille}: {grains}");
        }
    }
}
