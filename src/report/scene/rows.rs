//! A timeline sorted into rows: the compute, send and receive boxes of each device, with class, shade and lane.

use crate::cost::pair::Stream;
use crate::op::Op;
use crate::report::scene::palette::{Class, shade};
use crate::report::{Panel, Report};
use crate::sim::StreamSpan;
use crate::timeline::{Queue, Span, Timeline};
use std::collections::BTreeMap;

/// A span ready to be drawn.
#[derive(Clone, Copy, Debug)]
pub struct Mark<'a> {
    pub span: &'a Span,
    /// Op of the span's name, on every queue.
    pub op: Option<Op>,
    pub class: Class,
    /// 0 to 3, by chunk.
    pub shade: u8,
    /// Lane, for spans of one queue that overlap.
    pub lane: u32,
    /// Number of lanes that the overlapping spans take.
    pub lanes: u32,
}

/// How ops are named in boxes; the same for all boxes of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `1F3`: stage, kind, micro-batch.
    Whole,
    /// `F3`.
    Kind,
    /// `3`.
    Number,
    /// `F`.
    Letter,
}

impl Form {
    /// Returns the first of `forms` that fits 90 % of the boxes, else the one that fits most if those are two thirds.
    /// `fits` is given the text with every letter and digit replaced by the widest one, so that boxes of the same width
    /// are treated alike.
    pub fn fitting<B>(forms: &[Form], boxes: &[(Op, B)], fits: impl Fn(&str, &B) -> bool) -> Option<Form> {
        let widest =
            |text: String| -> String { text.chars().map(|c| if c.is_ascii_digit() { '0' } else { 'W' }).collect() };
        let counts = forms
            .iter()
            .map(|&form| (form, boxes.iter().filter(|(op, room)| fits(&widest(form.of(*op)), room)).count()));
        let counts: Vec<(Form, usize)> =
            counts.filter(|&(_, count)| count > 0 && count * 3 >= boxes.len() * 2).collect();
        let enough = counts.iter().find(|&&(_, count)| count * 10 >= boxes.len() * 9);
        // The first among equals.
        enough.or(counts.iter().rev().max_by_key(|&&(_, count)| count)).map(|&(form, _)| form)
    }

    pub fn of(self, op: Op) -> String {
        match self {
            Form::Whole => op.to_string(),
            Form::Kind => format!("{}{}", op.kind().letter(), unit(op)),
            Form::Number => unit(op),
            Form::Letter => op.kind().letter().to_string(),
        }
    }
}

/// Returns micro-batch and slice: `3`, or `3.1`.
fn unit(op: Op) -> String {
    let microbatch = op.microbatch().to_string();
    op.slice().map_or(microbatch.clone(), |slice| format!("{microbatch}.{slice}"))
}

impl Mark<'_> {
    /// Returns the box's label if it fits; a step op's is its name or the first letter.
    pub fn label(&self, form: Option<Form>, fits: impl Fn(&str) -> bool) -> Option<String> {
        match self.op {
            Some(op) => Some(form?.of(op)).filter(|text| fits(text)),
            None => {
                let name = crate::report::text::plain(&self.span.op);
                let first = name.chars().take(1).collect();
                [name, first].into_iter().find(|text| !text.trim().is_empty() && fits(text))
            }
        }
    }
}

/// Boxes of one device, by start.
#[derive(Clone, Debug, Default)]
pub struct Row<'a> {
    pub compute: Vec<Mark<'a>>,
    /// With the collectives, which use the links to other devices, too.
    pub send: Vec<Mark<'a>>,
    pub receive: Vec<Mark<'a>>,
    /// Copies to and from the host.
    pub copy: Vec<Mark<'a>>,
}

