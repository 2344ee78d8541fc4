//! How what is drawn looks: options of every verb that writes pictures.

use super::choice::one_of;
use crate::report::{Entry, Look, Palette, Report, quantity};
use clap::Args;
use std::ops::RangeInclusive;

/// CSS pixels by unit of length: an inch has 96 of them.
const LENGTHS: [(&str, f64); 5] =
    [("px", 1.0), ("pt", 96.0 / 72.0), ("in", 96.0), ("mm", 96.0 / 25.4), ("cm", 96.0 / 2.54)];

const PALETTES: [(&str, &str, Palette); 3] = [
    ("default", "Blue, teal, green, orange, as papers have them", Palette::Default),
    ("colour-blind|color-blind", "Further apart for readers without red or green cones", Palette::ColourBlind),
    ("grey|gray", "For print without colours", Palette::Grey),
];

/// How pictures look.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Look of pictures")]
pub struct LookOptions {
    /// The headline; '' for none
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Width of pictures, in pixels of 1/96 inch or with a unit: 317, 3.3in, 84mm [default: 1200]
    #[arg(long, value_name = "PX", value_parser = |text: &str| length(text, 200.0..=10_000.0))]
    pub width: Option<f64>,
    /// Size of most texts of pictures, in pixels or with a unit: 11.5, 8pt [default: 11.5]
    #[arg(long, value_name = "PX", value_parser = |text: &str| length(text, 4.0..=72.0))]
    pub font_size: Option<f64>,
    /// Colours of what is drawn [default: default]
    #[arg(long, value_name = "NAME", value_parser = one_of(PALETTES))]
    pub palette: Option<Palette>,
    /// Leave out the activations held
    #[arg(long)]
    pub no_memory: bool,
    /// Leave out sends and waits for data
    #[arg(long)]
    pub no_waits: bool,
    /// Leave out the texts around a picture: costs, notes, what its figures are, what made it
    #[arg(long)]
    pub no_notes: bool,
    /// Draw only this part of the time, in the time unit: 100..160, 100.. or ..160; pages show it first
    #[arg(long, value_name = "FROM..TO", value_parser = window)]
    pub window: Option<(f64, f64)>,
    /// Draw the steady state once, with the count of its repeats; pages zoom instead
    #[arg(long)]
    pub collapse: bool,
}

/// A part of the time: from and to, in the time unit.
fn window(text: &str) -> Result<(f64, f64), String> {
    let bounds = text.split_once("..").and_then(|(from, to)| {
        let bound = |text: &str, open: f64| if text.trim().is_empty() { Some(open) } else { text.trim().parse().ok() };
        Some((bound(from, 0.0)?, bound(to, f64::INFINITY)?))
    });
    let fitting = bounds.filter(|(from, to)| (0.0..*to).contains(from) && text.trim() != "..");
    fitting.ok_or_else(|| {
        format!("expected a time, .. and a later one, in the time unit, as 100..160, 100.. or ..160, found '{text}'")
    })
}

/// A length in CSS pixels that lies in `range`.
fn length(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let text = text.trim();
    let unit = LENGTHS.iter().find_map(|(unit, pixels)| Some((text.strip_suffix(unit)?, pixels)));
    let (number, pixels) = unit.unwrap_or((text, &1.0));
    let found = number.trim().parse::<f64>().map(|number| number * pixels);
    let fitting = found.ok().filter(|length| range.contains(length));
    let (low, high) = (range.start(), range.end());
    fitting
        .ok_or_else(|| format!("expected a length from {low} to {high} px, as {low}, 3.3in, 84mm, 8pt, found '{text}'"))
}

impl LookOptions {
    /// Has `report` drawn so. A window in which nothing of it lies is left out, and said so: what was measured is not lost for it.
    pub fn apply(&self, report: &mut Report) -> Option<String> {
        report.look = self.look();
        let panels = report.entries.iter().flat_map(Entry::panels);
        let last = panels.max_by(|a, b| a.iteration().total_cmp(&b.iteration()));
        let end = last.filter(|panel| self.window.is_some_and(|(from, _)| from >= panel.iteration()))?;
        let end = quantity(end.iteration(), &end.timeline.time_unit);
        report.look.window = None;
        Some(format!("--window begins after the end, {end}: everything is drawn"))
    }

    /// The same for a report.
    pub fn look(&self) -> Look {
        Look {
            title: self.title.clone(),
            width: self.width,
            font_size: self.font_size,
            palette: self.palette.unwrap_or_default(),
            memory: !self.no_memory,
            waits: !self.no_waits,
            notes: !self.no_notes,
            window: self.window,
            collapse: self.collapse,
            ..Look::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_a_start_before_their_end() {
        for (text, bounds) in [
            ("100..160", (100.0, 160.0)),
            ("2.5..", (2.5, f64::INFINITY)),
            ("..1e3", (0.0, 1000.0)),
            (" 0 .. 1 ", (0.0, 1.0)),
        ] {
            assert_eq!(window(text), Ok(bounds), "{text}");
        }
        for text in ["", "..", "100", "160..100", "5..5", "-1..5", "nan..5", "1..nan", "inf..", "1...5..9", "1ms..5ms"]
        {
            assert!(window(text).is_err_and(|why| why.contains(&format!("'{text}'"))), "{text}");
        }
    }

    #[test]
    fn lengths_have_units() {
        for (text, pixels) in [("320", 320.0), ("3.5in", 336.0), ("254 mm", 960.0), ("25.4cm", 960.0), ("300pt", 400.0)]
        {
            assert!(length(text, 200.0..=10_000.0).is_ok_and(|found| (found - pixels).abs() < 1e-9), "{text}");
        }
        for text in ["", "px", "-300", "nan", "inf", "199", "10001", "3e2e", "1e400", "300em"] {
            assert!(length(text, 200.0..=10_000.0).is_err_and(|why| why.contains(&format!("'{text}'"))), "{text}");
        }
    }
}
