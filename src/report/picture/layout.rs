//! The layout of still pictures: title, legend, a block of rows for each schedule, axes, definitions.

use crate::file::csv::source_name;
use crate::number::{number, percent};
use crate::picture::band::{Band, Gap, Heights, draw, form};
use crate::picture::canvas::{Anchor, Ink, Picture, Shape, Style};
use crate::picture::frame::{BODY, MUTED, PictureFrame, SMALL, TITLE, lines};
use crate::picture::heading::heading;
use crate::picture::ruler::{Rows, bracket, left_out, ruler};
use crate::scene::axis::{Axis, Scale};
use crate::scene::palette::Class;
use crate::scene::rows::{Form, LaneMarks, Row, activations, classes, lane_marks, lanes_in_use, rows, runs_two_ways};
use crate::text::{pixels, plain};
use crate::{Entry, Look, Panel, Report};
use pipesim_schedule::op::Kind;
use pipesim_schedule::timeline::Timeline;
use pipesim_sim::Cause;
use std::collections::BTreeSet;

const WIDTH: f64 = 1200.0;
/// Beyond this many devices, only every n-th is drawn.
const MOST_DEVICES: usize = 256;
/// Width of the mark for hidden time.
const BREAK: f64 = 18.0;

/// Remark if `--collapse` finds nothing to draw once.
pub const NO_REPEAT: &str = "No stretch repeats exactly at least three times on all devices, so everything is drawn.";

fn to(style: Style, anchor: Anchor) -> Style {
    Style { anchor, ..style }
}

/// Lays a report out at the usual text size, then scales it as a whole.
pub fn picture(report: &Report) -> Picture {
    let scale = report.look.font_size.map_or(1.0, |size| size / BODY.size);
    let width = report.look.width.unwrap_or(WIDTH) / scale;
    let both = report.entries.iter().any(|entry| entry.panels().count() > 1);
    let row_height = report.look.row_height.map(|height| height / scale);
    let frame = PictureFrame::new(width, both, report.look.columns.as_deref());
    let mut picture = laid_out(report, &frame, row_height);
    picture.enlarge(scale);
    picture
}

fn laid_out(report: &Report, frame: &PictureFrame, row_height: Option<f64>) -> Picture {
    let mut picture =
        Picture { width: frame.width, title: summary(report), palette: report.look.palette, ..Picture::default() };
    let mut y = frame.margin + 14.0;
    y = lines(&mut picture, TITLE, frame.margin, y, frame.text(), 19.0, report.headline());
    let subtitle = if report.look.notes { report.subtitle.as_str() } else { "" };
    y = lines(&mut picture, BODY, frame.margin, y, frame.text(), 15.0, subtitle);
    y += if subtitle.is_empty() { 0.0 } else { 3.0 };
    let scale = Scale::readable(report, frame.right - frame.left, 9.0, BREAK);
    let prepared: Vec<Vec<PreparedPanel>> = report
        .entries
        .iter()
        .enumerate()
        .map(|(i, entry)| {
            entry
                .panels()
                .zip(scale.axes(i))
                .map(|(panel, axis)| PreparedPanel::new(panel, axis, &report.look))
                .collect()
        })
        .collect();
    let held = MemoryScale::new(&prepared);
    y = legend(&mut picture, frame, report, (&held, row_height), y);
    for (entry, panels) in report.entries.iter().zip(&prepared) {
        y = block(&mut picture, frame, entry, panels, &report.look, (&held, row_height), y + 10.0);
    }
    if report.entries.is_empty() {
        picture.text(BODY, frame.margin, y + 14.0, "No schedules.");
        y += 24.0;
    }
    y = footer(&mut picture, frame, report, &scale, y + 6.0);
    picture.height = (y + frame.margin - 6.0).ceil().max(1.0);
    picture
}

fn summary(report: &Report) -> String {
    let names: Vec<String> = report.entries.iter().map(|entry| plain(&entry.name)).collect();
    let title = if report.headline().is_empty() { "Pipeline timelines".into() } else { plain(report.headline()) };
    if names.is_empty() { title } else { format!("{title}: {}", names.join(", ")) }
}

/// A panel with everything needed to draw it.
struct PreparedPanel<'a> {
    panel: &'a Panel,
    axis: &'a Axis,
    rows: Vec<Row<'a>>,
    beside: Vec<LaneMarks<'a>>,
    memory: Vec<Vec<(u64, f64)>>,
    peak: f64,
    end_ns: u64,
    /// By device.
    gaps: Vec<Vec<Gap>>,
}

