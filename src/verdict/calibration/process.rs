//! The Gaussian process of ln(measured / predicted) over layouts.

use super::gaussian::Cholesky;
use super::prior::{LeftOutError, Prior};
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_cost::analytic::StepTime;
use pipesim_models::hardware::IntervalClass;
use pipesim_models::hull::HullPoint;
use serde::Serialize;

/// PartShares of a step's parts, in their order.
type PartShares = [f64; 7];

/// A layout with its predicted and its measured step.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredLayout {
    pub predicted: StepTime,
    /// Its place in the hull of published steps, which it extends.
    pub point: Option<HullPoint>,
    /// Measured time of an iteration, in seconds.
    pub measured_s: f64,
}

/// A measured layout as the process sees it.
#[derive(Clone, Debug)]
struct Observed {
    shares: PartShares,
    /// ln(measured / predicted), the mean of its runs.
    log: f64,
}

/// Measured steps of a cluster, which correct predictions of other layouts.
#[derive(Clone, Debug)]
pub struct StepCalibration {
    prior: Prior,
    observed: Vec<Observed>,
    factored: Cholesky,
    /// L⁻¹ of the logarithms.
    whitened: Vec<f64>,
    /// Places of the measured layouts: what is like them is known.
    known: Vec<HullPoint>,
}

/// What a calibration does to a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    /// Factor on the predicted time.
    pub factor: f64,
    /// Factor on the logarithms of the interval's ends, relative to the prediction: 1 without a layout like it, smaller with one.
    pub narrowed: f64,
    /// How alike the most similar measured layout is, 0 to 1.
    pub likeness: f64,
}

/// A corrected prediction; `calibration` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Corrected {
    /// Time of an iteration, in seconds.
    pub iteration_s: f64,
    /// 90 % interval of the measured iteration, in seconds.
    pub iteration_interval_s: [f64; 2],
    /// The same, 50 %.
    pub iteration_interval_50_s: [f64; 2],
    /// The prediction without calibration, in seconds.
    pub uncalibrated_iteration_s: f64,
    /// Factor on the predicted time.
    pub factor: f64,
    /// Number of measured layouts.
    pub measured_layouts: usize,
    /// How alike the most similar measured layout is, 0 to 1.
    pub likeness: f64,
    /// Errors of published layouts that were predicted after as many others were measured, or fewer.
    pub left_out: Option<LeftOutError>,
}

fn shares(time: &StepTime) -> PartShares {
    let all = time.iteration();
    time.of_busiest().map(|part| part / all)
}

fn likeness(prior: &Prior, a: &PartShares, b: &PartShares) -> f64 {
    (-prior.fading * a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>()).exp()
}

fn counted(layouts: usize) -> String {
    if layouts == 1 { "1 measured layout".to_string() } else { format!("{layouts} measured layouts") }
}

impl StepCalibration {
    /// Fits a calibration with the prior from published steps.
    pub fn fit(runs: &[MeasuredLayout]) -> StepCalibration {
        StepCalibration::with_prior(Prior::published(), runs)
    }

    /// Fits a calibration. Runs that are predicted alike in every part are one layout, measured by the mean of their logarithms. Runs
    /// without a positive time say nothing.
    pub fn with_prior(prior: Prior, runs: &[MeasuredLayout]) -> StepCalibration {
        let log = |run: &MeasuredLayout| (run.measured_s / run.predicted.iteration()).ln();
        let mut runs: Vec<(&MeasuredLayout, f64)> =
            runs.iter().map(|run| (run, log(run))).filter(|(_, log)| log.is_finite()).collect();
        let parts = |run: &MeasuredLayout| run.predicted.parts().map(|part| part.seconds);
        // a fixed order, so that sums have the same bits
        runs.sort_by(|(a, x), (b, y)| {
            let pairs = parts(a).into_iter().zip(parts(b));
            pairs.fold(std::cmp::Ordering::Equal, |order, (a, b)| order.then(a.total_cmp(&b))).then(x.total_cmp(y))
        });
        let layouts = runs.chunk_by(|(a, _), (b, _)| a.predicted == b.predicted);
        let observed: Vec<Observed> = layouts
            .map(|same| Observed {
                shares: shares(&same[0].0.predicted),
                log: same.iter().map(|(_, log)| log).sum::<f64>() / same.len() as f64,
            })
            .collect();
        let factored = Cholesky::of(observed.len(), |row, column| {
            let alike = likeness(&prior, &observed[row].shares, &observed[column].shares);
            if row == column { alike + prior.noise } else { alike }
        });
        let whitened = factored.forward(&observed.iter().map(|one| one.log).collect::<Vec<_>>());
        let known = runs.iter().filter_map(|(run, _)| run.point.clone()).collect();
        StepCalibration { prior, observed, factored, whitened, known }
    }

    /// Returns the number of measured layouts.
    pub fn layouts(&self) -> usize {
        self.observed.len()
    }

