//! The explanation of a step, and how it is made.

use super::RunDiagnosis;
use crate::advice::{Advice, Advisor, Change, LEAST, Sensitivities, What};
use crate::resolve::{Costs, Error, Resolved, Selection, usage};
use pipesim_cost::CostTable;
use pipesim_cost::pair::PairFigures;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::Metrics;
use pipesim_sim::exact;
use pipesim_sim::{
    self as sim, Bounds, CostShare, CriticalSpan, IdleReport, MemoryCurve, Prediction, bounds_at_own_peaks,
};
use serde::Serialize;
use std::fmt;

/// The explanation of one schedule's step. Times are in the unit of its costs.
#[derive(Clone, Debug, Serialize)]
pub struct StepExplanation {
    pub schedule: String,
    pub devices: u32,
    pub microbatches: u32,
    /// `unit` or `ms`.
    pub time_unit: String,
    /// Assumptions about costs that were not given: `I = W = B/2`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub costs_assumed: Vec<&'static str>,
    /// Makespan, bubble and peak activations.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// The whole iteration of a model on hardware, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration_s: Option<f64>,
    /// Whether a model on hardware fits into memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
    pub bounds: NamedBounds,
    /// Bounds for orders in which no device holds more than in this schedule.
    pub bounds_at_own_peaks: NamedBounds,
    /// Idle time of every device by cause.
    pub idle: IdleReport,
    /// Forwards next to backwards on two streams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairFigures>,
    /// Set by [`StepExplanation::prove`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<BestOrder>,
    /// Slack of every op; an op with slack 0 is critical.
    pub slack: Vec<OpSlack>,
    /// One chain of ops, transfers and overheads from the start of the step to its end, without a gap.
    pub critical_path: Vec<CriticalSpan>,
    /// How much the makespan shrinks if one part gets one percent faster.
    #[serde(flatten)]
    pub sensitivities: Sensitivities,
    /// Activations of every device over time.
    pub memory: Vec<MemoryCurve>,
    /// What the figures mean.
    pub sentences: Vec<String>,
    /// Every change that was tried, with the step that it gives; `None` if none was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// What a measured step has in addition.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub measured: Option<RunDiagnosis>,
}

/// [`Bounds`] in the costs' unit.
#[derive(Clone, Debug, Serialize)]
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
#[derive(Clone, Debug, Serialize)]
pub struct BestOrder {
    pub makespan: f64,
    pub lower_bound: f64,
    /// Whether the makespan is proven to be the best.
    pub optimal: bool,
    /// Number of states that were searched.
    pub states: u64,
    /// How the ops differ from this schedule's.
    #[serde(skip)]
    pub(super) of: &'static str,
}

/// How much longer an op may last.
#[derive(Clone, Debug, Serialize)]
pub struct OpSlack {
    pub op: String,
    pub device: u32,
    pub slack: f64,
}

impl NamedBounds {
    fn new(bounds: Bounds, costs: &CostTable) -> NamedBounds {
        let unit = |ticks| costs.in_units(ticks);
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
    }
}

impl StepExplanation {
    /// Most ops of a step that is explained.
    pub const MAX_OPS: usize = 2_000_000;

    pub(super) fn new(
        predicted: &Prediction<'_>,
        sensitivities: Sensitivities,
        advice: Option<Advice>,
    ) -> StepExplanation {
        let Prediction { graph, costs, memory_cap: cap, .. } = *predicted;
        let times = predicted.op_times();
        let path = sim::critical_path(graph, costs, &times);
        let slack = |(index, slack): (usize, u64)| OpSlack {
            op: graph.op(index).to_string(),
            device: graph.device_of(index),
            slack: costs.in_units(slack),
        };
        let slacks = sim::slacks(graph, costs, &times, predicted.durations().as_deref());
        let mut explanation = StepExplanation {
            schedule: graph.schedule().name.clone(),
            devices: graph.schedule().devices(),
            microbatches: graph.schedule().microbatches,
            time_unit: costs.units.time_unit.to_string(),
            costs_assumed: costs.assumed.clone(),
            metrics: predicted.metrics().clone(),
            iteration_s: None,
            fits: None,
            bounds: NamedBounds::new(predicted.bounds, costs),
            bounds_at_own_peaks: NamedBounds::new(bounds_at_own_peaks(graph, costs), costs),
            idle: sim::explain(graph, costs, &times, cap).report(graph, costs),
            pairs: predicted.prediction.pairs.clone(),
            exact: None,
            slack: slacks.into_iter().enumerate().map(slack).collect(),
            critical_path: sim::critical_spans(graph, costs, &path),
            sensitivities,
            memory: sim::memory(graph, costs, &times, cap),
            sentences: Vec::new(),
            advice,
            measured: None,
        };
        explanation.sentences = explanation.write();
        explanation
    }

