//! The HTML page: template, scripts and data in one file that needs no network.

use crate::scene::axis::Scale;
use crate::scene::palette::{Class, SHADES, hex};
use crate::scene::rows::{Mark, Row, activations, lane_marks, lane_names, rows};
use crate::text::{escape, plain};
use crate::{Entry, Panel, Report};
use pipesim_cost::gcd;
use pipesim_schedule::op::{Kind, Op};
use pipesim_sim::{Cause, IdleSpan};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 13] = [
    include_str!("lanes.js"),
    include_str!("data.js"),
    include_str!("why.js"),
    include_str!("strip.js"),
    include_str!("pen.js"),
    include_str!("svg.js"),
    include_str!("bands.js"),
    include_str!("paint.js"),
    include_str!("facts.js"),
    include_str!("view.js"),
    include_str!("card.js"),
    include_str!("save.js"),
    include_str!("page.js"),
];

impl Report {
    /// Returns a page that opens from disk in any browser, without a server or network.
    pub fn html(&self) -> String {
        let title = if self.headline().is_empty() { "pipesim report" } else { self.headline() };
        let parts = [
            ("{{title}}", &*escape(title)),
            ("{{style}}", STYLE),
            ("{{data}}", &inside_script(&data(self))),
            ("{{script}}", &SCRIPTS.concat()),
        ];
        filled(PAGE, &parts)
    }
}

/// Fills the placeholders of a template, in their order. They are looked for in the template only, so inserted text cannot contain one.
pub fn filled(template: &str, parts: &[(&str, &str)]) -> String {
    let (mut out, mut rest) = (String::new(), template);
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        out.push_str(before);
        out.push_str(text);
        rest = after;
    }
    out + rest
}

/// Escapes JSON so that it cannot end its `<script>` element: `<`, `>`, `&` and line separators.
pub fn inside_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

fn data(report: &Report) -> String {
    let scale = Scale::of_all(report, f64::INFINITY, 0.0);
    let kinds: Vec<Value> = Kind::ALL.map(|kind| json!([kind.name(), kind.letter()])).to_vec();
    let classes: Vec<Value> = Class::all()
        .into_iter()
        .map(|class| {
            let mut shades: Vec<Value> = (0..SHADES)
                .map(|shade| {
                    let tone = report.look.palette.tone(class, shade);
                    Value::from([tone.color, tone.text, tone.ground, tone.line].map(hex).to_vec())
                })
                .collect();
            shades.dedup(); // one if chunks look alike
            json!({"name": class.name(), "letter": class.letter(), "shades": shades, "hatch": report.look.palette.tone(class, 0).hatch.mark()})
        })
        .collect();
    let capped = report.panels().any(|panel| panel.memory_cap.is_some());
    let is_measured = report.panels().any(|panel| panel.idle.iter().any(|idle| !idle.cause.is_predicted()));
    let causes = Cause::ALL.into_iter().filter(|&cause| cause.is_predicted() || is_measured);
    let causes = causes.map(|cause| {
        let tone = report.look.palette.cause(cause);
        json!({"name": cause.name(capped), "text": cause.definition(capped), "color": hex(tone.line), "hatch": tone.hatch.mark()})
    });
    let causes: Vec<Value> = causes.collect();
    let look = &report.look;
    let head = json!({
        "title": report.headline(),
        "verdict": report.verdict,
        "subtitle": report.subtitle,
        "provenance": report.provenance,
        "tables": report.further_tables(),
        "start": first_view(report, &scale),
        "mixed": scale.is_mixed(),
        "kinds": kinds,
        "lanes": lane_names(),
        "classes": classes,
        "causes": causes,
        "why": look.causes,
        "window": look.window.map(|(from, to)| [from, to]),
        "hidden": {"memory": !look.memory, "waits": !look.waits},
    });
    // Schedules that do not exist are listed in a table.
    let shown = report.entries.iter().filter(|entry| entry.left_out().is_none());
    let entries: Vec<String> = shown.map(|entry| entry_data(entry, &scale)).collect();
    with_list(head, "entries", &entries)
}

/// Returns the text of an object that ends with a list of texts of JSON.
fn with_list(head: Value, name: &str, list: &[String]) -> String {
    let head = clean(head).to_string();
    format!("{},\"{name}\":[{}]}}", &head[..head.len() - 1], list.join(","))
}

