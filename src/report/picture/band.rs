//! One band of a picture: a device's boxes, labels, communication lanes and activation curve.

use crate::number::number;
use crate::picture::blend::{Fill, Sliver, blend};
use crate::picture::canvas::{Anchor, Ink, Picture, Rect, Style};
use crate::scene::axis::{Axis, Part};
use crate::scene::palette::Class;
use crate::scene::rows::{Form, LANES, LaneMarks, Mark, Row, lane_names};
use crate::text;
use pipesim_sim::Cause;
use std::collections::BTreeMap;

type Look = (Class, u8);
/// Start and end of idle time, in ns, and its cause.
pub type Gap = (u64, u64, Cause);
/// x, y and text of labels.
type Texts = Vec<(f64, f64, String)>;

/// Heights of a band's parts, in pixels; 0 omits a part.
#[derive(Clone, Copy, Debug)]
pub struct Heights {
    pub phase: f64,
    pub compute: f64,
    pub lane: f64,
    /// Lane of each stream of pairs, of copies and of collectives.
    pub stream: f64,
    pub memory: f64,
}

impl Heights {
    /// Returns heights that keep rows readable and the picture of reasonable size. `both`: predicted and measured are
    /// shown.
    /// `compute` is the height of ops, if it is asked for.
    pub fn new(devices: usize, both: bool, compute: Option<f64>) -> Heights {
        let small = if both { 0.8 } else { 1.0 };
        // As for the number of devices whose rows are usually as high.
        let like = compute.map_or(devices, |height| match height {
            16.0.. => 8,
            12.0.. => 16,
            8.0.. => 64,
            _ => usize::MAX,
        });
        let usual = match like {
            0..=8 => {
                let compute = if both { 16.0 } else { 18.0 };
                Heights { phase: 3.0, compute, lane: 4.0, stream: 12.0, memory: 12.0 * small }
            }
            9..=16 => Heights { phase: 3.0, compute: 14.0, lane: 3.0, stream: 9.0, memory: 7.0 * small },
            17..=64 => Heights { phase: 0.0, compute: 8.0, lane: 0.0, stream: 0.0, memory: 0.0 },
            _ => Heights { phase: 0.0, compute: 3.0, lane: 0.0, stream: 0.0, memory: 0.0 },
        };
        let memory = if devices > 16 { 0.0 } else { usual.memory };
        Heights { compute: compute.unwrap_or(usual.compute), memory, ..usual }
    }

    /// Whether boxes of a class are drawn, if sends and waits for data are or not.
    pub fn draws(&self, class: Class, waits: bool) -> bool {
        match class {
            Class::Send | Class::Receive => waits && self.lane > 0.0,
            Class::Gather | Class::Reduce => self.stream > 0.0,
            Class::Op(kind) => self.stream > 0.0 || kind.is_compute(),
            Class::Step => true,
        }
    }

    /// Returns the height of a band with `lanes` communication lanes and `streams`.
    pub fn total(&self, lanes: usize, streams: usize) -> f64 {
        let memory = if self.memory > 0.0 { self.memory + 2.0 } else { 0.0 };
        self.phase + self.compute + streams as f64 * self.stream + lanes as f64 * self.lane + memory
    }
}

/// Position and contents of a band besides its row.
pub struct Band<'a> {
    pub top: f64,
    pub heights: Heights,
    /// Whether the lanes of sends and receives exist.
    pub lanes: [bool; 2],
    /// What runs beside the ops, and whether each of its lanes exists.
    pub beside: (&'a LaneMarks<'a>, [bool; LANES]),
    pub axis: &'a Axis,
    /// Left edge and width of the time axis.
    pub room: (f64, f64),
    /// End of the panel's iteration, in ns; idle time is hatched up to here.
    pub end_ns: u64,
    /// Gaps with known causes, in ns.
    pub gaps: &'a [Gap],
    /// How ops are named in their boxes, and the size of these texts.
    pub form: Option<(Form, f64)>,
    /// (ns, units) after each change.
    pub memory: &'a [(u64, f64)],
    /// Activations at the top of the strip.
    pub memory_top: f64,
    pub memory_cap: Option<f64>,
    /// Whether a scale fits left of the curve.
    pub scaled: bool,
    /// Whether the names of phases are written above the line.
    pub phase_names: bool,
    /// Whether a line shows the phases.
    pub phases: bool,
}