    /// Searches up to `states` states for the best order of the ops of `graph`, the step's, in which no device holds more than there.
    ///
    /// # Errors
    /// As [`exact::prove_against`].
    pub fn prove(&mut self, graph: &TaskGraph, costs: &CostTable, states: u64) -> Result<(), exact::Error> {
        let exact::Proof { objective, lower_bound, optimal, states, .. } = exact::prove_against(graph, costs, states)?;
        let unit = |ticks| costs.in_units(ticks);
        let of = match (graph.schedule().mixes_backwards(), graph.schedule().has_pairs()) {
            (true, true) => " (pairs apart, backwards split)",
            (true, false) => " (backwards split)",
            (false, true) => " (pairs apart)",
            (false, false) => "",
        };
        let (makespan, lower_bound) = (unit(objective), unit(lower_bound));
        self.exact = Some(BestOrder { makespan, lower_bound, optimal, states, of });
        self.sentences = self.write();
        Ok(())
    }

    /// Returns the tried changes that save time and need no more memory, the best first.
    pub fn suggestions(&self) -> Vec<&Change> {
        let Some(advice) = &self.advice else { return Vec::new() };
        let helps = |change: &&Change| {
            let possible = !matches!(change.what, What::Links | What::Stages);
            possible
                && change.refused.is_none()
                && change.saves > LEAST
                && change.peak_activations <= advice.limit + LEAST
        };
        let mut found: Vec<&Change> = advice.changes.iter().filter(helps).collect();
        found.sort_by(|one, other| other.saves.total_cmp(&one.saves));
        found
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

impl fmt::Display for StepExplanation {
    /// Writes the name of the schedule and the sentences, one per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.schedule)?;
        self.sentences.iter().try_for_each(|sentence| writeln!(f, "  {sentence}"))
    }
}

impl Resolved {
    /// Explains the step with the costs in `self.costs`, on the order as it is; no changes are tried.
    ///
    /// # Errors
    /// As [`Resolved::predict`].
    pub fn explain(&self) -> Result<StepExplanation, Error> {
        let name = &self.graph.schedule().name;
        let predicted = self.predict().map_err(|error| usage(format!("{name}: {error}")))?;
        let (graph, table) = (predicted.graph, predicted.costs);
        let mut list = sim::sensitivities(graph, table, predicted.durations().as_deref(), &CostShare::all(graph));
        list.sort_by(|one, other| other.percent.total_cmp(&one.percent));
        Ok(StepExplanation::new(&predicted, Sensitivities { list, order_held_fixed: true }, None))
    }
}

impl Advisor<'_> {
    /// Explains the step of the schedule requested as `name`, with every change that is tried.
    pub fn explain(&mut self, name: &str, resolved: &Resolved, predicted: &Prediction<'_>) -> StepExplanation {
        let advice = self.advise(name, resolved, predicted);
        StepExplanation::new(predicted, self.sensitivities(name, predicted), Some(advice))
    }
}

impl Selection {
    /// Explains the step of the schedule called `name`: why devices idle, what the makespan depends on, and which changes would shorten
    /// it. Every suggested change is simulated, so this takes some hundred simulations.
    ///
    /// # Errors
    /// As [`Selection::resolve`].
    pub fn explain(&self, name: &str, costs: &Costs) -> Result<StepExplanation, Error> {
        let resolved = self.resolve(name, costs)?;
        let predicted = resolved.predict().map_err(|error| usage(format!("{name}: {error}")))?;
        Ok(Advisor::new(self, costs).explain(name, &resolved, &predicted))
    }
}
