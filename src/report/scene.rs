//! A timeline sorted into rows: per device its compute, send and receive boxes, each with class, shade and lane.

use super::palette::{Class, shade};
use super::{Panel, Report};
use crate::op::Op;
use crate::timeline::{Queue, Span, Timeline};
use std::collections::BTreeMap;

/// A span ready to be drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark<'a> {
    pub(super) span: &'a Span,
    /// The op of the span's name, on every queue.
    pub(super) op: Option<Op>,
    pub(super) class: Class,
    /// 0 to 3 by chunk.
    pub(super) shade: u8,
    /// Spans of one queue that overlap lie in different lanes.
    pub(super) lane: u32,
    /// How many lanes the span's overlapping neighbourhood has.
    pub(super) lanes: u32,
}

impl Mark<'_> {
    /// The longest fitting of the box's labels: `1F3`, `F3`, `3`, nothing. `fits` judges a text; every kind's letter and
    /// every digit counts as the widest, so that boxes of one width are labelled alike.
    pub(super) fn label(&self, stages: bool, fits: impl Fn(&str) -> bool) -> Option<String> {
        let candidates = match self.op {
            Some(op) if stages => vec![op.to_string(), kind_and_number(op), op.microbatch().to_string()],
            Some(op) => vec![kind_and_number(op), op.microbatch().to_string()],
            None => {
                let name = super::text::plain(&self.span.op);
                let first = name.chars().take(1).collect();
                return [name, first].into_iter().find(|text| !text.trim().is_empty() && fits(text));
            }
        };
        let widest = |text: &str| text.replace(['F', 'I', 'W', 'B'], "W").replace(|c: char| c.is_ascii_digit(), "0");
        candidates.into_iter().find(|text| fits(&widest(text)))
    }
}

fn kind_and_number(op: Op) -> String {
    format!("{}{}", op.kind().letter(), op.microbatch())
}

/// One device's boxes, by start.
#[derive(Clone, Debug, Default)]
pub(super) struct Row<'a> {
    pub(super) compute: Vec<Mark<'a>>,
    pub(super) send: Vec<Mark<'a>>,
    pub(super) receive: Vec<Mark<'a>>,
}

impl<'a> Row<'a> {
    /// The three queues in the schema's order.
    pub(super) fn queues(&self) -> [(Queue, &[Mark<'a>]); 3] {
        [(Queue::Compute, &self.compute), (Queue::Send, &self.send), (Queue::Receive, &self.receive)]
    }

    /// Runs of the same phase: (name, start, end) in ns.
    pub(super) fn phases(&self) -> Vec<(&'a str, u64, u64)> {
        let mut runs: Vec<(&str, u64, u64)> = Vec::new();
        for mark in &self.compute {
            let Some(phase) = mark.span.phase.as_deref() else { continue };
            match runs.last_mut() {
                Some(run) if run.0 == phase => run.2 = run.2.max(mark.span.end_ns),
                _ => runs.push((phase, mark.span.start_ns, mark.span.end_ns)),
            }
        }
        runs
    }
}

/// The rows of every device. Spans of devices that the header does not count are left out.
pub(super) fn rows(timeline: &Timeline) -> Vec<Row<'_>> {
    let mut rows: Vec<Row> = vec![Row::default(); timeline.devices as usize];
    for span in &timeline.spans {
        let Some(row) = rows.get_mut(span.device as usize) else { continue };
        let op: Option<Op> = span.op.parse().ok();
        let class = Class::of(span.queue, op.map(Op::kind));
        let marks = match span.queue {
            Queue::Compute => &mut row.compute,
            Queue::Send => &mut row.send,
            Queue::Receive => &mut row.receive,
        };
        marks.push(Mark { span, op, class, shade: 0, lane: 0, lanes: 1 });
    }
    let two_ways = runs_two_ways(&rows);
    for row in &mut rows {
        let stages = stages_by_chunk(row, two_ways);
        for mark in &mut row.compute {
            let chunk = mark.op.and_then(|op| stages.iter().position(|&stage| stage == op.stage()));
            mark.shade = chunk.map_or(0, |chunk| shade(chunk, stages.len()));
        }
        for marks in [&mut row.compute, &mut row.send, &mut row.receive] {
            marks.sort_by_key(|mark| (mark.span.start_ns, mark.span.end_ns));
            assign_lanes(marks);
        }
    }
    rows
}

/// Whether some stage runs on more than one device: micro-batches go both ways.
pub(super) fn runs_two_ways(rows: &[Row]) -> bool {
    let mut device_of: BTreeMap<u32, usize> = BTreeMap::new();
    let mut places =
        rows.iter().enumerate().flat_map(|(device, row)| row.compute.iter().map(move |mark| (device, mark)));
    places.any(|(device, mark)| mark.op.is_some_and(|op| *device_of.entry(op.stage()).or_insert(device) != device))
}

/// The stages of a row: by stage, or where micro-batches go both ways by the first of them, so that one shade is one way.
fn stages_by_chunk(row: &Row, two_ways: bool) -> Vec<u32> {
    let mut first: BTreeMap<u32, u32> = BTreeMap::new();
    for op in row.compute.iter().filter_map(|mark| mark.op) {
        let microbatch = first.entry(op.stage()).or_insert(op.microbatch());
        *microbatch = op.microbatch().min(*microbatch);
    }
    let mut stages: Vec<(u32, u32)> =
        first.into_iter().map(|(stage, microbatch)| (if two_ways { microbatch } else { 0 }, stage)).collect();
    stages.sort_unstable();
    stages.into_iter().map(|(_, stage)| stage).collect()
}

/// Puts overlapping marks, sorted by start, into lanes.
fn assign_lanes(marks: &mut [Mark]) {
    let mut ends: Vec<u64> = Vec::new();
    let mut first = 0;
    for i in 0..marks.len() {
        let (start, end) = (marks[i].span.start_ns, marks[i].span.end_ns);
        if ends.iter().all(|&e| e <= start) {
            close(&mut marks[first..i], ends.len());
            first = i;
            ends.clear();
        }
        let lane = ends.iter().position(|&e| e <= start).unwrap_or(ends.len());
        match ends.get_mut(lane) {
            Some(e) => *e = end,
            None => ends.push(end),
        }
        marks[i].lane = lane as u32;
    }
    close(&mut marks[first..], ends.len());
}

fn close(marks: &mut [Mark], lanes: usize) {
    for mark in marks {
        mark.lanes = lanes.max(1) as u32;
    }
}

/// The activations that the device of `row` holds over time, (ns, units) after each change.
pub(super) fn activations(timeline: &Timeline, row: &Row) -> Vec<(u64, f64)> {
    timeline.curve(row.compute.iter().filter_map(|mark| Some(mark.span.change(mark.op?))).collect())
}

/// The time scale that all panels of one unit share.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    ends: Vec<(String, f64)>,
}