/// Returns the share of the time axis that is visible at first.
fn first_view(report: &Report, scale: &Scale) -> f64 {
    let readable = Scale::of_all(report, 1100.0, 10.0);
    let shares = report.panels().map(|p| readable.end(p) / scale.end(p));
    shares.fold(1.0, f64::min)
}

fn entry_data(entry: &Entry, scale: &Scale) -> String {
    let panels: Vec<String> = entry.panels().flat_map(|panel| workers_data(panel, scale)).collect();
    let mut head = json!({"name": entry.name, "notes": entry.notes, "error": entry.error});
    if let Some(iteration) = entry.iteration() {
        head["iteration"] = json!(iteration);
    }
    with_list(head, "panels", &panels)
}

/// Removes control characters from all texts, which could reverse or hide text in tables and labels.
fn clean(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(plain(&text)),
        Value::Array(items) => items.into_iter().map(clean).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (plain(&key), clean(value))).collect(),
        other => other,
    }
}

/// Distinct names in order of appearance.
#[derive(Default)]
struct Names<'a>(Vec<&'a str>, BTreeMap<&'a str, usize>, u32);

impl<'a> Names<'a> {
    fn number(&mut self, name: &'a str) -> usize {
        let next = self.0.len();
        *self.1.entry(name).or_insert_with(|| {
            self.0.push(name);
            next
        })
    }
}

/// Writes a panel, and on a mesh a panel for each of the other copies of the pipeline.
fn workers_data(panel: &Panel, scale: &Scale) -> Vec<String> {
    let end = scale.end(panel);
    let shown = panel.timeline.workers.as_ref().map(|workers| workers.shown());
    let others = panel.timeline.other_workers().map(|(name, timeline)| {
        let metrics = timeline.metrics();
        panel_data(&Panel::new(timeline, metrics), end, Some(&name), true)
    });
    [panel_data(panel, end, shown.as_deref(), false)].into_iter().chain(others).collect()
}

/// Writes a panel: header, figures, and rows of plain numbers. A row is `[compute, send, receive, memory, idle]`, and a list
/// per lane if anything runs beside the ops.
///
/// A compute span is 8 numbers: code, stage, micro-batch, gap since the previous span's end, duration, phase, shade,
/// lane. A send or receive span is 9: code, stage, micro-batch, gap, duration, partner's code, stage and micro-batch,
/// peer. Times are ticks of `tick` ns, the greatest common divisor of all times. A code is the number of a kind of op; higher ones index the
/// names. Missing phases, partners and peers are -1. Memory is pairs: ticks since the
/// previous change, activations held from then on. Idle is 7 numbers per gap: cause, ticks since the end of the
/// previous gap, ticks, the op to blame (code, stage, micro-batch) and its device, -1 for none. `worker` names the worker of each device
/// on a mesh, and says whether the page shows it only on request.
fn panel_data(panel: &Panel, end: f64, worker: Option<&str>, on_request: bool) -> String {
    let t = &panel.timeline;
    let rows = rows(t);
    let tick = t.spans.iter().fold(0, |tick, span| gcd(gcd(tick, span.start_ns), span.end_ns)).max(1);
    let (mut names, mut phases) = (Names::default(), Names::default());
    names.2 = t.slices.len().max(1) as u32;
    let mut gaps = vec![Vec::new(); rows.len()];
    for gap in &panel.idle {
        if let Some(of) = gaps.get_mut(gap.device as usize) {
            of.push(gap);
        }
    }
    let lanes = lane_marks(panel, &rows);
    let has_lanes = lanes.iter().flatten().any(|marks| !marks.is_empty());
    let of_devices = rows.iter().zip(&gaps).zip(&lanes).map(|((row, gaps), lanes)| {
        // Times may differ by more than the numbers of `json!` hold.
        let marks = row_data(row, tick, &mut names, &mut phases);
        let marks = marks.map(|numbers| serde_json::to_string(&numbers).unwrap_or_default());
        let mut previous = 0;
        let curve = if row.compute.is_empty() { Vec::new() } else { activations(t, row) };
        let level = |(ns, held): (u64, f64)| {
            let after = ns / tick - std::mem::replace(&mut previous, ns / tick);
            format!("{after},{}", (held * 1e4).round() / 1e4)
        };
        let memory: Vec<String> = curve.into_iter().map(level).collect();
        let idle = idle_data(gaps, t.unit_ns, tick, &mut names);
        let lanes = if has_lanes {
            format!(",{}", json!(lanes.each_ref().map(|marks| lane_data(marks, &mut names))))
        } else {
            String::new()
        };
        format!("[{},[{}],{}{lanes}]", marks.join(","), memory.join(","), json!(idle))
    });
    let of_devices: Vec<String> = of_devices.collect();
    // The command is in the report's own provenance.
    let provenance: BTreeMap<_, _> = t.provenance.iter().filter(|(key, _)| *key != "question").collect();
    let head = json!({
        "source": crate::file::csv::source_name(t.source), "devices": t.devices, "chunks": t.chunks, "microbatches": t.microbatches, "slices": names.2,
        "unit": t.time_unit, "unitNs": t.unit_ns.max(1), "tick": tick, "end": end, "worker": worker, "onRequest": on_request,
        "iteration": panel.iteration(), "uncertainty": t.clock_uncertainty_ns as f64 / t.unit_ns.max(1) as f64,
        "metrics": panel.metrics, "provenance": provenance, "names": names.0, "phases": phases.0, "cap": panel.memory_cap,
    });
    with_list(head, "rows", &of_devices)
}