impl<'a> PreparedPanel<'a> {
    fn new(panel: &'a Panel, axis: &'a Axis, look: &Look) -> PreparedPanel<'a> {
        let rows = rows(&panel.timeline);
        let memory: Vec<_> = if rows.len() > 16 || !look.memory {
            vec![Vec::new(); rows.len()]
        } else {
            rows.iter().map(|row| activations(&panel.timeline, row)).collect()
        };
        let peak = memory.iter().flatten().map(|&(_, units)| units).fold(0.0, f64::max);
        let mut gaps = vec![Vec::new(); rows.len()];
        let ns = |time: f64| (time * panel.timeline.unit_ns as f64).round() as u64;
        for gap in panel.idle.iter().filter(|_| look.causes) {
            let gaps = gaps.get_mut(gap.device as usize);
            gaps.into_iter().for_each(|gaps| gaps.push((ns(gap.start), ns(gap.end), gap.cause)));
        }
        let beside = lane_marks(panel, &rows);
        PreparedPanel { panel, axis, rows, beside, memory, peak, end_ns: panel.timeline.end_ns(), gaps }
    }
}

/// The scale that all activation curves share.
struct MemoryScale {
    /// Activations at the top of a curve's strip.
    top: f64,
    cap: Option<f64>,
}

impl MemoryScale {
    fn new(prepared: &[Vec<PreparedPanel>]) -> MemoryScale {
        let peak = prepared.iter().flatten().map(|p| p.peak).fold(0.0, f64::max);
        let caps = prepared.iter().flatten().filter_map(|p| p.panel.memory_cap).filter(|cap| *cap > 0.0);
        // A cap far above every curve would flatten them.
        let cap = caps.reduce(f64::min).filter(|cap| peak > 0.0 && *cap <= 4.0 * peak);
        MemoryScale { top: cap.map_or(peak, |cap| cap.max(peak)), cap }
    }
}

fn legend(
    picture: &mut Picture,
    frame: &PictureFrame,
    report: &Report,
    (held, row_height): (&MemoryScale, Option<f64>),
    y: f64,
) -> f64 {
    let mut x = frame.margin;
    let (mut y, top) = (y + 2.0, y + 2.0);
    let mut found = classes(report);
    let most = report.panels().map(|p| p.timeline.devices as usize).max().unwrap_or(0);
    let heights = Heights::new(most, false, row_height);
    found.retain(|&class| heights.draws(class, report.look.waits));
    if found.is_empty() {
        return y;
    }
    let mut item = |picture: &mut Picture, ink: Ink, name: &str| {
        let width = 16.0 + pixels(name, MUTED.size) + 20.0;
        if x + width - 20.0 > frame.width - frame.margin && x > frame.margin {
            x = frame.margin;
            y += 16.0;
        }
        let thin = matches!(ink, Ink::Box(Class::Send | Class::Receive, _));
        let rect = if thin { [x, y - 6.0, 12.0, 4.0] } else { [x, y - 9.0, 12.0, 10.0] };
        match ink {
            Ink::Memory => picture.shapes.push(Shape::Steps {
                ink,
                base: y + 1.0,
                points: vec![(x, y - 3.0), (x + 4.0, y - 8.0), (x + 8.0, y - 3.0), (x + 12.0, y + 1.0)],
            }),
            Ink::Cap => picture.lines(ink, vec![[x, y - 4.0, x + 12.0, y - 4.0]]),
            _ => picture.boxes(ink, vec![rect]),
        }
        picture.text(MUTED, x + 17.0, y, name);
        x += width;
    };
    for class in found {
        item(picture, Ink::Box(class, 0), &class.name());
    }
    let shown = || report.panels().flat_map(|panel| &panel.idle);
    let causes: BTreeSet<Cause> = shown().filter(|_| report.look.causes).map(|gap| gap.cause).collect();
    if causes.is_empty() {
        item(picture, Ink::Idle, "idle");
    }
    let capped = report.panels().any(|panel| panel.memory_cap.is_some());
    for cause in causes {
        item(picture, Ink::Cause(cause), cause.name(capped));
    }
    if heights.memory > 0.0 && held.top > 0.0 {
        item(picture, Ink::Memory, &format!("activations held, 0 to {}", number(held.top)));
        if let Some(cap) = held.cap {
            item(picture, Ink::Cap, &format!("cap {}", number(cap)));
        }
    }
    let any = |is: fn(&Timeline) -> bool| report.panels().any(|p| is(&p.timeline));
    let lighter = match (any(|t| t.chunks > 1), any(|t| t.chunks == 1 && runs_two_ways(&rows(t)))) {
        (true, _) if any(|t| t.chunks > 4) => "dark and light: chunks in turn",
        (true, true) => "lighter: later chunk or other way",
        (true, false) => "lighter: later chunk",
        (false, true) => "lighter: the other way",
        (false, false) => "",
    };
    if !lighter.is_empty() {
        item(picture, Ink::Box(Class::Op(Kind::F), 2), lighter);
    }
    y.max(top) + 6.0
}

