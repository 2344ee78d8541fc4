//! One band of a picture: a device's boxes, labels, communication lanes and curve of activations.

use super::canvas::{Anchor, Ink, Picture, Rect, Style};
use super::palette::Class;
use super::scene::{Mark, Row};
use super::text;
use std::collections::BTreeMap;

/// A box's class and shade.
type Look = (Class, u8);
/// x, y and text of labels.
type Texts = Vec<(f64, f64, String)>;

/// Heights of a band's parts, in pixels; 0 leaves a part out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heights {
    pub(super) phase: f64,
    pub(super) compute: f64,
    pub(super) lane: f64,
    pub(super) memory: f64,
}

impl Heights {
    /// Heights that keep rows readable without making the picture too tall. `both`: predicted and measured are shown.
    pub(super) fn new(devices: usize, both: bool) -> Heights {
        let small = if both { 0.8 } else { 1.0 };
        match devices {
            0..=8 => {
                Heights { phase: 3.0, compute: 18.0 - if both { 2.0 } else { 0.0 }, lane: 4.0, memory: 12.0 * small }
            }
            9..=16 => Heights { phase: 3.0, compute: 14.0, lane: 3.0, memory: 7.0 * small },
            17..=64 => Heights { phase: 0.0, compute: 8.0, lane: 0.0, memory: 0.0 },
            _ => Heights { phase: 0.0, compute: 3.0, lane: 0.0, memory: 0.0 },
        }
    }

    /// Height of a band with `lanes` communication lanes.
    pub(super) fn total(&self, lanes: usize) -> f64 {
        let memory = if self.memory > 0.0 { self.memory + 2.0 } else { 0.0 };
        self.phase + self.compute + lanes as f64 * self.lane + memory
    }
}

/// Where a band lies and what it shows besides its row.
pub(super) struct Band<'a> {
    pub(super) top: f64,
    pub(super) heights: Heights,
    /// Which lanes there are: send, receive.
    pub(super) lanes: [bool; 2],
    /// Pixels of a moment, in ns.
    pub(super) x: &'a dyn Fn(u64) -> f64,
    /// End of the panel's iteration, in ns: idle time is hatched up to here.
    pub(super) end_ns: u64,
    /// Whether labels carry the stage where there is room.
    pub(super) stages: bool,
    /// (ns, units) after each change.
    pub(super) memory: &'a [(u64, f64)],
    /// Activations at the top of the strip.
    pub(super) memory_top: f64,
    /// Right edge: boxes that start beyond it are left out.
    pub(super) clip: f64,
    /// Width below which boxes are drawn together.
    pub(super) narrow: f64,
    /// Whether the phases' names are written above the line.
    pub(super) phase_names: bool,
    /// Whether there is a line for the phases.
    pub(super) phases: bool,
}

/// Draws `row` as `band` says.
pub(super) fn draw(picture: &mut Picture, row: &Row, band: &Band) {
    let h = band.heights;
    let x0 = (band.x)(0);
    let width = (band.x)(band.end_ns) - x0;
    let mut top = band.top;
    if h.phase > 0.0 {
        if band.phases {
            phases(picture, row, band, top);
        }
        top += h.phase;
    }
    picture.boxes(Ink::Idle, vec![[x0, top, width.max(0.0), h.compute]]);
    boxes(picture, &row.compute, band, top, h.compute);
    top += h.compute;
    for (marks, shown) in [(&row.send, band.lanes[0]), (&row.receive, band.lanes[1])] {
        if shown && h.lane > 0.0 {
            boxes(picture, marks, band, top + 0.5, h.lane - 0.5);
            top += h.lane;
        }
    }
    if h.memory > 0.0 && band.memory_top > 0.0 {
        let base = top + 1.0 + h.memory;
        let mut points: Vec<(f64, f64)> = Vec::new();
        for &(ns, units) in band.memory {
            let point = ((band.x)(ns), base - units / band.memory_top * h.memory);
            match points.last_mut() {
                // Within half a pixel only the highest value is kept: peaks must not get lost.
                Some(last) if point.0 - last.0 < 0.5 && band.memory.len() > 400 => last.1 = last.1.min(point.1),
                _ => points.push(point),
            }
        }
        if let Some(&(last, _)) = points.last() {
            points.push((last.max(x0 + width), base));
            picture.shapes.push(super::canvas::Shape::Steps { ink: Ink::Memory, base, points });
        }
    }
}