impl<'a> Row<'a> {
    /// Returns the queues in the order of the timeline's schema.
    pub fn queues(&self) -> [(Queue, &[Mark<'a>]); 4] {
        [
            (Queue::Compute, &self.compute),
            (Queue::Send, &self.send),
            (Queue::Receive, &self.receive),
            (Queue::Copy, &self.copy),
        ]
    }

    /// Returns runs of the same phase: (name, start, end) in ns.
    pub fn phases(&self) -> Vec<(&'a str, u64, u64)> {
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

/// Returns the rows of every device. Spans on devices beyond the header's count are ignored.
pub fn rows(timeline: &Timeline) -> Vec<Row<'_>> {
    let mut rows: Vec<Row> = vec![Row::default(); timeline.devices as usize];
    for span in &timeline.spans {
        let Some(row) = rows.get_mut(span.device as usize) else { continue };
        let op: Option<Op> = span.op.parse().ok();
        let class = Class::of(span.queue, op.map(Op::kind));
        let marks = match span.queue {
            Queue::Compute => &mut row.compute,
            Queue::Send | Queue::Collective => &mut row.send,
            Queue::Receive => &mut row.receive,
            Queue::Copy => &mut row.copy,
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
        for marks in [&mut row.compute, &mut row.send, &mut row.receive, &mut row.copy] {
            marks.sort_by_key(|mark| (mark.span.start_ns, mark.span.end_ns));
            assign_lanes(marks);
        }
    }
    rows
}

/// Sub-ops of a device by stream, by start.
pub type StreamMarks<'a> = [Vec<Mark<'a>>; Stream::ALL.len()];

/// Returns the sub-ops of every device.
pub fn stream_marks(panel: &Panel) -> Vec<StreamMarks<'_>> {
    let mut rows: Vec<StreamMarks> = vec![StreamMarks::default(); panel.timeline.devices as usize];
    for StreamSpan { stream, kind, span } in &panel.streams {
        let class = Class::of(span.queue, Some(*kind));
        if let Some(row) = rows.get_mut(span.device as usize) {
            row[*stream as usize].push(Mark { span, op: None, class, shade: 0, lane: 0, lanes: 1 });
        }
    }
    rows.iter_mut().flatten().for_each(|marks| marks.sort_by_key(|mark| (mark.span.start_ns, mark.span.end_ns)));
    rows
}

/// Whether a stage runs on more than one device, as in bidirectional schedules.
pub fn runs_two_ways(rows: &[Row]) -> bool {
    let mut device_of: BTreeMap<u32, usize> = BTreeMap::new();
    let mut places =
        rows.iter().enumerate().flat_map(|(device, row)| row.compute.iter().map(move |mark| (device, mark)));
    places.any(|(device, mark)| mark.op.is_some_and(|op| *device_of.entry(op.stage()).or_insert(device) != device))
}

/// Returns the stages of a row in order; of a bidirectional schedule by first micro-batch, so that one shade is one
/// direction.
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

/// Assigns lanes to overlapping marks, which are sorted by start.
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

/// Returns the activations that the row's device holds, as (ns, units) after each change.
pub fn activations(timeline: &Timeline, row: &Row) -> Vec<(u64, f64)> {
    let ops = row.compute.iter().chain(&row.copy).filter_map(|mark| Some((mark.op?, mark.span)));
    timeline.curve(timeline.changes_of(ops).concat())
}

/// Returns the classes that occur in a report, in the order of the legend.
pub fn classes(report: &Report) -> Vec<Class> {
    let mut found = Class::all().map(|_| false);
    for span in report.panels().flat_map(|panel| &panel.timeline.spans) {
        let kind =
            if matches!(span.queue, Queue::Compute | Queue::Copy) { span.op.parse().ok().map(Op::kind) } else { None };
        found[Class::of(span.queue, kind) as usize] = true;
    }
    for sub_op in report.panels().flat_map(|panel| &panel.streams) {
        found[Class::of(sub_op.span.queue, Some(sub_op.kind)) as usize] = true;
    }
    Class::all().into_iter().filter(|&class| found[class as usize]).collect()
}
