//! How far a prediction may be off, from how far the machine wandered between the steps that calibrate.
//!
//! A step is predicted from the calibrating steps just before and after it. What was measured of a schedule never enters its own
//! prediction, nor the interval of that: each calibrating step is itself predicted from its neighbours, and as far as those are
//! off, drawn for every step that entered, so far may the prediction be off (Efron 1979, the bootstrap).

use crate::statistics::{midmean, quantile};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Of the draws.
pub(super) const SEED: u64 = 42;

/// How many times the measurement is drawn.
const DRAWS: usize = 2000;

/// Least calibrating steps that say something.
const LEAST: usize = 8;

/// How much of what a calibrating step is off from those beside it a step halfway between two of them is off, from how much more it
/// is off from those beyond: what machines wander grows with time, what steps scatter by themselves does not.
fn halfway(makespans_ns: &[u64]) -> f64 {
    let off = |few: &[u64]| {
        let (first, last) = (few[0] as f64, few[few.len() - 1] as f64);
        (2.0 * few[few.len() / 2] as f64 / (first + last).max(1.0) - 1.0).abs()
    };
    let squared = |count: usize| midmean(&makespans_ns.windows(count).map(off).collect::<Vec<_>>()).powi(2);
    let (near, far) = (squared(3), squared(5));
    // a straight line through both, at half the distance of the nearer, and what of it few steps do not tell
    let unsure = 2.0 / (makespans_ns.len() as f64).sqrt();
    (1.5 - 0.5 * far / near.max(f64::MIN_POSITIVE) + unsure).clamp(0.25, 1.0).sqrt()
}

/// Least time of a step that is drawn, as a share of the typical.
const LEAST_TIME: f64 = 0.01;

/// What measured / predicted is, by 80 and by 95 of 100 draws; `makespans_ns` are those of one schedule at the times of all
/// calibrating steps, in order, `beside` the numbers of those just before and after each measured step. None of few of them.
pub(super) fn ratios(makespans_ns: &[u64], beside: &[usize], seed: u64) -> Option<[[f64; 2]; 2]> {
    if makespans_ns.len() < LEAST || beside.len() < 2 {
        return None;
    }
    // What a step is off by itself: its difference from the mean of two neighbours has one and a half times the variance.
    let share = halfway(makespans_ns) / 1.5_f64.sqrt();
    let off = |w: &[u64]| (2.0 * w[1] as f64 / (w[0] + w[2]).max(1) as f64 - 1.0) * share;
    let offs: Vec<f64> = makespans_ns.windows(3).map(off).collect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || {
        let mut time = || {
            let number = (u64::from(random.next_u32()) * offs.len() as u64) >> 32;
            (1.0 + offs[number as usize]).max(LEAST_TIME)
        };
        let calibrating: Vec<f64> = makespans_ns.iter().map(|_| time()).collect();
        let step = |pair: &[usize]| (2.0 * time() / (calibrating[pair[0]] + calibrating[pair[1]])).ln();
        midmean(&beside.chunks_exact(2).map(step).collect::<Vec<_>>()).exp()
    };
    let ratios: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
    Some([[0.1, 0.9], [0.025, 0.975]].map(|quantiles| quantiles.map(|q| quantile(&ratios, q))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_as_often_as_they_say() {
        // machines that wander slowly, fast, or all but at random, and whose steps scatter of their own
        for (wanders, scatters) in [(0.002, 0.03), (0.02, 0.03), (0.05, 0.01)] {
            let [of_80, of_95] = held(wanders, scatters);
            assert!((0.72..=0.9).contains(&of_80) && (0.89..=0.99).contains(&of_95), "{wanders}: {of_80} {of_95}");
        }
    }

    /// How often the intervals hold, on a machine whose speed wanders by so much a step and whose steps scatter by so much.
    fn held(wanders: f64, scatters: f64) -> [f64; 2] {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut normal = || (0..12).map(|_| f64::from(random.next_u32()) / 4_294_967_296.0).sum::<f64>() - 6.0;
        let (steps, trials) = (60, 200);
        let mut held = [0, 0];
        for trial in 0..trials {
            let mut speed = 1.0;
            let mut time = |_| {
                speed *= 1.0 + wanders * normal();
                (1e8 * speed * (1.0 + scatters * normal())) as u64
            };
            // in turn: one that calibrates, one that is measured
            let all: Vec<u64> = (0..2 * steps + 1).map(&mut time).collect();
            let visits: Vec<u64> = all.iter().step_by(2).copied().collect();
            let off = |w: &[u64]| (2.0 * w[1] as f64 / (w[0] + w[2]) as f64).ln();
            let ratio = midmean(&all.windows(3).step_by(2).map(off).collect::<Vec<_>>()).exp();
            let beside: Vec<usize> = (0..steps).flat_map(|step| [step, step + 1]).collect();
            let found = ratios(&visits, &beside, trial).unwrap();
            for (held, [low, high]) in held.iter_mut().zip(found) {
                *held += u32::from((low..=high).contains(&ratio));
            }
        }
        held.map(|held| f64::from(held) / trials as f64)
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
