//! The step of a timeline, explained: idle time as it was measured, and everything else predicted from the step's own costs.

use super::{RunDiagnosis, StepExplanation};
use crate::advice::{Advisor, What};
use crate::resolve::{self, Costs, Resolved, Selection, Variant};
use pipesim_cost::{CostError, OpTime, TimeUnit};
use pipesim_diagnosis::{self as diagnosis, Error, Fit, MeasuredStep, findings, stage_times, trend};
use pipesim_report::{self as report, Entry, Panel};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::timeline::Timeline;
use pipesim_sim::{self as sim, Setup};

/// Why a step cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum Unexplained {
    /// Its timeline cannot be diagnosed.
    #[error(transparent)]
    Step(#[from] Error),
    /// It cannot be predicted from its own costs.
    #[error(transparent)]
    Resolve(#[from] resolve::Error),
}

impl From<CostError> for Unexplained {
    fn from(error: CostError) -> Unexplained {
        Unexplained::Step(error.into())
    }
}

/// A measured step with its explanation.
#[derive(Debug)]
pub struct ExplainedRun {
    pub explanation: StepExplanation,
    /// The step as it was measured and as it is predicted, to draw.
    pub entry: Entry,
    /// The step as it is predicted from its own costs.
    pub resolved: Resolved,
}

impl ExplainedRun {
    /// Explains the step of `timeline`. `layers` are the layers of each stage, if known. Ignores the numbers of devices and micro-batches
    /// of `selection`.
    ///
    /// # Errors
    /// A timeline that is not of a complete step, too long, in abstract units, or not of stages with these layers.
    pub fn new(
        timeline: &Timeline,
        layers: Option<&[usize]>,
        selection: &Selection,
    ) -> Result<ExplainedRun, Unexplained> {
        let ms = TimeUnit::Millisecond;
        // the unit of measured costs
        let timeline = &match TimeUnit::named(&timeline.time_unit) {
            Some(_) => Timeline { time_unit: ms.name().to_string(), unit_ns: ms.ns(), ..timeline.clone() },
            None => return Err(Error::Abstract.into()),
        };
        if timeline.ops().count() > StepExplanation::MAX_OPS {
            return Err(Error::TooLong(StepExplanation::MAX_OPS).into());
        }
        let step = MeasuredStep::new(timeline)?;
        let mut file = diagnosis::costs(&[timeline])?;
        if let Some(layers) = layers {
            file = file.with_stage_layers(layers)?;
        }
        let (fit, layers) = (Fit::new(&step, &file)?, file.stage_layers());
        let schedule = step.graph.schedule();
        let costs = Costs::measured(file, None);
        let (devices, microbatches) = (schedule.devices(), schedule.microbatches);
        let selection = Selection { devices, microbatches, ..selection.clone() };
        let (table, _) = costs.table(&schedule.name, &schedule.placement, microbatches)?;
        let setup = Setup { memory_cap: selection.memory_cap, ..Setup::default() };
        let resolved = Resolved::new(step.graph.clone(), table, setup);
        let predicted = resolved.predict().map_err(resolve::usage)?;
        let mut explanation =
            Advisor::new(&selection, &costs).explain(&known_name(&step, &selection), &resolved, &predicted);
        // With free links it would have hosts without delays, too; what messages cost is replayed.
        if let Some(advice) = &mut explanation.advice {
            advice.changes.retain(|change| change.what != What::Links);
        }
        let (graph, means, times) = (&step.graph, &step.means, &step.times);
        let path = sim::critical_path(graph, means, times);
        explanation.metrics = timeline.metrics();
        explanation.idle = sim::explain(graph, means, times, selection.memory_cap).report(graph, means);
        explanation.critical_path = sim::critical_spans(graph, means, &path);
        explanation.memory = sim::memory(graph, means, times, selection.memory_cap);
        explanation.measured = Some(RunDiagnosis {
            source: timeline.source,
            step: timeline.step,
            predicted_makespan: predicted.metrics().makespan,
            schedule_bubble: schedule_bubble(&step),
            stages: stage_times(&step),
            findings: findings(&step),
            fit,
            layers,
            trend: trend(timeline),
        });
        explanation.sentences = explanation.write();
        let (expected, found) = (Panel::predicted(&predicted), Panel::new(timeline.clone(), timeline.metrics()));
        let entry = Entry {
            name: timeline.schedule.clone(),
            error: report::compare(&expected.timeline, timeline).ok(),
            predicted: Some(expected),
            measured: Some(Panel { idle: explanation.idle.idle.clone(), ..found }),
            notes: explanation.sentences.clone(),
            ..Entry::default()
        };
        Ok(ExplainedRun { explanation, entry, resolved })
    }
}

/// Returns the name under which `selection` finds the same order, so that it can be asked for with other numbers; else the timeline's.
fn known_name(step: &MeasuredStep, selection: &Selection) -> String {
    let schedule = step.graph.schedule();
    let same = |name: &String| {
        let found = selection.graph::<resolve::Error>(name, &resolve::unknown_costs);
        let alone = |ops: &[Op]| ops.iter().map(|op| op.alone()).collect::<Vec<_>>();
        found.is_ok_and(|found| alone(found.graph.schedule().ops()) == alone(schedule.ops()))
    };
    let base = Variant::parse(&schedule.name).map_or_else(|_| schedule.name.clone(), |variant| variant.base);
    let names = [schedule.name.clone(), format!("{base}:v={}", schedule.placement.chunks())];
    names.into_iter().find(same).unwrap_or_else(|| schedule.name.clone())
}

/// Returns the bubble of the order with equal stages, free links and no host delays.
fn schedule_bubble(step: &MeasuredStep) -> f64 {
    let placement = &step.graph.schedule().placement;
    let counts = step.graph.schedule().counts();
    let mut sums = [(0_u128, 0_u128); Kind::ALL.len()];
    for op in placement.op_kinds() {
        let (sum, count) = &mut sums[op.kind() as usize];
        *sum += u128::from(counts[op.slot()]) * u128::from(step.means.of(op).duration);
        *count += u128::from(counts[op.slot()]);
    }
    let average = sums.map(|(sum, count)| sum.checked_div(count).unwrap_or(0) as u64);
    let equal = step.means.with_times(placement, |op, time| OpTime { duration: average[op.kind() as usize], ..time });
    let devices = sim::sweep(&step.graph, &equal);
    let busy: u64 = devices.iter().map(|device| device.busy).sum();
    let whole = devices.len() as f64 * pipesim_schedule::metrics::makespan(&devices) as f64;
    if whole > 0.0 { 1.0 - busy as f64 / whole } else { 0.0 }
}
