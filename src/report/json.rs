//! The figures as JSON, in full precision.

use super::csv::source_name;
use super::{Panel, Report};
use serde_json::{Value, json};

/// A report's figures, errors, notes and provenance as one JSON object; spans are in the timelines' own files.
pub fn json(report: &Report) -> String {
    let names = super::folder::file_names(report);
    let entries: Vec<Value> = report
        .entries
        .iter()
        .zip(names)
        .map(|(entry, name)| {
            let panel = |panel: &Option<Panel>| panel.as_ref().map(|p| panel_json(p, &name));
            json!({
                "schedule": entry.name,
                "predicted": panel(&entry.predicted),
                "measured": panel(&entry.measured),
                "error": entry.error,
                "notes": entry.notes,
            })
        })
        .collect();
    let value = json!({
        "schema_version": crate::timeline::SCHEMA_VERSION,
        "title": report.title,
        "subtitle": report.subtitle,
        "provenance": report.provenance,
        "schedules": entries,
        "tables": report.extra_tables,
    });
    format!("{value:#}\n")
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
    });
    if let (Some(all), Ok(Value::Object(metrics))) = (value.as_object_mut(), serde_json::to_value(&panel.metrics)) {
        all.extend(metrics);
    }
    value
}
