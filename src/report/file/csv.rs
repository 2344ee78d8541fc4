//! One line per span, for spreadsheets and data frames.

use crate::scene::rows::{activations, rows};
use crate::{Entry, Panel, Report};
use pipesim_schedule::op::Op;
use pipesim_schedule::timeline::{Queue, Source};
use std::fmt::Write;

impl Report {
    /// Returns comma-separated values (RFC 4180): one line per span, times in full precision in the timeline's unit.
    pub fn csv(&self) -> String {
        let rows = SpanRows { are_cut: self.panels().any(|panel| panel.timeline.slices.len() > 1) };
        let mut out = rows.header();
        self.entries.iter().for_each(|entry| rows.write(entry, &mut out));
        out
    }
}

/// The lines of spans, which can be written entry by entry.
#[derive(Clone, Copy, Debug)]
pub struct SpanRows {
    /// Whether there is a column for slices: only if a schedule has them.
    pub are_cut: bool,
}

impl SpanRows {
    pub fn header(self) -> String {
        let column = if self.are_cut { "slice," } else { "" };
        format!("schedule,source,device,queue,op,kind,stage,microbatch,{column}phase,start,end,unit\r\n")
    }

    /// Appends the lines of an entry to `out`.
    pub fn write(self, entry: &Entry, out: &mut String) {
        let schedule = field(&entry.name);
        for panel in entry.panels() {
            let t = &panel.timeline;
            let (source, unit) = (source_name(t.source), field(&t.time_unit));
            for span in &t.spans {
                let op: Option<Op> = span.op.parse().ok();
                let kind = op.map(|op| op.kind().letter().to_string()).unwrap_or_default();
                let stage = op.map(|op| op.stage().to_string()).unwrap_or_default();
                let microbatch = op.map(|op| op.microbatch().to_string()).unwrap_or_default();
                let slice = op.and_then(Op::slice).map(|slice| slice.to_string()).unwrap_or_default();
                let slice = if self.are_cut { format!("{slice},") } else { String::new() };
                let time = |ns: u64| ns as f64 / t.unit_ns.max(1) as f64;
                let _ = write!(
                    out,
                    "{schedule},{source},{},{},{},{kind},{stage},{microbatch},{slice}{},{},{},{unit}\r\n",
                    span.device,
                    queue_name(span.queue),
                    field(&span.op),
                    field(span.phase.as_deref().unwrap_or("")),
                    time(span.start_ns),
                    time(span.end_ns),
                );
            }
        }
    }
}

/// Returns the activations held over time (RFC 4180): one line per change, times in full precision in the timeline's
/// unit.
pub fn memory_csv(report: &Report) -> String {
    let mut out = String::from("schedule,source,device,time,held,cap,unit\r\n");
    for entry in &report.entries {
        let schedule = field(&entry.name);
        for panel in entry.panels() {
            let (source, unit) = (source_name(panel.timeline.source), field(&panel.timeline.time_unit));
            let cap = panel.memory_cap.map(|cap| cap.to_string()).unwrap_or_default();
            for (device, levels) in held(panel).into_iter().enumerate() {
                for (time, held) in levels {
                    let _ = write!(out, "{schedule},{source},{device},{time},{held},{cap},{unit}\r\n");
                }
            }
        }
    }
    out
}

/// Returns by device: time in the timeline's unit, and the activations held from then on.
pub fn held(panel: &Panel) -> Vec<Vec<(f64, f64)>> {
    let time = |ns: u64| ns as f64 / panel.timeline.unit_ns.max(1) as f64;
    let levels = |row| activations(&panel.timeline, row).into_iter().map(|(ns, held)| (time(ns), held)).collect();
    rows(&panel.timeline).iter().map(levels).collect()
}

pub fn field(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) || text.starts_with(' ') || text.ends_with(' ') {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

/// The name in the timeline's JSON.
pub fn source_name(source: Source) -> &'static str {
    match source {
        Source::Predicted => "predicted",
        Source::Measured => "measured",
    }
}

/// The name in the timeline's JSON.
pub fn queue_name(queue: Queue) -> &'static str {
    match queue {
        Queue::Compute => "compute",
        Queue::Send => "send",
        Queue::Receive => "receive",
        Queue::Copy => "copy",
        Queue::Collective => "collective",
    }
}
