//! The time axis under the rows of a still picture, and the marks for hidden time.

use crate::number::{number, quantity, trimmed};
use crate::picture::canvas::{Anchor, Ink, Picture, Shape, Style};
use crate::scene::axis::Axis;
use crate::text::{fit_pixels, pixels, plain};
use crate::{Look, Panel};

pub struct Rows {
    /// Left edge and width.
    pub room: (f64, f64),
    pub top: f64,
    pub bottom: f64,
    /// Index of the picture's first shape that belongs to them.
    pub first: usize,
    /// Free width right of them.
    pub margin: f64,
}

/// Draws axis, ticks and grid of `panel` for rows, and the mark for hidden time.
pub fn ruler(picture: &mut Picture, panel: &Panel, axis: &Axis, rows: &Rows, style: Style) {
    let (y, (left, width)) = (rows.bottom, rows.room);
    let x = |share: f64| left + share * width;
    let (ticks, decimals) = axis.ticks(panel, (width / 97.0).round() as usize);
    let grid: Vec<[f64; 4]> = ticks.iter().map(|&(share, _)| [x(share), rows.top, x(share), y]).collect();
    if !grid.is_empty() {
        picture.shapes.insert(rows.first, Shape::Lines(Ink::Grid, grid));
    }
    let mark = axis.mark().map(|(from, to)| (x(from), x(to)));
    let end = x(axis.end());
    let mut lines = match mark {
        Some((from, to)) => vec![[left, y, from, y], [to, y, end, y]],
        None => vec![[left, y, end, y]],
    };
    lines.extend(ticks.iter().map(|&(share, _)| [x(share), y, x(share), y + 4.0]));
    if let Some((from, to)) = mark {
        let third = (to - from) / 3.0;
        lines.extend([1.0, 2.0].map(|n| [from + n * third, rows.top - 3.0, from + n * third, y + 4.0]));
    }
    picture.lines(Ink::Axis, lines);
    let mut free = f64::NEG_INFINITY;
    let labels = ticks.iter().filter_map(|&(share, value)| {
        let label = trimmed(value, decimals);
        let half = pixels(&label, style.size) / 2.0;
        let fits = x(share) - half >= free;
        free = if fits { x(share) + half + 4.0 } else { free };
        fits.then(|| (x(share), y + style.size + 3.5, label))
    });
    picture.texts(Style { anchor: Anchor::Middle, ..style }, labels.collect());
    let unit = plain(&panel.timeline.time_unit);
    // Without room at its right end, the axis has its unit at the left one.
    let (anchor, x, y, room) = match rows.margin < 20.0 {
        true => (Anchor::End, left - 6.0, y + style.size + 3.5, left - 8.0),
        false => (Anchor::Start, end + 6.0, y + 4.0, rows.margin - 6.0),
    };
    picture.text(Style { anchor, ..style }, x, y, fit_pixels(&unit, room, style.size));
}

/// Returns the remark above rows that do not show all of the time.
pub fn left_out(panel: &Panel, axis: &Axis, look: &Look) -> Option<String> {
    let unit = plain(&panel.timeline.time_unit);
    let end = quantity(panel.iteration(), &unit);
    match (look.window, axis.goes_on() || axis.began()) {
        (Some(_), true) => Some(format!("part of {end}")),
        (None, true) => Some(format!("cut here; continues to {end} »")),
        _ => None,
    }
}

/// Describes the repeats of the steady state: `× 509, each 3 units long`.
pub fn repeats(panel: &Panel, axis: &Axis) -> Option<String> {
    let repeat = axis.repeat?;
    let period = repeat.period as f64 / panel.timeline.unit_ns.max(1) as f64;
    Some(format!(
        "× {}, each {} long",
        number(repeat.count as f64),
        quantity(period, &plain(&panel.timeline.time_unit))
    ))
}

/// Draws the text of [`repeats`] over the period that is drawn for all.
pub fn bracket(picture: &mut Picture, panel: &Panel, axis: &Axis, rows: &Rows, style: Style) {
    let (Some(repeat), Some(text)) = (axis.repeat, repeats(panel, axis)) else { return };
    let x = |ns: u64| rows.room.0 + axis.place(ns) * rows.room.1;
    let (from, to, y) = (x(repeat.start), x(repeat.hidden().0), rows.top - 13.0);
    picture.lines(Ink::Axis, vec![[from, y, to, y], [from, y, from, y + 3.0], [to, y, to, y + 3.0]]);
    let half = pixels(&text, style.size) / 2.0;
    let middle =
        ((from + to) / 2.0).clamp(rows.room.0 + half, (rows.room.0 + rows.room.1 - half).max(rows.room.0 + half));
    picture.text(Style { anchor: Anchor::Middle, ..style }, middle, y - 3.0, text);
}