fn block(
    picture: &mut Picture,
    frame: &PictureFrame,
    entry: &Entry,
    panels: &[PreparedPanel],
    look: &Look,
    (held, row_height): (&MemoryScale, Option<f64>),
    y: f64,
) -> f64 {
    let mut y = heading(picture, frame, entry, look.columns.as_deref(), y + 14.0) + 8.0;
    let Some(devices) = panels.iter().map(|p| p.rows.len()).max() else { return y };
    let mut heights = Heights::new(devices, panels.len() > 1, row_height);
    if !look.memory {
        heights.memory = 0.0;
    }
    let step = devices.div_ceil(MOST_DEVICES).max(1);
    let lanes: [bool; 2] = [
        look.waits && panels.iter().any(|p| p.rows.iter().any(|row| !row.send.is_empty())),
        look.waits && panels.iter().any(|p| p.rows.iter().any(|row| !row.receive.is_empty())),
    ];
    let beside = lanes_in_use(panels.iter().flat_map(|p| &p.beside));
    let band_height = heights.total(lanes.map(usize::from).iter().sum(), beside.map(usize::from).iter().sum());
    let has_phases = panels.iter().any(|p| p.rows.first().is_some_and(|row| !row.phases().is_empty()));
    if let Some(text) = panels.iter().find_map(|p| left_out(p.panel, p.axis, look)) {
        y += 7.0;
        picture.text(to(SMALL, Anchor::End), frame.right, y - 1.0, text);
        y += 3.0;
    }
    y += if heights.compute < 8.0 {
        0.0
    } else if heights.phase > 0.0 && has_phases {
        10.0
    } else {
        6.0
    };
    if panels.iter().any(|p| p.axis.repeat.is_some()) {
        y += 20.0;
    }
    if heights.compute >= 8.0 {
        for (edge, name) in frame.edges().into_iter().zip(["busy", "peak"]) {
            edge.into_iter().for_each(|x| picture.text(to(SMALL, Anchor::End), x, y - 1.0, name));
        }
        picture.text(SMALL, frame.margin, y - 1.0, if frame.wide { "" } else { "device" });
    }
    y += 2.0;
    let first_top = y;
    let first = picture.shapes.len();
    let forms: Vec<Option<(Form, f64)>> = panels
        .iter()
        .map(|p| form(&p.rows, p.axis, frame.right - frame.left, heights.compute, p.panel.timeline.chunks > 1))
        .collect();
    for device in (0..devices).step_by(step) {
        let row_top = y;
        for (i, prepared) in panels.iter().enumerate() {
            let Some(row) = prepared.rows.get(device) else { continue };
            let band = Band {
                top: y,
                heights,
                lanes,
                beside: (&prepared.beside[device], beside),
                axis: prepared.axis,
                room: frame.room(),
                end_ns: prepared.end_ns,
                gaps: &prepared.gaps[device],
                form: forms[i],
                memory: &prepared.memory[device],
                memory_top: held.top,
                memory_cap: prepared.panel.memory_cap.filter(|_| held.cap.is_some()),
                scaled: frame.wide,
                phases: i == 0,
                phase_names: device == 0 && i == 0,
            };
            draw(picture, row, &band);
            margins(picture, frame, prepared, device, y, &heights, panels.len() > 1);
            y += band_height + if panels.len() > 1 { 1.0 } else { 0.0 };
        }
        if heights.compute >= 8.0 || device % 16 == 0 {
            let size = heights.compute.clamp(8.0, 11.5);
            let label =
                if heights.compute >= 14.0 && frame.wide { format!("device {device}") } else { device.to_string() };
            let style = Style { size, ..BODY };
            let height = heights.compute.max(8.0);
            picture.text(style, frame.margin, row_top + heights.phase + height / 2.0 + size * 0.36, label);
        }
        y += if heights.compute >= 14.0 {
            5.0
        } else if heights.compute >= 8.0 {
            2.0
        } else {
            0.5
        };
    }
    if let Some(PreparedPanel { panel, axis, .. }) = panels.first() {
        let margin = frame.width - frame.margin - frame.right;
        let rows = Rows { room: frame.room(), top: first_top, bottom: y, first, margin };
        ruler(picture, panel, axis, &rows, SMALL);
        bracket(picture, panel, axis, &rows, SMALL);
        y += 16.0;
    }
    y += 3.0;
    let remarks = remarks(panels, &forms, frame.right - frame.left, heights.compute, look);
    if step > 1 {
        let text = format!("One device in {step} is shown, of {devices}.");
        y = lines(picture, SMALL, frame.left, y + 8.0, frame.right - frame.left, 14.0, &text) - 8.0;
    }
    let notes = remarks.iter().copied().chain(entry.notes.iter().map(String::as_str));
    for note in notes.filter(|_| look.notes) {
        y = lines(picture, SMALL, frame.left, y + 8.0, frame.right - frame.left, 13.0, note) - 8.0;
    }
    y
}

