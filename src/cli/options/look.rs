//! Options that say how pictures look.

use super::values::one_of;
use crate::cli::flags::{as_flags, in_report};
use crate::cli::palettes::PALETTES;
use crate::cli::settings;
use clap::Args;
use pipesim_report::{Look, Palette, PictureColumn, Report, quantity};
use std::ops::RangeInclusive;

/// Units of length in CSS pixels, 96 per inch.
const LENGTHS: [(&str, f64); 5] =
    [("px", 1.0), ("pt", 96.0 / 72.0), ("in", 96.0), ("mm", 96.0 / 25.4), ("cm", 96.0 / 2.54)];

const COLUMNS: [(&str, PictureColumn); 8] = [
    ("makespan", PictureColumn::Makespan),
    ("iteration", PictureColumn::Iteration),
    ("bubble", PictureColumn::Bubble),
    ("span-bubble", PictureColumn::SpanBubble),
    ("bubble-over-ideal", PictureColumn::BubbleOverIdeal),
    ("lower-bound", PictureColumn::LowerBound),
    ("busy", PictureColumn::Busy),
    ("peak", PictureColumn::Peak),
];

/// Figures of pictures, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns(Vec<PictureColumn>);

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Look of pictures")]
pub struct LookOptions {
    /// Headline; '' for none
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Width of pictures, in pixels of 1/96 inch or with a unit: 317, 3.3in, 84mm [default: 1200]
    #[arg(long, value_name = "PX", value_parser = |text: &str| length(text, 200.0..=10_000.0))]
    pub width: Option<f64>,
    /// Font size in pictures, in pixels or with a unit: 11.5, 8pt [default: 11.5]
    #[arg(long, value_name = "PX", value_parser = |text: &str| length(text, 4.0..=72.0))]
    pub font_size: Option<f64>,
    /// Height of a device's ops in pictures, in pixels or with a unit: 24, 5mm [default: 3 to 18, by the number of devices]
    #[arg(long, value_name = "PX", value_parser = |text: &str| length(text, 2.0..=200.0))]
    pub row_height: Option<f64>,
    /// Figures in pictures, or none: of schedules makespan, iteration, bubble, span-bubble, bubble-over-ideal and lower-bound; of devices busy and peak [default: what the width has room for]
    #[arg(long, value_name = "NAMES", value_parser = columns)]
    pub columns: Option<Columns>,
    /// Colours of pictures and the terminal [default: default]
    #[arg(long, value_name = "NAME", value_parser = one_of(PALETTES))]
    pub palette: Option<Palette>,
    /// Leave out the curves of activation memory
    #[arg(long)]
    pub no_memory: bool,
    /// Leave out sends and waits for data
    #[arg(long)]
    pub no_waits: bool,
    /// Leave out the text around a picture: costs, notes, definitions, provenance
    #[arg(long)]
    pub no_notes: bool,
    /// Draw only this interval, in the time unit: 100..160, 100.. or ..160; HTML pages open zoomed to it
    #[arg(long, value_name = "FROM..TO", value_parser = window, conflicts_with = "collapse")]
    pub window: Option<(f64, f64)>,
    /// Draw the steady state once, with its number of repeats; no effect on HTML pages, which can zoom
    #[arg(long)]
    pub collapse: bool,
    /// Draw slow schedules to their end, even if ops get too narrow to read; compare always does
    #[arg(long, conflicts_with_all = ["window", "collapse"])]
    pub no_cut: bool,
}

/// Parses names of [`COLUMNS`], separated by commas.
fn columns(text: &str) -> Result<Columns, String> {
    let named = |name: &str| {
        let found = COLUMNS.iter().find(|(known, _)| *known == name.trim()).map(|(_, column)| *column);
        found.ok_or_else(|| {
            format!("expected none, or names of {}, found '{name}'", COLUMNS.map(|(known, _)| known).join(", "))
        })
    };
    let names = text.split(',').filter(|_| text.trim() != "none");
    let found: Vec<PictureColumn> = names.map(named).collect::<Result<_, _>>()?;
    match (1..found.len()).find(|&i| found[..i].contains(&found[i])) {
        Some(_) => Err(format!("expected each name once, found '{text}'")),
        None => Ok(Columns(found)),
    }
}

/// Parses an interval `FROM..TO` in the time unit.
fn window(text: &str) -> Result<(f64, f64), String> {
    let bounds = text.split_once("..").and_then(|(from, to)| {
        let bound = |text: &str, open: f64| if text.trim().is_empty() { Some(open) } else { text.trim().parse().ok() };
        Some((bound(from, 0.0)?, bound(to, f64::INFINITY)?))
    });
    let fitting = bounds.filter(|(from, to)| (0.0..*to).contains(from) && text.trim() != "..");
    fitting.ok_or_else(|| format!("expected an interval in the time unit, as 100..160, 100.. or ..160, found '{text}'"))
}

/// Parses a length within `range`, in CSS pixels.
fn length(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let text = text.trim();
    let unit = LENGTHS.iter().find_map(|(unit, pixels)| Some((text.strip_suffix(unit)?, pixels)));
    let (number, pixels) = unit.unwrap_or((text, &1.0));
    let found = number.trim().parse::<f64>().map(|number| number * pixels);
    let fitting = found.ok().filter(|length| range.contains(length));
    let (low, high) = (range.start(), range.end());
    fitting.ok_or_else(|| format!("expected {low} to {high} px, in px, in, mm or pt, as {low}px, found '{text}'"))
}

impl LookOptions {
    /// Applies the look to `report`, whose texts name settings as flags from here on. A window that begins after the end is dropped with a remark, so that a measurement is not lost.
    pub fn apply(&self, report: &mut Report) -> Option<String> {
        report.look = self.look();
        in_report(report);
        let panels = report.panels();
        let last = panels.max_by(|a, b| a.iteration().total_cmp(&b.iteration()));
        let end = last.filter(|panel| self.window.is_some_and(|(from, _)| from >= panel.iteration()))?;
        let end = quantity(end.iteration(), &end.timeline.time_unit);
        report.look.window = None;
        Some(format!("--window begins after the end, {end}: everything is drawn"))
    }

    pub fn look(&self) -> Look {
        Look {
            title: self.title.clone(),
            width: self.width,
            font_size: self.font_size,
            palette: self.palette.or_else(settings::palette).unwrap_or_default(),
            row_height: self.row_height,
            columns: self.columns.as_ref().map(|columns| columns.0.clone()),
            memory: !self.no_memory,
            waits: !self.no_waits,
            notes: !self.no_notes,
            window: self.window,
            collapse: self.collapse,
            cut: !self.no_cut,
            no_letters: Look::default().no_letters.map(as_flags),
            ..Look::default()
        }
    }
}
