//! What changed between two predictions, and what that gained.

use crate::{Entry, Panel, Report, changed, gibibytes, number, percent, quantity};
use pipesim_schedule::timeline::{Source, Timeline};
use std::collections::{BTreeMap, BTreeSet};

/// Key of a timeline's provenance: the options that were asked, in TOML.
pub const QUESTION: &str = "question";
/// Key of a timeline's provenance: bytes that the fullest GPU holds.
pub const MEMORY: &str = "memory_bytes";

/// Settings that say nothing about the prediction.
const OF_FILES: [&str; 2] = ["version", "only"];

impl Report {
    /// Returns the report of two timelines: their entries, and what changed in its texts.
    pub fn of_change(before: Timeline, after: Timeline) -> Report {
        let subtitle = differences(&before, &after);
        let entries = [("before", before), ("after", after)].map(|(name, timeline)| {
            let metrics = timeline.metrics();
            let name = format!("{name}: {}", timeline.schedule);
            let is_measured = timeline.source == Source::Measured;
            let panel = Some(Panel::new(timeline, metrics));
            match is_measured {
                true => Entry { name, measured: panel, ..Entry::default() },
                false => Entry { name, predicted: panel, ..Entry::default() },
            }
        });
        let gained = gained(&entries);
        let mut report = Report { entries: entries.into(), ..Report::default() };
        report.title = report.headline_of("What changed");
        report.subtitle = format!("{subtitle}. {gained}");
        report.verdict = report.subtitle.clone();
        report
    }
}

/// Says which settings of the two questions differ.
fn differences(before: &Timeline, after: &Timeline) -> String {
    let [old, new] = [before, after].map(settings);
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let shown = |of: &BTreeMap<String, String>, name: &str| of.get(name).map_or("default".to_string(), String::clone);
    let differing = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    let texts: Vec<String> =
        differing.map(|name| format!("{name} {} to {}", shown(&old, name), shown(&new, name))).collect();
    match texts.is_empty() {
        true => "No setting that the files know differs".to_string(),
        false => format!("Changed: {}", texts.join(", ")),
    }
}

/// Returns the settings of a timeline's question by name; without one, its sizes.
fn settings(timeline: &Timeline) -> BTreeMap<String, String> {
    let question = timeline.provenance.get(QUESTION).map(String::as_str).unwrap_or_default();
    let lines = question.lines().filter_map(|line| line.split_once(" = "));
    let asked = lines.filter(|(name, _)| !OF_FILES.contains(name));
    let mut all: BTreeMap<String, String> =
        asked.map(|(name, value)| (name.to_string(), value.trim_matches('"').to_string())).collect();
    // What the options led to: a schedule may be the best of several.
    all.insert("schedule".to_string(), timeline.schedule.clone());
    for (name, value) in [("stages", timeline.devices), ("micro", timeline.microbatches), ("chunks", timeline.chunks)] {
        all.insert(name.to_string(), value.to_string());
    }
    all
}

/// Says what the second of two entries gains: time, bubble and memory.
fn gained(entries: &[Entry; 2]) -> String {
    let panels = entries.each_ref().map(|entry| entry.panels().next());
    let [Some(before), Some(after)] = panels else { return String::new() };
    let whole = entries.each_ref().map(Entry::iteration);
    let (name, times) = match whole {
        [Some(before), Some(after)] => ("iteration", [before, after]),
        _ => ("makespan", [before.metrics.makespan, after.metrics.makespan]),
    };
    let [old, new] = times;
    let (unit, share) = (&after.timeline.time_unit, new / old - 1.0);
    let direction = if new <= old { "shorter" } else { "longer" };
    let difference = match changed(share).as_str() {
        "+0.0 %" | "−0.0 %" => format!("The {name} is equal"),
        share => format!("The {name} is {} {direction} ({share})", quantity((new - old).abs(), unit)),
    };
    let bytes = |panel: &Panel| panel.timeline.provenance.get(MEMORY)?.parse::<u64>().ok();
    let peak = |panel: &Panel| panel.metrics.per_device.iter().map(|one| one.peak_activations).fold(0.0, f64::max);
    let memory = match (bytes(before), bytes(after)) {
        (Some(old), Some(new)) => format!("memory {} to {}", gibibytes(old), gibibytes(new)),
        _ => format!("peak activations {} to {}", number(peak(before)), number(peak(after))),
    };
    format!("{difference}; bubble {} to {}, {memory}.", percent(before.metrics.bubble), percent(after.metrics.bubble),)
}
