//! Which plans to measure first: those whose times tell most about which plan is the fastest.

use super::gaussian::Cholesky;
use super::process::StepCalibration;
use pipesim_answer::plan::Plan;
use serde::Serialize;

/// Number of plans to measure.
const FIRST: usize = 3;
/// Number of plans that are chosen from: those after the first ten are slower.
const CONSIDERED: usize = 10;
/// Number of draws of all errors; each has a mirrored one.
const DRAWS: usize = 2048;
/// Standard deviations from the median to the end of a 90 % interval.
const OF_INTERVAL: f64 = 1.6449;
/// Shortest expected saving of a further measurement that is worth naming.
const WORTH: f64 = 1e-4;

/// A plan to measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FirstTry {
    /// Its rank, from 1.
    pub plan: usize,
    /// Share of the step that choosing after this measurement, and those before it, is expected to save.
    pub expected_saving: f64,
}

/// Errors of plans as logarithms: means of ln(time), and their covariance.
#[derive(Clone, Debug)]
pub struct Doubt {
    /// Expected ln(time) of each plan.
    pub means: Vec<f64>,
    /// Covariance of the logarithms, which a measurement of a plan removes of it.
    pub covariance: Vec<Vec<f64>>,
}

/// Returns at most three of the first ten `plans` of one number of GPUs to measure, each the one whose time, together with those before it,
/// saves most if the plan is chosen anew.
pub fn first_tries(plans: &[Plan], calibration: Option<&StepCalibration>) -> Vec<FirstTry> {
    let plans = &plans[..plans.len().min(CONSIDERED)];
    let none = StepCalibration::fit(&[]);
    let times: Vec<_> = plans.iter().map(|plan| plan.estimate.time_s).collect();
    let (mut covariance, own) = calibration.unwrap_or(&none).covariance(&times);
    let ends = |plan: &Plan| plan.estimate.class.factors().map(f64::ln);
    let deviation = |plan: &Plan| {
        let [low, high] = ends(plan);
        (high - low) / 2.0 / OF_INTERVAL / own.sqrt()
    };
    for (row, one) in covariance.iter_mut().zip(plans) {
        row.iter_mut().zip(plans).for_each(|(entry, other)| *entry *= deviation(one) * deviation(other));
    }
    let mean = |plan: &Plan| {
        let [low, high] = ends(plan);
        plan.estimate.iteration_s.ln() + (low + high) / 2.0
    };
    Doubt { means: plans.iter().map(mean).collect(), covariance }.first(FIRST)
}

impl Doubt {
    /// Returns at most `count` plans to measure, greedily: the next is the one that lowers the expected least time most.
    pub fn first(&self, count: usize) -> Vec<FirstTry> {
        let plans = self.means.len();
        let whole = Cholesky::of(plans, |row, column| self.covariance[row][column]);
        let draws: Vec<Vec<f64>> = normals(DRAWS, plans).iter().map(|draw| whole.times(draw)).collect();
        let now = self.means.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut chosen, mut tries): (Vec<usize>, Vec<FirstTry>) = (Vec::new(), Vec::new());
        while tries.len() < count.min(plans.saturating_sub(1)) {
            let with = |plan: usize| self.expected_least(&[&chosen[..], &[plan]].concat(), &draws);
            let rest = (0..plans).filter(|plan| !chosen.contains(plan));
            let Some((least, plan)) = rest.map(|plan| (with(plan), plan)).min_by(|a, b| a.0.total_cmp(&b.0)) else {
                break;
            };
            let expected_saving = 1.0 - (least - now).exp();
            if expected_saving < tries.last().map_or(0.0, |last| last.expected_saving) + WORTH {
                break;
            }
            chosen.push(plan);
            tries.push(FirstTry { plan: plan + 1, expected_saving });
        }
        tries
    }

    /// Returns the expected least ln(time) by what is known after `measured` plans were.
    fn expected_least(&self, measured: &[usize], draws: &[Vec<f64>]) -> f64 {
        let of = |row: usize, column: usize| self.covariance[measured[row]][measured[column]];
        let known = Cholesky::of(measured.len(), of);
        let weights: Vec<Vec<f64>> = self
            .covariance
            .iter()
            .map(|row| known.forward(&measured.iter().map(|&plan| row[plan]).collect::<Vec<_>>()))
            .collect();
        let least = |draw: &Vec<f64>, sign: f64| {
            let seen = known.forward(&measured.iter().map(|&plan| sign * draw[plan]).collect::<Vec<_>>());
            let later = self.means.iter().zip(&weights).map(|(mean, weights)| {
                mean + weights.iter().zip(&seen).map(|(weight, seen)| weight * seen).sum::<f64>()
            });
            later.fold(f64::INFINITY, f64::min)
        };
        let sum: f64 = draws.iter().map(|draw| least(draw, 1.0) + least(draw, -1.0)).sum();
        sum / (2 * draws.len()) as f64
    }
}

/// Returns `count` draws of `size` independent standard normals, always the same ones (Box and Muller; SplitMix64).
fn normals(count: usize, size: usize) -> Vec<Vec<f64>> {
    let mut state = 0_u64;
    let mut uniform = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut normal = || (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    (0..count).map(|_| (0..size).map(|_| normal()).collect()).collect()
}