    /// Returns the correction of a layout that is predicted to take `time`.
    pub fn correction(&self, time: &StepTime) -> Correction {
        let own = shares(time);
        let alike: Vec<f64> = self.observed.iter().map(|one| likeness(&self.prior, &own, &one.shares)).collect();
        let known = self.factored.forward(&alike);
        let log: f64 = known.iter().zip(&self.whitened).map(|(a, b)| a * b).sum();
        let before = 1.0 + self.prior.noise;
        let left = before - known.iter().map(|one| one * one).sum::<f64>();
        Correction {
            factor: log.exp(),
            narrowed: (left.max(self.prior.noise) / before).sqrt().powf(self.prior.narrowing),
            likeness: alike.into_iter().fold(0.0, f64::max),
        }
    }

    /// Returns the covariance of ln(measured / predicted) of layouts that are predicted to take `times`, after what was measured, in a unit in
    /// which that of a layout alone, before anything was, is second.
    pub fn covariance(&self, times: &[StepTime]) -> (Vec<Vec<f64>>, f64) {
        let all: Vec<PartShares> = times.iter().map(shares).collect();
        let known = |own: &PartShares| {
            let alike: Vec<f64> = self.observed.iter().map(|one| likeness(&self.prior, own, &one.shares)).collect();
            self.factored.forward(&alike)
        };
        let known: Vec<Vec<f64>> = all.iter().map(known).collect();
        let entry = |row: usize, column: usize| {
            let seen: f64 = known[row].iter().zip(&known[column]).map(|(a, b)| a * b).sum();
            let own = if row == column { self.prior.noise } else { 0.0 };
            likeness(&self.prior, &all[row], &all[column]) + own - seen
        };
        let rows = (0..all.len()).map(|row| (0..all.len()).map(|column| entry(row, column)).collect());
        (rows.collect(), 1.0 + self.prior.noise)
    }

    /// Returns the corrected prediction of a step.
    pub fn corrected(&self, estimate: &StepEstimate) -> Corrected {
        let Correction { factor, narrowed, likeness } = self.correction(&estimate.time_s);
        let iteration_s = estimate.iteration_s * factor;
        let is_mixture = estimate.active_parameters < estimate.parameters;
        let class = IntervalClass { outside: estimate.point.outside(&self.known).len(), ..estimate.class };
        Corrected {
            iteration_s,
            iteration_interval_s: class.factors().map(|end| iteration_s * end.powf(narrowed)),
            iteration_interval_50_s: class.middle().map(|end| iteration_s * end.powf(narrowed)),
            uncalibrated_iteration_s: estimate.iteration_s,
            factor,
            measured_layouts: self.layouts(),
            likeness,
            left_out: LeftOutError::published(self.layouts(), is_mixture),
        }
    }

    /// Corrects an estimate: its times, and the speeds that follow from them.
    pub fn correct(&self, estimate: &mut StepEstimate) -> Corrected {
        let corrected = self.corrected(estimate);
        let factor = corrected.factor;
        estimate.iteration_s = corrected.iteration_s;
        estimate.iteration_interval_s = corrected.iteration_interval_s;
        estimate.iteration_interval_50_s = corrected.iteration_interval_50_s;
        estimate.outside = estimate.point.outside(&self.known);
        estimate.class.outside = estimate.outside.len();
        let speeds = [
            &mut estimate.tokens_per_second,
            &mut estimate.tokens_per_second_per_gpu,
            &mut estimate.model_tflops_per_gpu,
            &mut estimate.mfu,
        ];
        speeds.into_iter().for_each(|speed| *speed /= factor);
        let time = &mut estimate.time_s;
        let parts = [
            &mut time.compute,
            &mut time.tensor_parallel_exposed,
            &mut time.expert_parallel_exposed,
            &mut time.imbalance,
            &mut time.pipeline_bubble,
            &mut time.data_parallel_exposed,
            &mut time.optimizer,
            &mut time.other,
        ];
        parts.into_iter().for_each(|part| *part *= factor);
        corrected
    }

    /// Returns one line about what is corrected by how much, and how well that did on published steps.
    pub fn described(&self, corrected: &[Corrected]) -> String {
        let layouts = counted(self.layouts());
        let span = |of: fn(&Corrected) -> f64, decimals: usize| {
            let all = || corrected.iter().map(of);
            let [low, high] = [all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max)]
                .map(|number| format!("{number:.decimals$}"));
            if low == high { low } else { format!("{low} to {high}") }
        };
        let error = corrected.first().and_then(|one| one.left_out).map_or_else(String::new, |error| {
            let LeftOutError { measured, mean_before, mean, .. } = error;
            let change = if measured == 1 { "changes" } else { "change" };
            let (measured, [before, after]) = (counted(measured), [mean_before, mean].map(|error| 100.0 * error));
            format!(
                "; on published steps, {measured} {change} the mean error of others from {before:.1} to {after:.1} %"
            )
        });
        let (factor, likeness) = (span(|one| one.factor, 3), span(|one| 100.0 * one.likeness, 0));
        format!("calibrated with {layouts}: times × {factor}, likeness to the nearest layout {likeness} %{error}")
    }
}
