//! Headlines that say what was asked, how long a step takes, and by how much schedules differ.

use crate::{Entry, Report, changed, quantity};

/// Most schedules in a headline.
const MOST: usize = 4;

impl Entry {
    /// Returns the time of a whole step, in the unit of its timeline, if it is known: of a model on hardware, step ops and
    /// everything that the pipeline does not show included.
    pub fn iteration(&self) -> Option<f64> {
        let panel = self.panels().next()?;
        let found = |name: &str| self.over_steps.iter().find(|(own, _)| *own == name).map(|&(_, value)| value);
        let saved = || panel.timeline.provenance.get(ITERATION)?.parse().ok();
        let seconds = found(ITERATION).or_else(saved).map(|s: f64| s * 1e9 / panel.timeline.unit_ns.max(1) as f64);
        seconds.or_else(|| found("iteration"))
    }
}

/// Name of the whole step's time in seconds, as a figure and in a timeline's provenance.
pub const ITERATION: &str = "iteration_s";

impl Report {
    /// Returns `asked`, then the time of each schedule and its difference from the first: `tp 2 · pp 4: 1f1b 8,053 ms, zb-v
    /// 7,790 ms (−3.3 %)`. Whole steps are compared if all are known, else makespans.
    pub fn headline_of(&self, asked: &str) -> String {
        let entries: Vec<&Entry> = self.entries.iter().filter(|entry| entry.panels().next().is_some()).collect();
        if entries.is_empty() || entries.len() > MOST {
            return asked.to_string();
        }
        let whole = entries.iter().all(|entry| entry.iteration().is_some());
        let time = |entry: &Entry| {
            let panel = entry.panels().next()?;
            let time = entry.iteration().filter(|_| whole).unwrap_or(panel.metrics.makespan);
            Some((time, panel.timeline.time_unit.clone()))
        };
        let first = entries.first().and_then(|entry| time(entry));
        let shown = entries.iter().enumerate().filter_map(|(number, entry)| {
            let (value, unit) = time(entry)?;
            let (of_first, _) = first.clone().filter(|(time, of)| number > 0 && *time > 0.0 && *of == unit).unzip();
            let difference = of_first.map_or_else(String::new, |first| match changed(value / first - 1.0).as_str() {
                "+0.0 %" | "−0.0 %" => " (equal)".to_string(),
                share => format!(" ({share})"),
            });
            let fits = if entry.fits == Some(false) { ", does not fit" } else { "" };
            Some(format!("{} {}{difference}{fits}", entry.name, quantity(value, &unit)))
        });
        let shown: Vec<String> = shown.collect();
        format!("{asked}: {}", shown.join(", "))
    }
}
