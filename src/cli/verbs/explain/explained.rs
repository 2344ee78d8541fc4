//! One schedule's step, explained: idle time, bounds, critical path, sensitivities, memory, and what could be changed.

use super::run::Measured;
use crate::cli::Failure;
use crate::cli::options::threshold::Side;
use crate::cli::terminal::progress::RemarkOptions;
use pipesim_answer::advice::{Advice, Sensitivities};
use pipesim_cost::CostTable;
use pipesim_cost::pair::PairFigures;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::Metrics;
use pipesim_schedule::timeline::Source;
use pipesim_sim::exact;
use pipesim_sim::{
    self as sim, Bounds, CriticalSpan, IdleReport, MemoryCurve, Prediction, Sensitivity, bounds_at_own_peaks,
};
use serde::Serialize;

/// One schedule, times in the unit of its costs.
#[derive(Serialize)]
pub struct Explained {
    pub schedule: String,
    pub devices: u32,
    pub microbatches: u32,
    pub time_unit: String,
    /// Assumptions about costs that were not given: `I = W = B/2`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub costs_assumed: Vec<&'static str>,
    #[serde(flatten)]
    pub metrics: Metrics,
    pub bounds: NamedBounds,
    /// Bounds for orders in which no device holds more than in this schedule.
    pub bounds_at_own_peaks: NamedBounds,
    pub idle: IdleReport,
    /// Forwards next to backwards on two streams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<Exact>,
    /// An op with slack 0 is critical.
    pub slack: Vec<Slack>,
    pub critical_path: Vec<CriticalSpan>,
    /// By what percentage the makespan shrinks when a part's times shrink by one percent.
    pub sensitivities: Vec<Sensitivity>,
    /// Whether costs decide the order, which the sensitivities hold fixed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sensitivities_hold_order_fixed: bool,
    pub memory: Vec<MemoryCurve>,
    pub sentences: Vec<String>,
    pub advice: Advice,
    /// What a measured step has in addition.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// [`Bounds`] in the costs' unit.
#[derive(Serialize)]
pub struct NamedBounds {
    pub work: f64,
    pub critical_path: f64,
    pub head_work_tail: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    pub best: f64,
    pub best_name: &'static str,
    /// The best if backwards may be split into I and W.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_split: Option<f64>,
}

/// Result of a search through all orders within this schedule's own peaks.
#[derive(Serialize)]
pub struct Exact {
    pub makespan: f64,
    pub lower_bound: f64,
    /// Whether the makespan is proven to be the best.
    pub optimal: bool,
    pub states: u64,
    /// How the ops differ from this schedule's.
    #[serde(skip)]
    pub of: &'static str,
}

/// How much longer an op may last.
#[derive(Serialize)]
pub struct Slack {
    pub op: String,
    pub device: u32,
    pub slack: f64,
}

impl Explained {
    /// Explains a prediction, and searches for the best order among `exact` states.
    pub fn new(
        predicted: &Prediction,
        advice: Advice,
        sensitivities: Sensitivities,
        exact: Option<u64>,
        remarks: RemarkOptions,
    ) -> Result<Explained, Failure> {
        let Prediction { graph, costs, memory_cap: cap, .. } = *predicted;
        let times = predicted.op_times();
        let unit = |ticks: u64| costs.in_units(ticks);
        let named = |bounds: Bounds| {
            let (best, best_name) = bounds.best();
            let Bounds { work, critical_path, head_work_tail, memory, if_split, .. } = bounds;
            NamedBounds {
                work: unit(work),
                critical_path: unit(critical_path),
                head_work_tail: unit(head_work_tail),
                memory: memory.map(unit),
                best: unit(best),
                best_name,
                if_split: if_split.map(unit),
            }
        };
        let path = sim::critical_path(graph, costs, &times);
        let lasting = predicted.durations();
        let slack = |(index, slack): (usize, u64)| Slack {
            op: graph.op(index).to_string(),
            device: graph.device_of(index),
            slack: unit(slack),
        };
        let mut explained = Explained {
            exact: exact.map(|states| prove(graph, costs, states, remarks)).transpose()?,
            schedule: graph.schedule().name.clone(),
            devices: graph.schedule().devices(),
            microbatches: graph.schedule().microbatches,
            time_unit: costs.units.time_unit.to_string(),
            costs_assumed: costs.assumed.clone(),
            metrics: predicted.metrics().clone(),
            bounds: named(predicted.bounds),
            bounds_at_own_peaks: named(bounds_at_own_peaks(graph, costs)),
            idle: sim::explain(graph, costs, &times, cap).report(graph, costs),
            pairs: predicted.prediction.pairs.clone(),
            slack: sim::slacks(graph, costs, &times, lasting.as_deref()).into_iter().enumerate().map(slack).collect(),
            critical_path: sim::critical_spans(graph, costs, &path),
            sensitivities: sensitivities.list,
            sensitivities_hold_order_fixed: sensitivities.order_held_fixed,
            memory: sim::memory(graph, costs, &times, cap),
            sentences: Vec::new(),
            advice,
            measured: None,
        };
        explained.sentences = explained.write();
        Ok(explained)
    }

    /// Returns whether the figures are of a measurement.
    pub(super) fn side(&self) -> Side {
        let is_measured = self.measured.as_ref().is_some_and(|measured| measured.source == Source::Measured);
        if is_measured { Side::Measured } else { Side::Predicted }
    }

    /// Returns the makespan that bounds are compared with: at median speed.
    pub(super) fn bounded(&self) -> f64 {
        self.metrics.typical_speed.map_or(self.metrics.makespan, |typical| typical.makespan)
    }

    /// Returns the best lower bound for orders of these ops in which no device holds more than here.
    pub(super) fn bound_here(&self) -> f64 {
        let proven = self.exact.as_ref().map_or(0.0, |exact| exact.lower_bound);
        self.bounds.best.max(self.bounds_at_own_peaks.best).max(proven)
    }
}

/// Searches the orders of this schedule's ops in which no device holds more than here.
fn prove(graph: &TaskGraph, costs: &CostTable, states: u64, remarks: RemarkOptions) -> Result<Exact, Failure> {
    let what = format!("searching up to {states} states for the best order of {}", graph.schedule().name);
    let _busy = remarks.busy(&what, None);
    let proof = exact::prove_against(graph, costs, states)
        .map_err(|e| Failure::Usage(format!("{}: --exact: {e}", graph.schedule().name)))?;
    let unit = |ticks: u64| costs.in_units(ticks);
    let exact::Proof { objective, lower_bound, optimal, states, .. } = proof;
    let schedule = graph.schedule();
    let of = match (schedule.mixes_backwards(), schedule.has_pairs()) {
        (true, true) => " (pairs apart, backwards split)",
        (true, false) => " (backwards split)",
        (false, true) => " (pairs apart)",
        (false, false) => "",
    };
    Ok(Exact { makespan: unit(objective), lower_bound: unit(lower_bound), optimal, states, of })
}
