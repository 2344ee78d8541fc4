//! How far a prediction may be off, from how far the machine wandered between the steps that calibrate.
//!
//! A step is predicted from the calibrating steps just before and after it. What was measured of a schedule never enters its own
//! prediction, nor the interval of that: each calibrating step is itself predicted from its neighbours, and as far as those are
//! off, drawn as many times as steps were measured, so far may the prediction be off (Efron 1979, the bootstrap).

use crate::statistics::{quantile, typical};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Of the draws.
pub(super) const SEED: u64 = 42;

/// How many times the measurement is drawn.
const DRAWS: usize = 2000;

/// Least calibrating steps that say something.
const LEAST: usize = 8;

/// What measured / predicted is, by 80 and by 95 of 100 draws of `steps` steps; `makespans_ns` are those of one schedule at the
/// times of all calibrating steps, in order. None of few of them.
pub(super) fn ratios(makespans_ns: &[u64], steps: usize, seed: u64) -> Option<[[f64; 2]; 2]> {
    if makespans_ns.len() < LEAST || steps == 0 {
        return None;
    }
    let pairs: Vec<(u64, u64)> = makespans_ns.windows(3).map(|w| ((w[0] + w[2]) / 2, w[1])).collect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || {
        let mut number = || (u64::from(random.next_u32()) * pairs.len() as u64 >> 32) as usize;
        let (predicted, measured): (Vec<u64>, Vec<u64>) = (0..steps).map(|_| pairs[number()]).unzip();
        typical(&measured) as f64 / typical(&predicted).max(1) as f64
    };
    let ratios: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
    Some([[0.1, 0.9], [0.025, 0.975]].map(|quantiles| quantiles.map(|q| quantile(&ratios, q))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_as_often_as_they_say() {
        // a machine that wanders slowly, and whose steps scatter by 3 % of their own
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut normal = || (0..12).map(|_| f64::from(random.next_u32()) / 4_294_967_296.0).sum::<f64>() - 6.0;
        let (steps, trials) = (20, 300);
        let mut held = [0, 0];
        for trial in 0..trials {
            let mut speed = 1.0;
            let mut times = |count: usize| -> Vec<u64> {
                let mut time = |_| {
                    speed *= 1.0 + 0.002 * normal();
                    (1e8 * speed * (1.0 + 0.03 * normal())) as u64
                };
                (0..count).map(&mut time).collect()
            };
            // in turn: one that calibrates, one that is measured
            let all = times(2 * steps + 1);
            let (visits, measured): (Vec<u64>, Vec<u64>) =
                (all.iter().step_by(2).copied().collect(), all.iter().skip(1).step_by(2).copied().collect());
            let predicted: Vec<u64> = visits.windows(2).map(|w| (w[0] + w[1]) / 2).collect();
            let ratio = typical(&measured) as f64 / typical(&predicted) as f64;
            let found = ratios(&visits, steps, trial).unwrap();
            for (held, [low, high]) in held.iter_mut().zip(found) {
                *held += u32::from((low..=high).contains(&ratio));
            }
        }
        let [of_80, of_95] = held.map(|held| f64::from(held) / trials as f64);
        assert!((0.72..=0.9).contains(&of_80) && (0.89..=0.99).contains(&of_95), "{of_80} {of_95}");
    }

    #[test]
    fn a_steady_machine_has_no_width_and_few_steps_say_nothing() {
        assert_eq!(ratios(&[100; 20], 5, 1), Some([[1.0; 2]; 2]));
        assert_eq!(ratios(&[100; 7], 5, 1), None);
        let random: Vec<u64> = (0..20).map(|i| 1000 + i * i % 37).collect();
        assert_eq!(ratios(&random, 5, 1), ratios(&random, 5, 1), "the same seed, the same interval");
    }
}