impl Band<'_> {
    fn x(&self, share: f64) -> f64 {
        self.room.0 + share * self.room.1
    }

    /// Returns the left and right edges of the visible pieces of an interval, in pixels.
    fn seen(&self, start: u64, end: u64) -> impl Iterator<Item = (f64, f64)> {
        self.axis.seen(start, end).map(|(left, right)| (self.x(left), self.x(right)))
    }
}

/// Most of a box that the border to an equal one takes, and the most pixels.
const BORDER: (f64, f64) = (0.2, 0.8);
/// Boxes narrower than this, in pixels, are mixed.
const NARROW: f64 = 2.0;
/// Smallest box with a label.
const LABELLED: (f64, f64) = (8.0, 7.5);

fn label_size(height: f64) -> f64 {
    (height * 0.56).clamp(4.0, 10.0)
}

/// Slices, which are narrow, may be named in texts of this share of the usual size.
const SMALLER: f64 = 0.7;

/// Returns how ops are named in all boxes of a panel `width` wide with rows `height` high, and the size of these texts; none if no box has room.
pub fn form(rows: &[Row], axis: &Axis, width: f64, height: f64, stages: bool) -> Option<(Form, f64)> {
    let mut boxes = Vec::new();
    for mark in rows.iter().flat_map(|row| &row.compute) {
        let lasts = mark.span.end_ns.saturating_sub(mark.span.start_ns);
        if height / f64::from(mark.lanes) < LABELLED.1 || axis.width(lasts) * width < LABELLED.0 {
            continue;
        }
        let Some(op) = mark.op else { continue };
        let seen = axis.seen(mark.span.start_ns, mark.span.end_ns).map(|(left, right)| (right - left) * width);
        boxes.extend(seen.filter(|&box_width| box_width >= LABELLED.0).map(|box_width| (op, box_width)));
    }
    let forms = [Form::Whole, Form::Kind, Form::Number, Form::Microbatch];
    let of_size = |size: f64| {
        let fits = |text: &str, box_width: &f64| text::pixels(text, size) <= box_width - 2.0;
        Form::fitting(&forms[usize::from(!stages)..], &boxes, fits).map(|form| (form, size))
    };
    let is_sliced = boxes.iter().any(|(op, _)| op.slice().is_some());
    of_size(label_size(height)).or_else(|| of_size(label_size(height) * SMALLER).filter(|_| is_sliced))
}

pub fn draw(picture: &mut Picture, row: &Row, band: &Band) {
    let h = band.heights;
    let mut top = band.top;
    if h.phase > 0.0 {
        if band.phases {
            phases(picture, row, band, top);
        }
        top += h.phase;
    }
    let idle = band.seen(0, band.end_ns).map(|(left, right)| [left, top, right - left, h.compute]);
    picture.boxes(Ink::Idle, idle.collect());
    causes(picture, band, top);
    let form = band.form.map(|(form, _)| form);
    let size = band.form.map_or(label_size(h.compute), |(_, size)| size);
    boxes(picture, &row.compute, band, top, h.compute, size, |mark, fits| mark.label(form, fits));
    top += h.compute;
    let (beside, in_use) = band.beside;
    for lane in (0..LANES).filter(|&lane| h.stream > 0.0 && in_use[lane]) {
        let size = label_size(h.stream);
        boxes(picture, &beside[lane], band, top + 0.5, h.stream - 0.5, size, |mark, fits| mark.brief(fits));
        if band.scaled {
            let style = Style { ink: Ink::Muted, size: 6.5, anchor: Anchor::End, bold: false };
            picture.texts(style, vec![(band.room.0 - 3.0, top + h.stream - 3.0, lane_names()[lane].to_string())]);
        }
        top += h.stream;
    }
    for (marks, shown) in [&row.send, &row.receive].into_iter().zip(band.lanes) {
        if shown && h.lane > 0.0 {
            boxes(picture, marks, band, top + 0.5, h.lane - 0.5, 0.0, |_, _| None);
            top += h.lane;
        }
    }
    if h.memory > 0.0 && band.memory_top > 0.0 {
        let base = top + 1.0 + h.memory;
        for part in band.axis.parts() {
            memory(picture, band, part, base);
        }
        let level = |units: f64| base - units / band.memory_top * h.memory;
        if let Some(cap) = band.memory_cap {
            let line = band.seen(0, band.end_ns).map(|(left, right)| [left, level(cap), right, level(cap)]);
            picture.lines(Ink::Cap, line.collect());
        }
        if band.scaled && h.memory >= 9.0 {
            let style = Style { ink: Ink::Muted, size: 6.5, anchor: Anchor::End, bold: false };
            let (x, top) = (band.room.0 - 3.0, number(band.memory_top));
            picture.texts(style, vec![(x, base, "0".to_string()), (x, base - h.memory + 5.0, top)]);
        }
    }
}