fn row_data<'a>(row: &Row<'a>, tick: u64, names: &mut Names<'a>, phases: &mut Names<'a>) -> [Vec<i128>; 3] {
    let mut numbers = <[Vec<i128>; 3]>::default();
    for (queue, marks) in [&row.compute, &row.send, &row.receive].into_iter().enumerate() {
        let mut previous = 0;
        for mark in marks {
            let span = mark.span;
            let (start, end) = (i128::from(span.start_ns / tick), i128::from(span.end_ns / tick));
            numbers[queue].extend(code(mark.op, &span.op, names).map(i128::from));
            numbers[queue].extend([start - previous, end - start]);
            previous = end;
            if queue == 0 {
                let phase = span.phase.as_deref().map_or(-1, |phase| phases.number(phase) as i128);
                numbers[queue].extend([phase, mark.shade.into(), lane(mark).into()]);
            } else {
                numbers[queue].extend(named(span.partner.as_deref(), names).map(i128::from));
                numbers[queue].push(span.peer.map_or(-1, i128::from));
            }
        }
    }
    numbers
}

/// Returns a lane's boxes: class, name, ns since the end of the one before, ns.
fn lane_data<'a>(marks: &[Mark<'a>], names: &mut Names<'a>) -> Vec<u64> {
    let mut previous = 0;
    let sub_op = |mark: &Mark<'a>| {
        let (start, end) = (mark.span.start_ns, mark.span.end_ns);
        let gap = start.saturating_sub(std::mem::replace(&mut previous, end));
        [mark.class.number() as u64, names.number(&mark.span.op) as u64, gap, end - start]
    };
    marks.iter().flat_map(sub_op).collect()
}

fn idle_data<'a>(gaps: &[&'a IdleSpan], unit_ns: u64, tick: u64, names: &mut Names<'a>) -> Vec<i64> {
    let ticks = |time: f64| (time * unit_ns as f64 / tick as f64).round() as i64;
    let mut previous = 0;
    let mut numbers = Vec::new();
    for gap in gaps {
        let (start, end) = (ticks(gap.start), ticks(gap.end));
        numbers.extend([gap.cause as i64, start - previous, end - start]);
        numbers.extend(named(gap.op.as_deref(), names));
        numbers.push(gap.on.map_or(-1, i64::from));
        previous = end;
    }
    numbers
}

/// Lane and number of lanes in one number.
fn lane(mark: &Mark) -> u32 {
    mark.lane * 64 + mark.lanes.min(63)
}

fn code<'a>(op: Option<Op>, name: &'a str, names: &mut Names<'a>) -> [i64; 3] {
    match op {
        Some(op) => [op.kind() as i64, op.stage().into(), op.unit(names.2) as i64],
        None => [(Kind::ALL.len() + names.number(name)) as i64, 0, 0],
    }
}

fn named<'a>(name: Option<&'a str>, names: &mut Names<'a>) -> [i64; 3] {
    name.map_or([-1, 0, 0], |name| code(name.parse().ok(), name, names))
}
