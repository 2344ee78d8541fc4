//! The steps of a run: drift, outliers, and which device was the slowest.

use crate::statistics::median;
use crate::timeline::{StepFigures, Timeline};
use serde::Serialize;

/// Distance from the median, in median absolute deviations scaled to a standard deviation, from which a step is an outlier.
const FAR: f64 = 4.0;
/// Least distance of an outlier, as a share of the median.
const LEAST: f64 = 0.03;

/// One step next to the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTrend {
    /// As in the trace.
    pub number: u64,
    /// In the timeline's unit.
    pub makespan: f64,
    /// Makespan / median makespan - 1.
    pub from_median: f64,
    /// 1 - busy / (devices · makespan).
    pub bubble: f64,
    /// The device that computed longest.
    pub slowest: u32,
    /// Its time / the median device's - 1.
    pub slowest_by: f64,
    /// Whether its makespan is far from the median.
    pub is_outlier: bool,
}

/// Figures of all steps of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// Median makespan, in the timeline's unit.
    pub median: f64,
    /// Median over all pairs of steps of the change of the makespan per step, as a share of the median makespan (Theil and Sen's
    /// estimate).
    pub drift_per_step: f64,
    /// By step, in order.
    pub steps: Vec<StepTrend>,
}

/// Returns the trend of the complete steps next to `timeline`; `None` if it has fewer than two.
pub fn trend(timeline: &Timeline) -> Option<Trend> {
    let steps: Vec<&StepFigures> = timeline.steps.iter().filter(|step| step.incomplete_devices.is_empty()).collect();
    if steps.len() < 2 {
        return None;
    }
    let unit = timeline.unit_ns.max(1) as f64;
    let makespans: Vec<f64> = steps.iter().map(|step| step.makespan_ns as f64).collect();
    let middle = median(&makespans).max(1.0);
    let deviations: Vec<f64> = makespans.iter().map(|makespan| (makespan - middle).abs()).collect();
    let far = (FAR * 1.4826 * median(&deviations)).max(LEAST * middle);
    let recorded: Vec<u32> = timeline.recorded().collect();
    let of = |(step, &makespan): (&&StepFigures, &f64)| {
        let busy = |device: u32| step.busy_ns.get(device as usize).copied().unwrap_or(0) as f64;
        // The lowest device of the slowest ones.
        let slowest =
            recorded.iter().rev().copied().max_by(|&one, &other| busy(one).total_cmp(&busy(other))).unwrap_or(0);
        let typical = median(&recorded.iter().map(|&device| busy(device)).collect::<Vec<_>>()).max(1.0);
        StepTrend {
            number: step.number,
            makespan: makespan / unit,
            from_median: makespan / middle - 1.0,
            bubble: step.bubble,
            slowest,
            slowest_by: busy(slowest) / typical - 1.0,
            is_outlier: (makespan - middle).abs() > far,
        }
    };
    let drift = |(at, &later): (usize, &f64)| {
        makespans[..at]
            .iter()
            .enumerate()
            .map(move |(before, &earlier)| (later - earlier) / (at - before) as f64)
            .collect::<Vec<_>>()
    };
    let slopes: Vec<f64> = makespans.iter().enumerate().flat_map(drift).collect();
    Some(Trend {
        median: middle / unit,
        drift_per_step: median(&slopes) / middle,
        steps: steps.iter().zip(&makespans).map(of).collect(),
    })
}
