//! Why a step takes as long as it does, and what would shorten it.

use crate::advice::{Advice, Advisor, Change, LEAST, Sensitivities, What};
use crate::resolve::{Costs, Error, Resolved, Selection};
use pipesim_schedule::metrics::Metrics;
use pipesim_sim::{self as sim, CostShare, CriticalSpan, IdleReport, MemoryCurve};
use serde::Serialize;
use std::fmt;

/// The explanation of one schedule's predicted step. Times are in the unit of its costs.
#[derive(Clone, Debug, Serialize)]
pub struct StepExplanation {
    pub schedule: String,
    /// `unit` or `ms`.
    pub time_unit: String,
    /// Makespan, bubble and peak activations.
    pub metrics: Metrics,
    /// Idle time of every device by cause.
    pub idle: IdleReport,
    /// One chain of ops, transfers and overheads from the start of the step to its end, without a gap.
    pub critical_path: Vec<CriticalSpan>,
    /// How much the makespan shrinks if one part gets one percent faster.
    pub sensitivities: Sensitivities,
    /// Activations of every device over time.
    pub memory: Vec<MemoryCurve>,
    /// Every change that was tried, with the step that it gives.
    pub advice: Advice,
}

impl StepExplanation {
    /// Returns the tried changes that save time and need no more memory, the best first.
    pub fn suggestions(&self) -> Vec<&Change> {
        let helps = |change: &&Change| {
            let possible = !matches!(change.what, What::Links | What::Stages);
            possible && change.saves > LEAST && change.peak_activations <= self.advice.limit + LEAST
        };
        let mut found: Vec<&Change> = self.advice.changes.iter().filter(helps).collect();
        found.sort_by(|one, other| other.saves.total_cmp(&one.saves));
        found
    }
}

impl fmt::Display for StepExplanation {
    /// Writes the makespan, the idle time by cause and the three best suggestions, one per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, percent) = (self.idle.total, |share: f64| 100.0 * share);
        let Metrics { makespan, bubble, .. } = &self.metrics;
        let idle = percent(*bubble);
        writeln!(f, "{} takes {makespan:.3} {}; devices idle {idle:.1} % of it", self.schedule, self.time_unit)?;
        let causes = [
            ("fill", total.fill),
            ("drain", total.drain),
            ("dependence", total.dependence),
            ("communication", total.communication),
            ("imbalance", total.imbalance),
            ("memory", total.memory),
            ("order", total.order),
        ];
        for (cause, time) in causes.into_iter().filter(|(_, time)| *time > 0.0) {
            writeln!(f, "  {cause}: {:.1} % of the idle time", percent(time / total.idle))?;
        }
        for change in self.suggestions().into_iter().take(3) {
            writeln!(f, "  try {change}")?;
        }
        Ok(())
    }
}

impl Resolved {
    /// Explains the step with the costs in `self.costs`, on the order as it is; no changes are tried.
    ///
    /// # Errors
    /// As [`Resolved::predict`].
    pub fn explain(&self) -> Result<StepExplanation, Error> {
        let name = &self.graph.schedule().name;
        let predicted = self.predict().map_err(|error| Error::Usage(format!("{name}: {error}")))?;
        let (graph, table, cap) = (predicted.graph, predicted.costs, predicted.memory_cap);
        let times = predicted.op_times();
        let path = sim::critical_path(graph, table, &times);
        let mut list = sim::sensitivities(graph, table, predicted.durations().as_deref(), &CostShare::all(graph));
        list.sort_by(|one, other| other.percent.total_cmp(&one.percent));
        let limit = cap.unwrap_or_else(|| graph.schedule().peak(table.keep));
        Ok(StepExplanation {
            schedule: name.clone(),
            time_unit: table.units.time_unit.to_string(),
            metrics: predicted.metrics().clone(),
            idle: sim::explain(graph, table, &times, cap).report(graph, table),
            critical_path: sim::critical_spans(graph, table, &path),
            sensitivities: Sensitivities { list, order_held_fixed: true },
            memory: sim::memory(graph, table, &times, cap),
            advice: Advice { limit, changes: Vec::new(), untried: 0 },
        })
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
        let predicted = resolved.predict().map_err(|error| Error::Usage(format!("{name}: {error}")))?;
        let mut advisor = Advisor::new(self, costs);
        let advice = advisor.advise(name, &resolved, &predicted);
        let sensitivities = advisor.sensitivities(name, &predicted);
        Ok(StepExplanation { sensitivities, advice, ..resolved.explain()? })
    }
}
