//! A timeline sorted into rows: the compute, send and receive boxes of each device, with class, shade and lane.

use crate::scene::palette::{Class, shade};
use crate::{Panel, Report};
use pipesim_cost::pair::Stream;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::timeline::{Queue, Span, Timeline};
use pipesim_sim::StreamSpan;
use std::collections::BTreeMap;

/// A span ready to be drawn.
#[derive(Clone, Copy, Debug)]
pub struct Mark<'a> {
    pub span: &'a Span,
    /// Op of the span's name, on every queue.
    pub op: Option<Op>,
    pub class: Class,
    /// Shade, by chunk.
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
    /// `3`, with slices `3.1`.
    Number,
    /// `3`, for all slices of it.
    Microbatch,
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
            Form::Microbatch => op.microbatch().to_string(),
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
    /// Returns the label of a box in a lane of its own: letter and number, else the number; a sub-op's name or the first letter.
    pub fn brief(&self, fits: impl Fn(&str) -> bool) -> Option<String> {
        let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
        let number = self.op.map_or_else(|| digits(&self.span.op), unit);
        match self.class.letter().filter(|_| !number.is_empty()) {
            Some(letter) => [format!("{letter}{number}"), number].into_iter().find(|text| fits(text)),
            None => self.label(None, fits),
        }
    }

    /// Returns the box's label if it fits; a step op's is its name or the first letter.
    pub fn label(&self, form: Option<Form>, fits: impl Fn(&str) -> bool) -> Option<String> {
        match self.op {
            Some(op) => Some(form?.of(op)).filter(|text| fits(text)),
            None => {
                let name = crate::text::plain(&self.span.op);
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
    pub send: Vec<Mark<'a>>,
    pub receive: Vec<Mark<'a>>,
    /// Copies to and from the host.
    pub copy: Vec<Mark<'a>>,
    /// Gathers and reductions between ops.
    pub collective: Vec<Mark<'a>>,
}

impl<'a> Row<'a> {
    /// Returns the queues in the order of the timeline's schema.
    pub fn queues(&self) -> [(Queue, &[Mark<'a>]); 5] {
        [
            (Queue::Compute, &self.compute),
            (Queue::Send, &self.send),
            (Queue::Receive, &self.receive),
            (Queue::Copy, &self.copy),
            (Queue::Collective, &self.collective),
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
        let class = Class::of(span, op);
        let marks = match span.queue {
            Queue::Compute => &mut row.compute,
            Queue::Send => &mut row.send,
            Queue::Receive => &mut row.receive,
            Queue::Copy => &mut row.copy,
            Queue::Collective => &mut row.collective,
        };
        marks.push(Mark { span, op, class, shade: 0, lane: 0, lanes: 1 });
    }
    let two_ways = runs_two_ways(&rows);
    for row in &mut rows {
        let stages = stages_by_chunk(row, two_ways);
        for mark in row.compute.iter_mut().chain(&mut row.copy) {
            let chunk = mark.op.and_then(|op| stages.iter().position(|&stage| stage == op.stage()));
            mark.shade = chunk.map_or(0, |chunk| shade(chunk, stages.len()));
        }
        for marks in [&mut row.compute, &mut row.send, &mut row.receive, &mut row.copy, &mut row.collective] {
            marks.sort_by_key(|mark| (mark.span.start_ns, mark.span.end_ns));
            assign_lanes(marks);
        }
    }
    rows
}

/// Number of lanes under a device's ops.
pub const LANES: usize = Stream::ALL.len() + QUEUES.len();

/// What runs on a queue of its own, after the streams.
const QUEUES: [(&str, Class); 4] = [
    ("offload", Class::Op(Kind::O)),
    ("reload", Class::Op(Kind::L)),
    ("gather", Class::Gather),
    ("reduce", Class::Reduce),
];

/// Boxes under a device's ops by lane, by start: the sub-ops of each stream, the copies of each direction, gathers, reductions.
pub type LaneMarks<'a> = [Vec<Mark<'a>>; LANES];

/// Returns the names of the lanes.
pub fn lane_names() -> [&'static str; LANES] {
    std::array::from_fn(|lane| Stream::ALL.get(lane).map_or_else(|| QUEUES[lane - Stream::ALL.len()].0, |s| s.name()))
}

/// Returns the lanes of every device.
pub fn lane_marks<'a>(panel: &'a Panel, rows: &[Row<'a>]) -> Vec<LaneMarks<'a>> {
    let mut lanes: Vec<LaneMarks> = vec![LaneMarks::default(); rows.len()];
    for StreamSpan { stream, kind, span } in &panel.streams {
        let mark = Mark { span, op: None, class: Class::Op(*kind), shade: 0, lane: 0, lanes: 1 };
        if let Some(of) = lanes.get_mut(span.device as usize) {
            of[*stream as usize].push(mark);
        }
    }
    for (of, row) in lanes.iter_mut().zip(rows) {
        for mark in row.copy.iter().chain(&row.collective) {
            let queue = QUEUES.iter().position(|queue| queue.1 == mark.class).unwrap_or_default();
            of[Stream::ALL.len() + queue].push(*mark);
        }
    }
    for of in &mut lanes {
        of.iter_mut().for_each(|marks| marks.sort_by_key(|mark| (mark.span.start_ns, mark.span.end_ns)));
        of[Stream::ALL.len()..].iter_mut().for_each(|marks| assign_lanes(marks));
    }
    lanes
}

/// Returns which lanes have boxes; copies that take no time have none.
pub fn lanes_in_use<'a, 'b: 'a>(lanes: impl Iterator<Item = &'a LaneMarks<'b>> + Clone) -> [bool; LANES] {
    std::array::from_fn(|lane| {
        lanes.clone().any(|of| of[lane].iter().any(|mark| mark.span.end_ns > mark.span.start_ns))
    })
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
        found[Class::of(span, span.op.parse().ok()).number()] = true;
    }
    for sub_op in report.panels().flat_map(|panel| &panel.streams) {
        found[Class::Op(sub_op.kind).number()] = true;
    }
    Class::all().into_iter().filter(|class| found[class.number()]).collect()
}