fn phases(picture: &mut Picture, row: &Row, band: &Band, top: f64) {
    let mut names = Vec::new();
    let runs = row.phases();
    for (i, &(name, start, end)) in runs.iter().enumerate() {
        let (left, right) = ((band.x)(start), (band.x)(end));
        if left >= band.clip {
            break;
        }
        picture.boxes(Ink::Phase(i % 2 == 1), vec![[left, top, (right - left - 1.0).max(0.5), 1.2]]);
        if band.phase_names {
            let room = runs.get(i + 1).map_or(right, |next| (band.x)(next.1)) - left - 3.0;
            let label = text::plain(name);
            if text::pixels(&label, 8.0) <= room {
                names.push((left, top - 2.0, label));
            }
        }
    }
    picture.texts(Style { ink: Ink::Muted, size: 8.0, anchor: Anchor::Start, bold: false }, names);
}

fn boxes(picture: &mut Picture, marks: &[Mark], band: &Band, top: f64, height: f64) {
    let mut rects: BTreeMap<Look, Vec<Rect>> = BTreeMap::new();
    let mut labels: BTreeMap<Look, Texts> = BTreeMap::new();
    let mut narrow = Narrow::new(band.narrow);
    let size = (height * 0.56).clamp(4.0, 10.0);
    for mark in marks {
        let (left, right) = ((band.x)(mark.span.start_ns), (band.x)(mark.span.end_ns));
        if left >= band.clip && mark.span.start_ns > 0 && mark.span.end_ns > band.end_ns {
            continue;
        }
        let width = right - left;
        let ink = (mark.class, mark.shade);
        if width < band.narrow && marks.len() > 1 {
            narrow.add(ink, left, width);
            continue;
        }
        let part = height / f64::from(mark.lanes);
        let y = top + part * f64::from(mark.lane);
        let gap = if width > 3.0 { 0.6 } else { 0.0 };
        rects.entry(ink).or_default().push([left, y, (width - gap).max(0.4), part]);
        if part >= 7.5
            && width >= 8.0
            && let Some(label) = mark.label(band.stages, |text| text::pixels(text, size) <= width - 2.0)
        {
            labels.entry(ink).or_default().push((left + (width - gap) / 2.0, y + part / 2.0 + size * 0.36, label));
        }
    }
    for (ink, columns) in narrow.finish() {
        let rect = |(left, right): (f64, f64)| [left, top, right - left, height];
        rects.entry(ink).or_default().extend(columns.into_iter().map(rect));
    }
    for ((class, shade), rects) in rects {
        picture.boxes(Ink::Box(class, shade), rects);
    }
    for ((class, shade), labels) in labels {
        let style = Style { ink: Ink::On(class, shade), size, anchor: Anchor::Middle, bold: false };
        picture.texts(style, labels);
    }
}

/// Boxes too narrow to be seen alone: each pixel column is filled in proportion to what lies in it, in the colour of the
/// class that covers most of it. Bounds a row by the picture's width however many ops there are.
struct Narrow {
    /// Width of a column.
    step: f64,
    column: i64,
    covered: BTreeMap<Look, f64>,
    /// Class, left and right edge of finished runs.
    runs: BTreeMap<Look, Vec<(f64, f64)>>,
}

impl Narrow {
    fn new(step: f64) -> Narrow {
        Narrow { step, column: 0, covered: BTreeMap::new(), runs: BTreeMap::new() }
    }

    fn add(&mut self, ink: Look, left: f64, width: f64) {
        let column = (left / self.step).floor() as i64;
        if column != self.column {
            self.flush();
            self.column = column;
        }
        *self.covered.entry(ink).or_default() += width.max(0.02);
    }

    fn flush(&mut self) {
        let covered = std::mem::take(&mut self.covered);
        let mut best: Option<(Look, f64)> = None;
        for (&ink, &share) in &covered {
            if best.is_none_or(|(_, most)| share > most) {
                best = Some((ink, share));
            }
        }
        let Some((ink, _)) = best else { return };
        let total: f64 = covered.values().sum();
        let left = self.column as f64 * self.step;
        let right = left + if total > 0.7 * self.step { self.step } else { total.max(0.15) };
        let runs = self.runs.entry(ink).or_default();
        match runs.last_mut() {
            Some(last) if (last.1 - left).abs() < 1e-9 => last.1 = right,
            _ => runs.push((left, right)),
        }
    }

    fn finish(mut self) -> BTreeMap<Look, Vec<(f64, f64)>> {
        self.flush();
        self.runs
    }
}
