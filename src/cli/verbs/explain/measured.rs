//! The step of a timeline, explained: idle time as it was measured, and everything else predicted from the step's own costs.

use super::explained::Explained;
use super::run::Measured;
use super::{Explain, MAX_OPS};
use crate::cli::Failure;
use crate::cli::options::costs::read_text;
use crate::cli::sandbox::Sandbox;
use pipesim_answer::advice::{Advisor, What};
use pipesim_answer::diagnosis::{self, Fit, MeasuredStep, findings, stage_times, trend};
use pipesim_answer::resolve::{Costs, Resolved, Selection, Variant};
use pipesim_cost::{CostFile, TimeUnit};
use pipesim_report::{self as report, Entry, Panel};
use pipesim_schedule::timeline::Timeline;
use pipesim_sim::{self as sim, Setup};
use std::path::Path;

impl Explain {
    /// Explains every timeline of the file at `path`.
    pub(super) fn timelines(&self, path: &Path) -> Result<Vec<(Explained, Entry)>, Failure> {
        let text = read_text(path, 4 << 30)?;
        let at = |error: String| Failure::Usage(format!("{}: {error}", path.display()));
        let timelines = Timeline::list_from_json(&text).map_err(|error| at(error.to_string()))?;
        let named = |failure| match failure {
            Failure::Usage(text) => at(text),
            other => other,
        };
        timelines.iter().map(|timeline| self.explained_run(&in_ms(timeline)?).map_err(named)).collect()
    }

    fn explained_run(&self, timeline: &Timeline) -> Result<(Explained, Entry), Failure> {
        if timeline.ops().count() > MAX_OPS {
            return Err(Failure::Usage(format!(
                "expected a step of at most {MAX_OPS} ops, found more; explain a smaller one"
            )));
        }
        let step = MeasuredStep::new(timeline).map_err(Failure::usage)?;
        let layers = self.costs.layers.as_deref();
        let file = with_layers(diagnosis::costs(&[timeline]).map_err(Failure::usage)?, layers)?;
        let fit = Fit::new(&step, &file).map_err(Failure::usage)?;
        let own_layers = file.stage_layers();
        let schedule = step.graph.schedule();
        let costs = Costs::measured(file, None);
        let selection = Selection {
            devices: schedule.devices(),
            microbatches: schedule.microbatches,
            ..self.schedules.question().selection(&Sandbox)?
        };
        let (table, _) = costs.table(&schedule.name, &schedule.placement, schedule.microbatches)?;
        let setup = Setup { memory_cap: selection.memory_cap, ..Setup::default() };
        let resolved = Resolved {
            graph: step.graph.clone(),
            costs: table,
            setup,
            warnings: Vec::new(),
            balance: None,
            chosen: None,
        };
        let predicted = resolved.predict()?;
        let _busy = self.remarks.busy(&format!("explaining {}", schedule.name), None);
        let name = known_name(&step, &selection);
        let mut advisor = Advisor::new(&selection, &costs);
        let mut advice = advisor.advise(&name, &resolved, &predicted);
        // With free links it would have hosts without delays, too; what messages cost is replayed.
        advice.changes.retain(|change| change.what != What::Links);
        let sensitivities = advisor.sensitivities(&name, &predicted);
        let mut explained = Explained::new(&predicted, advice, sensitivities, self.exact, self.remarks)?;
        let path = sim::critical_path(&step.graph, &step.means, &step.times);
        explained.metrics = timeline.metrics();
        explained.idle =
            sim::explain(&step.graph, &step.means, &step.times, selection.memory_cap).report(&step.graph, &step.means);
        explained.critical_path = sim::critical_spans(&step.graph, &step.means, &path);
        explained.memory = sim::memory(&step.graph, &step.means, &step.times, selection.memory_cap);
        explained.measured = Some(Measured {
            source: timeline.source,
            step: timeline.step,
            predicted_makespan: predicted.metrics().makespan,
            schedule_bubble: schedule_bubble(&step),
            stages: stage_times(&step),
            findings: findings(&step),
            fit,
            layers: own_layers,
            trend: trend(timeline),
        });
        explained.sentences = explained.write_measured();
        let idle = explained.idle.idle.clone();
        let (expected, found) = (Panel::predicted(&predicted), Panel::new(timeline.clone(), timeline.metrics()));
        let entry = Entry {
            name: timeline.schedule.clone(),
            error: report::compare(&expected.timeline, timeline).ok(),
            predicted: Some(expected),
            measured: Some(Panel { idle, ..found }),
            notes: explained.sentences.clone(),
            ..Entry::default()
        };
        Ok((explained, entry))
    }
}

/// Returns the timeline in milliseconds, the unit of measured costs.
fn in_ms(timeline: &Timeline) -> Result<Timeline, Failure> {
    if TimeUnit::named(&timeline.time_unit).is_none() {
        return Err(Failure::Usage(
            "expected times in ns, us, ms or s, found abstract units; explain such a step from its costs, as in --stages 4 --micro 8 --costs \
             F=1,I=1,W=1"
                .to_string(),
        ));
    }
    let ms = TimeUnit::Millisecond;
    Ok(Timeline { time_unit: ms.name().to_string(), unit_ns: ms.ns(), ..timeline.clone() })
}

/// Returns the costs with the layers of --layers.
pub fn with_layers(file: CostFile, layers: Option<&[usize]>) -> Result<CostFile, Failure> {
    match layers {
        Some(layers) => file.with_stage_layers(layers).map_err(Failure::usage),
        None => Ok(file),
    }
}

/// Returns the name under which `selection` finds the same order, so that it can be asked for with other numbers; else the timeline's.
fn known_name(step: &MeasuredStep, selection: &Selection) -> String {
    let schedule = step.graph.schedule();
    let same = |name: &String| {
        let found =
            selection.graph::<pipesim_answer::resolve::Error>(name, &pipesim_answer::resolve::unknown_costs).ok()?;
        let other = found.graph.schedule();
        let alone = |ops: &[pipesim_schedule::op::Op]| ops.iter().map(|op| op.alone()).collect::<Vec<_>>();
        (alone(other.ops()) == alone(schedule.ops())).then_some(())
    };
    let base = Variant::parse(&schedule.name).map_or_else(|_| schedule.name.clone(), |variant| variant.base);
    let names = [schedule.name.clone(), format!("{base}:v={}", schedule.placement.chunks())];
    names.into_iter().find(|name| same(name).is_some()).unwrap_or_else(|| schedule.name.clone())
}

/// Returns the bubble of the order with equal stages, free links and no host delays.
fn schedule_bubble(step: &MeasuredStep) -> f64 {
    let placement = &step.graph.schedule().placement;
    let counts = step.graph.schedule().counts();
    let mut sums = [(0_u128, 0_u128); pipesim_schedule::op::Kind::ALL.len()];
    for op in placement.op_kinds() {
        let (sum, count) = &mut sums[op.kind() as usize];
        *sum += u128::from(counts[op.slot()]) * u128::from(step.means.of(op).duration);
        *count += u128::from(counts[op.slot()]);
    }
    let average = sums.map(|(sum, count)| sum.checked_div(count).unwrap_or(0) as u64);
    let equal = step
        .means
        .with_times(placement, |op, time| pipesim_cost::OpTime { duration: average[op.kind() as usize], ..time });
    let devices = sim::sweep(&step.graph, &equal);
    let busy: u64 = devices.iter().map(|device| device.busy).sum();
    let whole = devices.len() as f64 * pipesim_schedule::metrics::makespan(&devices) as f64;
    if whole > 0.0 { 1.0 - busy as f64 / whole } else { 0.0 }
}