/// Draws gaps in the hatches of their causes; those too narrow stay plain idle time.
fn causes(picture: &mut Picture, band: &Band, top: f64) {
    let mut rects: BTreeMap<Cause, Vec<Rect>> = BTreeMap::new();
    for &(start, end, cause) in band.gaps {
        let wide = band.seen(start, end).filter(|(left, right)| right - left >= NARROW);
        let wide = wide.map(|(left, right)| [left, top, right - left, band.heights.compute]);
        rects.entry(cause).or_default().extend(wide);
    }
    for (cause, rects) in rects.into_iter().filter(|(_, rects)| !rects.is_empty()) {
        picture.boxes(Ink::Cause(cause), rects);
    }
}

/// Draws the activation curve in one part of the time.
fn memory(picture: &mut Picture, band: &Band, part: Part, base: f64) {
    let Some((left, right)) = part.inside(part.from, part.to.min(band.end_ns)) else { return };
    let (left, right) = (band.x(left), band.x(right));
    let mut points: Vec<(f64, f64)> = Vec::new();
    let (mut peaks, dense) = (0.0_f64, band.memory.len() > 400);
    for &(ns, units) in band.memory.iter().filter(|change| change.0 <= part.to) {
        let y = base - units / band.memory_top * band.heights.memory;
        let x = band.x(band.axis.place(ns.max(part.from)));
        match points.last_mut() {
            // Changes before the part only set its first level.
            Some(last) if ns <= part.from => *last = (x, y),
            // Within half a pixel only the highest value is kept, so that no peak is lost.
            Some(last) if x - last.0 < 0.5 && dense => last.1 = last.1.min(y),
            _ => points.push((x, y)),
        }
        peaks = peaks.max(units);
    }
    if peaks > 0.0 && !points.is_empty() {
        points[0].0 = points[0].0.max(left);
        points.push((points[points.len() - 1].0.max(right), base));
        picture.shapes.push(crate::picture::canvas::Shape::Steps { ink: Ink::Memory, base, points });
    }
}

fn phases(picture: &mut Picture, row: &Row, band: &Band, top: f64) {
    let mut names = Vec::new();
    let runs = row.phases();
    let mut free = f64::NEG_INFINITY;
    for (i, &(name, start, end)) in runs.iter().enumerate() {
        let mut named = false;
        for (left, right) in band.seen(start, end) {
            picture.boxes(Ink::Phase(i % 2 == 1), vec![[left, top, (right - left - 1.0).max(0.5), 1.2]]);
            if band.phase_names && !named {
                let room = runs.get(i + 1).map_or(right, |next| band.x(band.axis.place(next.2))) - left - 3.0;
                let label = text::plain(name);
                if text::pixels(&label, 8.0) <= room && left >= free {
                    free = left + text::pixels(&label, 8.0) + 4.0;
                    names.push((left, top - 2.0, label));
                    named = true;
                }
            }
        }
    }
    picture.texts(Style { ink: Ink::Muted, size: 8.0, anchor: Anchor::Start, bold: false }, names);
}

/// Boxes of a queue by ink, and their labels.
#[derive(Default)]
struct Drawn {
    rects: BTreeMap<Ink, Vec<Rect>>,
    labels: BTreeMap<Look, Texts>,
    /// Narrow boxes not drawn yet.
    slivers: Vec<Sliver<Look>>,
}

impl Drawn {
    /// Draws the narrow boxes between `top` and `top + height`.
    fn flush(&mut self, top: f64, height: f64) {
        for (left, right, fill) in blend(&self.slivers) {
            let ink = match fill {
                Fill::Plain((class, shade)) => Ink::Box(class, shade),
                Fill::Mixed(mixed) => Ink::Mixed(mixed),
            };
            self.rects.entry(ink).or_default().push([left, top, right - left, height]);
        }
        self.slivers.clear();
    }
}

