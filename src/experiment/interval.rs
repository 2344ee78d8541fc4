//! How far a prediction may be off, from how far the machine wandered between the steps that calibrate.
//!
//! A step is predicted from the calibrating steps just before and after it. What was measured of a schedule never enters its own
//! prediction, nor the interval of that: each calibrating step is itself predicted from its neighbours, and as far as those are
//! off, drawn for every step that entered, so far may the prediction be off (Efron 1979, the bootstrap).

use crate::statistics::{quantile, typical};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Of the draws.
pub(super) const SEED: u64 = 42;

/// How many times the measurement is drawn.
const DRAWS: usize = 2000;

/// Least calibrating steps that say something.
const LEAST: usize = 8;

/// What measured / predicted is, by 80 and by 95 of 100 draws; `makespans_ns` are those of one schedule at the times of all
/// calibrating steps, in order, `beside` the numbers of those just before and after each measured step. None of few of them.
pub(super) fn ratios(makespans_ns: &[u64], beside: &[usize], seed: u64) -> Option<[[f64; 2]; 2]> {
    if makespans_ns.len() < LEAST || beside.len() < 2 {
        return None;
    }
    // What a step is off by itself: its difference from the mean of two neighbours has one and a half times the variance.
    let off = |w: &[u64]| (2.0 * w[1] as f64 / (w[0] + w[2]).max(1) as f64 - 1.0) / 1.5_f64.sqrt();
    let offs: Vec<f64> = makespans_ns.windows(3).map(off).collect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || {
        let mut time = || {
            let number = (u64::from(random.next_u32()) * offs.len() as u64) >> 32;
            (1e9 * (1.0 + offs[number as usize]).max(0.0)) as u64
        };
        let calibrating: Vec<u64> = makespans_ns.iter().map(|_| time()).collect();
        let measured: Vec<u64> = beside.chunks_exact(2).map(|_| time()).collect();
        let pairs = beside.chunks_exact(2).map(|pair| (calibrating[pair[0]] + calibrating[pair[1]]) / 2);
        typical(&measured) as f64 / typical(&pairs.collect::<Vec<_>>()).max(1) as f64
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
            let beside: Vec<usize> = (0..steps).flat_map(|step| [step, step + 1]).collect();
            let found = ratios(&visits, &beside, trial).unwrap();
            for (held, [low, high]) in held.iter_mut().zip(found) {
                *held += u32::from((low..=high).contains(&ratio));
            }
        }
        let [of_80, of_95] = held.map(|held| f64::from(held) / trials as f64);
        assert!((0.72..=0.9).contains(&of_80) && (0.89..=0.99).contains(&of_95), "{of_80} {of_95}");
    }

    #[test]
    fn a_steady_machine_has_no_width_and_few_steps_say_nothing() {
        let beside: Vec<usize> = (0..10).collect();
        assert_eq!(ratios(&[100; 20], &beside, 1), Some([[1.0; 2]; 2]));
        assert_eq!(ratios(&[100; 7], &beside[..4], 1), None);
        let random: Vec<u64> = (0..20).map(|i| 1000 + i * i % 37).collect();
        assert_eq!(ratios(&random, &beside, 1), ratios(&random, &beside, 1), "the same seed, the same interval");
    }
}
