//! The figures for spreadsheets and data frames, one line per schedule.

use crate::file::csv::field;
use crate::{Comparison, Entry, Panel, Report};
use pipesim_schedule::metrics::Metrics;
use serde::Serializer;

/// A column: its name and its value.
type Column<T> = (&'static str, fn(&T) -> Option<f64>);

/// Figures of a panel, in its time unit.
const FIGURES: [Column<Metrics>; 13] = [
    ("makespan", |m| Some(m.makespan)),
    ("span", |m| Some(m.span)),
    ("ideal", |m| Some(m.ideal)),
    ("bubble", |m| Some(m.bubble)),
    ("span_bubble", |m| Some(m.span_bubble)),
    ("bubble_over_ideal", |m| Some(m.bubble_over_ideal)),
    ("efficiency", |m| Some(m.efficiency)),
    ("lower_bound", |m| m.lower_bound),
    ("gap_to_bound", |m| m.gap_to_bound),
    ("peak_activations", |m| Some(m.peak_activations())),
    ("lower_bound_if_split", |m| m.lower_bound_if_split),
    ("typical_speed_makespan", |m| m.typical_speed.map(|typical| typical.makespan)),
    ("typical_speed_gap_to_bound", |m| m.typical_speed.and_then(|typical| typical.gap_to_bound)),
];

/// Writes a number in full precision; none as an empty cell.
fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Returns comma-separated values, one line per schedule. If anything was measured, the measurement and the
/// prediction's error follow the prediction.
pub fn figures(report: &Report) -> String {
    let rows = FigureRows::of(&report.entries);
    let mut text = rows.header();
    for (entry, best) in report.entries.iter().zip(report.best()) {
        text += &rows.row(entry, &best);
    }
    text
}

/// The lines of figures, which can be written entry by entry.
pub struct FigureRows {
    measured: bool,
    compared: bool,
    /// Columns of figures over all steps.
    steps: Vec<&'static str>,
    /// Whether it is known in what no published step is like a prediction.
    outside: bool,
}

impl FigureRows {
    /// Returns the lines with the columns that `entries` need.
    pub fn of(entries: &[Entry]) -> FigureRows {
        let mut steps: Vec<&str> = Vec::new();
        for (name, _) in entries.iter().flat_map(|entry| &entry.over_steps) {
            if !steps.contains(name) {
                steps.push(name);
            }
        }
        let measured = entries.iter().any(|entry| entry.measured.is_some());
        let outside = entries.iter().any(|entry| entry.outside.is_some());
        FigureRows { measured, compared: entries.iter().any(|entry| entry.point.is_some()), steps, outside }
    }

    pub fn header(&self) -> String {
        let mut header: Vec<String> =
            ["schedule", "devices", "chunks", "microbatches", "time_unit"].map(str::to_string).into();
        header.extend(FIGURES.iter().map(|(name, _)| (*name).to_string()));
        if self.measured {
            header.extend(FIGURES.iter().map(|(name, _)| format!("measured_{name}")));
            header.push("measured_iteration".to_string());
            header.extend(ERRORS.iter().map(|(name, _)| format!("error_{name}")));
        }
        header.extend(self.steps.iter().map(|name| (*name).to_string()));
        header.extend(self.outside.then(|| "outside".to_string()));
        header.extend(["best", "left_out"].into_iter().filter(|_| self.compared).map(str::to_string));
        header.join(",") + "\n"
    }

    /// Returns the line of an entry that is the best in the figures `best`.
    pub fn row(&self, entry: &Entry, best: &[&str]) -> String {
        let mut cells = row(entry, self.measured, &self.steps);
        cells.extend(self.outside.then(|| field(entry.outside.as_deref().unwrap_or_default())));
        if self.compared {
            cells.extend([best.join(" "), entry.left_out().map_or_else(String::new, |left_out| field(&left_out.why))]);
        }
        cells.join(",") + "\n"
    }
}

/// How far the prediction is from what was measured.
const ERRORS: [Column<Comparison>; 7] = [
    ("makespan", |e| Some(e.makespan)),
    ("noise", |e| e.noise),
    ("iteration", |e| e.iteration),
    ("period", |e| e.period),
    ("bubble", |e| Some(e.bubble)),
    ("op_start_p95", |e| Some(e.op_start_p95)),
    ("self_replay", |e| e.self_replay),
];

impl Comparison {
    /// Serializes the figures without the durations, times per device and distribution.
    pub fn serialize_figures<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(ERRORS.iter().filter_map(|(name, figure)| Some((name, figure(self)?))))
    }
}

fn row(entry: &Entry, measured: bool, steps: &[&str]) -> Vec<String> {
    let mut cells = vec![field(entry.schedule())];
    let head = |panel: &Panel| {
        let t = &panel.timeline;
        [t.devices.to_string(), t.chunks.to_string(), t.microbatches.to_string(), field(&t.time_unit)]
    };
    let numbers = entry.point.as_ref().map_or_else(Default::default, |point| {
        [point.devices.to_string(), String::new(), point.microbatches.to_string(), String::new()]
    });
    cells.extend(entry.panels().next().map_or(numbers, head));
    let of = |panel: &Option<Panel>| FIGURES.map(|(_, figure)| number(panel.as_ref().and_then(|p| figure(&p.metrics))));
    cells.extend(of(&entry.predicted));
    if measured {
        cells.extend(of(&entry.measured));
        cells.push(number(entry.measured.as_ref().map(Panel::iteration)));
        cells.extend(ERRORS.map(|(_, error)| number(entry.error.as_ref().and_then(error))));
    }
    let over_steps = |name: &&str| entry.over_steps.iter().find(|(own, _)| own == name).map(|&(_, value)| value);
    cells.extend(steps.iter().map(|name| number(over_steps(name))));
    cells
}
