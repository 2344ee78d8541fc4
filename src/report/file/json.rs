//! The figures as JSON, in full precision.

use crate::file::csv::{held, source_name};
use crate::{Entry, Panel, Report};
use pipesim_schedule::timeline::Timeline;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Returns all timelines of a report as one JSON text.
pub fn timelines(report: &Report) -> String {
    let panels = report.panels();
    Timeline::list_to_json(&panels.map(|panel| &panel.timeline).collect::<Vec<_>>())
}

impl Report {
    /// Returns a report's figures, errors, notes and provenance as one JSON object; spans are in the timelines' own files.
    pub fn json(&self) -> String {
        format!("{:#}\n", figures(self))
    }
}

pub fn figures(report: &Report) -> Value {
    let names = file_names(report);
    let entries: Vec<Value> = report
        .entries
        .iter()
        .zip(names)
        .map(|(entry, name)| {
            let panel = |panel: &Option<Panel>| panel.as_ref().map(|p| panel_json(p, &name));
            let mut value = json!({
                "schedule": schedule(entry),
                "predicted": panel(&entry.predicted),
                "measured": panel(&entry.measured),
                "error": entry.error,
                "notes": entry.notes,
            });
            if let Some(label) = &entry.label {
                value["label"] = json!(label);
            }
            if let Some(left_out) = entry.left_out() {
                value["left_out"] = json!(left_out.why);
            }
            value
        })
        .collect();
    json!({
        "schema_version": pipesim_schedule::timeline::SCHEMA_VERSION,
        "title": report.headline(),
        "verdict": report.verdict,
        "subtitle": report.subtitle,
        "provenance": report.provenance,
        "schedules": entries,
        "tables": report.further_tables(),
    })
}

/// Returns the schedule's name, without a label.
fn schedule(entry: &Entry) -> &str {
    let panel = entry.panels().next().filter(|_| entry.label.is_some());
    panel.map_or(entry.schedule(), |panel| &panel.timeline.schedule)
}

fn panel_json(panel: &Panel, name: &str) -> Value {
    let t = &panel.timeline;
    let mut value = json!({
        "timeline": format!("{name}-{}.json", source_name(t.source)),
        "devices": t.devices,
        "chunks": t.chunks,
        "microbatches": t.microbatches,
        "time_unit": t.time_unit,
        "unit_ns": t.unit_ns,
        "keep": t.keep,
        "clock_uncertainty_ns": t.clock_uncertainty_ns,
        "iteration": panel.iteration(),
        "provenance": t.provenance,
        "memory_cap": panel.memory_cap,
        "memory": held(panel),
    });
    if let (Some(all), Ok(Value::Object(metrics))) = (value.as_object_mut(), serde_json::to_value(&panel.metrics)) {
        all.extend(metrics);
    }
    value
}

/// Returns a file stem for each entry: harmless characters, all different even on file systems that ignore case.
pub fn file_names(report: &Report) -> Vec<String> {
    let mut taken = BTreeSet::from(["report".to_string()]);
    let mut names = Vec::new();
    // By stem, the first number that may be free.
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    for entry in &report.entries {
        let mut stem: String =
            entry
                .name
                .chars()
                .map(|c| {
                    if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c.to_ascii_lowercase() } else { '-' }
                })
                .take(80)
                .collect();
        stem = stem.trim_matches(['-', '.']).to_string();
        if stem.is_empty() {
            stem = "schedule".into();
        }
        let mut name = stem.clone();
        while !taken.insert(name.clone()) {
            let count = next.entry(stem.clone()).or_insert(2);
            name = format!("{stem}-{count}");
            *count += 1;
        }
        names.push(name);
    }
    names
}
