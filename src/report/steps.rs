//! The steps of a measured run as a table.

use super::{Table, number, percent};
use pipesim_schedule::trend::{StepTrend, Trend};

/// Most steps in a table.
const SHOWN_STEPS: usize = 20;
/// Fewest steps that show a drift.
const LEAST_STEPS: usize = 5;

/// Returns a table of the steps of a run: all, or the outliers if there are many.
pub fn steps_table(schedule: &str, unit: &str, trend: &Trend) -> Table {
    let signed = |share: f64| format!("{:+.1} %", 100.0 * share);
    let few = trend.steps.len() <= SHOWN_STEPS;
    let shown: Vec<&StepTrend> = trend.steps.iter().filter(|step| few || step.is_outlier).take(SHOWN_STEPS).collect();
    let row = |step: &&StepTrend| {
        let slowest = format!("{} ({})", step.slowest, signed(step.slowest_by));
        let outlier = if step.is_outlier { "yes" } else { "" };
        vec![
            step.number.to_string(),
            number(step.makespan),
            signed(step.from_median),
            percent(step.bubble),
            slowest,
            outlier.to_string(),
        ]
    };
    let drift = match trend.steps.len() {
        0..LEAST_STEPS => String::new(),
        _ => format!(", and each takes {} more than the one before", signed(trend.drift_per_step)),
    };
    let left = if few { "" } else { " Only outliers are shown." };
    let caption = format!(
        "{} steps of {}, in {}: the median takes {}{}. slowest device: the one that computes longest, against \
         the median device.{left}",
        trend.steps.len(),
        schedule,
        if unit == "unit" { "units" } else { unit },
        number(trend.median),
        drift
    );
    let header = ["step", "makespan", "from median", "bubble", "slowest device", "outlier"];
    Table::new(caption, &header, shown.iter().map(row).collect())
}