/// Draws the boxes of a row at `top`, `height` high, with texts of `size`; `label` names a box in a text that fits.
fn boxes(
    picture: &mut Picture,
    marks: &[Mark],
    band: &Band,
    top: f64,
    height: f64,
    size: f64,
    label: impl Fn(&Mark, &dyn Fn(&str) -> bool) -> Option<String>,
) {
    let mut drawn = Drawn::default();
    for part in band.axis.parts() {
        // Width of the border that begins the next box.
        let (mut next, mut begun) = (0, 0.0);
        for together in overlapping(marks) {
            next += together.len();
            let seen = || {
                together.iter().filter_map(|mark| {
                    let (left, right) = part.inside(mark.span.start_ns, mark.span.end_ns)?;
                    Some((mark, band.x(left), band.x(right)))
                })
            };
            let Some((_, first, end)) = seen().next() else { continue };
            let narrow = end - first < NARROW && (together.len() == 1 || seen().all(|(_, l, r)| r - l < NARROW));
            if !narrow || drawn.slivers.last().is_some_and(|last| first - last.right >= NARROW) {
                drawn.flush(top, height);
            }
            for (mark, left, right) in seen() {
                let (ink, width, part) = ((mark.class, mark.shade), right - left, height / f64::from(mark.lanes));
                if narrow {
                    begun = 0.0;
                    let (height, color) =
                        (1.0 / f64::from(mark.lanes), picture.palette.tone(mark.class, mark.shade).color);
                    drawn.slivers.push(Sliver { left, right, height, color, ink });
                    continue;
                }
                let y = top + part * f64::from(mark.lane);
                let has_room = part >= LABELLED.1 && width >= LABELLED.0;
                let label = has_room.then(|| label(mark, &|text| text::pixels(text, size) <= width - 2.0)).flatten();
                // Without labels only borders tell equal boxes apart. They keep the mean colour, which a gap would not.
                let bordered = label.is_none()
                    && mark.lanes == 1
                    && marks.get(next).is_some_and(|other| {
                        let apart = other.span.start_ns.saturating_sub(mark.span.end_ns);
                        (other.class, other.shade) == ink && band.axis.width(apart) * band.room.1 < 0.1
                    });
                let border = if bordered { (width * BORDER.0).min(BORDER.1) } else { 0.0 };
                let begins = std::mem::replace(&mut begun, border);
                // Other lines between two boxes are taken from the box, but are never a visible share of it.
                let gap = if width < NARROW || bordered { 0.0 } else { ((width - begins) * 0.015).min(0.6) };
                let mut add = |ink, left: f64, right: f64| {
                    if right > left {
                        drawn.rects.entry(ink).or_default().push([left, y, right - left, part]);
                    }
                };
                add(Ink::Border(ink.0, ink.1, true), left, left + begins);
                add(Ink::Box(ink.0, ink.1), left + begins, right - gap - border);
                add(Ink::Border(ink.0, ink.1, false), right - border, right);
                if let Some(label) = label {
                    let at = (left + (width - gap) / 2.0, y + part / 2.0 + size * 0.36, label);
                    drawn.labels.entry(ink).or_default().push(at);
                }
            }
        }
        drawn.flush(top, height);
    }
    for (ink, rects) in drawn.rects {
        picture.boxes(ink, rects);
    }
    for ((class, shade), labels) in drawn.labels {
        let style = Style { ink: Ink::On(class, shade), size, anchor: Anchor::Middle, bold: false };
        picture.texts(style, labels);
    }
}

/// Groups overlapping marks, which are sorted by start.
fn overlapping<'a, 'b>(marks: &'b [Mark<'a>]) -> impl Iterator<Item = &'b [Mark<'a>]> {
    let mut rest = marks;
    std::iter::from_fn(move || {
        let mut end = rest.first()?.span.end_ns;
        let mut count = 1;
        while let Some(next) = rest.get(count).filter(|next| next.lanes > 1 && next.span.start_ns < end) {
            end = end.max(next.span.end_ns);
            count += 1;
        }
        let (group, after) = rest.split_at(count);
        rest = after;
        Some(group)
    })
}
