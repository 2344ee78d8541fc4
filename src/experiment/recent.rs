//! A report of the last steps of a training, beside a prediction from their own costs.

use super::results::Setting;
use super::{Calibrating, Calibration, Error, Results, Role, Steps, Training};
use crate::exec::StepRecord;
use crate::graph::TaskGraph;
use crate::report::Report;
use crate::sim::Setup;
use std::sync::Arc;

/// Reports measured steps of one schedule. The prediction is made from the costs of these steps, so it says which part of the step time
/// the schedule explains, not how well another machine or schedule is predicted.
///
/// # Errors
/// There are no steps.
pub fn report_of(
    training: &Training,
    graph: &Arc<TaskGraph>,
    records: Vec<StepRecord>,
    link: &'static str,
) -> Result<Report, Error> {
    if records.is_empty() {
        return Err(Error::Usage("expected at least 1 step to report, found 0; train for one or more".to_string()));
    }
    let run = [Steps { records, ..Steps::new(graph.clone(), Role::Calibrates) }];
    let calibrating = Calibrating::new(training, &run);
    let costs = calibrating.costs(training, &[])?;
    let schedule = graph.schedule();
    let title = format!(
        "The last {} steps: {} devices, {} micro-batches; predicted from their own costs",
        run[0].records.len(),
        schedule.devices(),
        schedule.microbatches
    );
    let mut results = Results::new(title, training, link);
    results.calibration = Some(Calibration::of(&run[0]));
    let (table, steps) = training.tables(&costs, graph)?;
    let setup = Setup { steps, memory_cap: None, machine: None };
    results.judge(&run[0], &table, &setup, (Setting::of(training, link), Some(calibrating.main())))?;
    results.tabulate();
    // A verdict is about predictions from the costs of other steps.
    results.report.verdict.clear();
    Ok(results.report)
}