/// Returns remarks on how the rows are drawn.
fn remarks<'a>(
    panels: &[PreparedPanel],
    forms: &[Option<(Form, f64)>],
    width: f64,
    height: f64,
    look: &'a Look,
) -> Vec<&'a str> {
    let mut remarks = Vec::new();
    if look.collapse && look.window.is_none() && panels.iter().all(|p| p.axis.repeat.is_none()) {
        remarks.push(NO_REPEAT);
    }
    let narrow = |p: &PreparedPanel| p.axis.typical() * width < 8.0;
    if height >= 8.0 && forms.iter().all(Option::is_none) && panels.iter().all(narrow) {
        remarks.push(&look.no_letters[usize::from(look.collapse)]);
    }
    remarks
}

/// Writes which panel a band shows on the left, and busy share and activation peak on the right.
fn margins(
    picture: &mut Picture,
    frame: &PictureFrame,
    prepared: &PreparedPanel,
    device: usize,
    y: f64,
    heights: &Heights,
    both: bool,
) {
    if heights.compute < 8.0 {
        return;
    }
    let size = heights.compute.clamp(8.0, 11.0);
    let base = y + heights.phase + heights.compute / 2.0 + size * 0.36;
    let style = Style { size, ..MUTED };
    if both && heights.compute >= 14.0 {
        let name = source_name(prepared.panel.timeline.source);
        picture.text(Style { size: 9.0, ..to(style, Anchor::End) }, frame.left - 5.0, base - 0.5, name);
    }
    let m = &prepared.panel.metrics;
    if let Some(d) = m.per_device.iter().find(|d| d.device as usize == device) {
        // A device without a complete trace is marked.
        let busy = prepared.panel.busy_share(d).map_or("?".to_string(), percent);
        for (edge, figure) in frame.edges().into_iter().zip([busy, number(d.peak_activations)]) {
            edge.into_iter().for_each(|x| picture.text(to(style, Anchor::End), x, base, &*figure));
        }
    }
}

fn footer(picture: &mut Picture, frame: &PictureFrame, report: &Report, scale: &Scale, mut y: f64) -> f64 {
    let (mut texts, notes) = (Vec::new(), report.look.notes);
    if notes && !report.entries.is_empty() {
        let more = "; span bubble = (span − ideal) / span; bubble over ideal = (makespan − ideal) / ideal. Step ops are drawn but \
                    count in none of them.";
        texts.push(format!("bubble = 1 − Σ busy / (p · makespan){}", if frame.wide { more } else { "" }));
    }
    texts.extend(report.changes().into_iter().filter(|_| notes));
    let panels = report.entries.iter().filter_map(|entry| entry.predicted.as_ref());
    if notes && panels.flat_map(|panel| &panel.streams).next().is_some() {
        texts.push("Streams: a attention, d dispatch, m MLP or experts, c combine; s runs next to m's weights.".into());
    }
    if scale.is_mixed() {
        texts.push("Panels of different time units have their own scales; the axis is the upper one's.".into());
    }
    if notes && !report.provenance.is_empty() {
        let shown = report.provenance.iter().filter(|(key, _)| !["command", "products"].contains(&key.as_str())); // too long for a picture
        texts.push(shown.map(|(k, v)| format!("{k}: {v}")).collect::<Vec<String>>().join(" · "));
    }
    for text in texts {
        y = lines(picture, SMALL, frame.margin, y + 10.0, frame.text(), 12.0, &text) - 8.0;
    }
    y
}