impl Scale {
    /// A scale `room` wide on which an op is `wanted` wide. Where a schedule of more than twice the shortest's time stands
    /// in the way of that, it is cut at the end of the others.
    pub(super) fn readable(report: &Report, room: f64, wanted: f64) -> Scale {
        let mut units: Vec<(String, Vec<f64>, f64)> = Vec::new();
        for entry in &report.entries {
            let mut seen: Vec<(&str, f64)> = Vec::new();
            for panel in entry.panels() {
                let unit = panel.timeline.time_unit.as_str();
                match seen.iter_mut().find(|(name, _)| *name == unit) {
                    Some((_, end)) => *end = end.max(panel.iteration()),
                    None => seen.push((unit, panel.iteration())),
                }
                let index = units.iter().position(|(name, ..)| name == unit).unwrap_or_else(|| {
                    units.push((unit.to_string(), Vec::new(), f64::INFINITY));
                    units.len() - 1
                });
                units[index].2 = units[index].2.min(typical_op(panel));
            }
            for (unit, end) in seen {
                units.iter_mut().filter(|(name, ..)| name == unit).for_each(|(_, ends, _)| ends.push(end));
            }
        }
        let shown = |ends: &[f64], op: f64| {
            let longest = ends.iter().copied().fold(0.0, f64::max);
            let shortest = ends.iter().copied().filter(|&end| end > 0.0).fold(f64::INFINITY, f64::min);
            if op * room / longest >= wanted || !op.is_finite() || longest <= 2.0 * shortest {
                return longest;
            }
            ends.iter().copied().filter(|&end| end <= 2.0 * shortest).fold(0.0, f64::max)
        };
        Scale { ends: units.into_iter().map(|(unit, ends, op)| (unit, shown(&ends, op))).collect() }
    }

    /// The scale's end in `panel`'s nanoseconds.
    pub(super) fn end_ns(&self, panel: &Panel) -> u64 {
        (self.end(panel) * panel.timeline.unit_ns as f64).round() as u64
    }

    /// Whether `panel` goes on beyond the scale's end.
    pub(super) fn cuts(&self, panel: &Panel) -> bool {
        panel.iteration() > self.end(panel) * (1.0 + 1e-9)
    }

    /// The longest time in `panel`'s unit, at least a little above 0.
    pub(super) fn end(&self, panel: &Panel) -> f64 {
        let end = self.ends.iter().find(|(unit, _)| *unit == panel.timeline.time_unit).map_or(0.0, |&(_, end)| end);
        if end > 0.0 { end } else { 1.0 / panel.timeline.unit_ns.max(1) as f64 }
    }

    /// Where `ns` of `panel` lies, 0 to 1.
    pub(super) fn share(&self, panel: &Panel, ns: u64) -> f64 {
        ns as f64 / panel.timeline.unit_ns.max(1) as f64 / self.end(panel)
    }

    /// How wide `panel`'s pipeline ops are on average, as a share of the scale.
    pub(super) fn typical_share(&self, panel: &Panel) -> f64 {
        typical_op(panel) / self.end(panel)
    }

    /// Whether panels of different units are shown together; those cannot share a scale.
    pub(super) fn is_mixed(&self) -> bool {
        self.ends.len() > 1
    }
}

/// Mean duration of a panel's pipeline ops.
fn typical_op(panel: &Panel) -> f64 {
    let (mut sum, mut count) = (0.0, 0u32);
    for span in panel.timeline.spans.iter().filter(|span| span.queue == Queue::Compute) {
        sum += (span.end_ns - span.start_ns.min(span.end_ns)) as f64;
        count += 1;
    }
    if count == 0 { f64::INFINITY } else { sum / f64::from(count) / panel.timeline.unit_ns.max(1) as f64 }
}

/// The classes that occur in a report, in the order of the legend.
pub(super) fn classes(report: &Report) -> Vec<Class> {
    let mut found = Class::all().map(|_| false);
    for span in report.entries.iter().flat_map(|e| e.panels()).flat_map(|panel| &panel.timeline.spans) {
        let kind = if span.queue == Queue::Compute { span.op.parse().ok().map(Op::kind) } else { None };
        found[Class::of(span.queue, kind) as usize] = true;
    }
    Class::all().into_iter().filter(|&class| found[class as usize]).collect()
}
