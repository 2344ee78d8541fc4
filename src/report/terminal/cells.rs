//! What each character cell of a terminal's line shows. A line shows the colours or letters of its ops in proportion to
//! their times.
//!
//! A cell that one op fills shows that op. Several ops in a cell are mixed by area if the terminal has enough colours;
//! otherwise the cell shows one of them, chosen by area and by how much the previous cells under-represented it.

use crate::scene::axis::Axis;
use crate::scene::palette::{Class, Rgb};
use crate::scene::rows::Mark;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell {
    /// A box, by number, or idle time.
    One(Option<usize>),
    /// A box or idle time, and another one from this eighth on.
    Two(Option<usize>, Option<usize>, u8),
    /// Mixed boxes, and how many eighths of the cell are busy; the idle ones come last.
    Mixed(Rgb, u8),
    /// The mark for hidden time.
    Break,
}

/// What the terminal can show.
#[derive(Clone, Copy, Debug)]
pub struct TerminalAbilities {
    /// Whether cells can have mixed colours.
    pub mixed: bool,
    /// Whether cells can be split at eighths.
    pub split: bool,
}

/// Smallest part of a cell that counts.
const NOTHING: f64 = 1e-6;

/// Index of idle time among the classes.
const IDLE: usize = Class::COUNT;

/// A part of a cell: the box, or idle time, and its edges in cells.
type Piece = (Option<usize>, f64, f64);

/// Returns the cells of a line; `color` returns the colour of a mark.
pub fn cells(
    marks: &[Mark],
    axis: &Axis,
    count: usize,
    means: TerminalAbilities,
    color: impl Fn(usize) -> Rgb,
) -> Vec<Cell> {
    let pieces = pieces(marks, axis, count as f64);
    let class = |what: Option<usize>| what.map_or(IDLE, |i| marks[i].class.number());
    // By class: time minus cells shown so far.
    let mut owed = [0.0; IDLE + 1];
    let mark = axis.mark().map(|(from, to)| (from * count as f64, to * count as f64));
    let mut first = 0;
    (0..count)
        .map(|number| {
            let (from, to) = (number as f64, number as f64 + 1.0);
            if mark.is_some_and(|(left, right)| left <= from + 0.5 && from + 0.5 < right) {
                return Cell::Break;
            }
            while pieces.get(first).is_some_and(|piece| piece.2 <= from) {
                first += 1;
            }
            let here = within(&pieces[first..], from, to);
            let mut areas = [0.0; IDLE + 1];
            for &(what, left, right) in &here {
                let height = what.map_or(1.0, |i| 1.0 / f64::from(marks[i].lanes));
                areas[class(what)] += (right - left) * height;
            }
            // What rounding leaves is not idle time.
            areas[IDLE] = Some(1.0 - areas[..IDLE].iter().sum::<f64>()).filter(|&idle| idle > NOTHING).unwrap_or(0.0);
            let (cell, shown) = match &here[..] {
                [] => (Cell::One(None), only(IDLE)),
                [(what, ..)] => (Cell::One(*what), only(class(*what))),
                [one, two] if means.split => split((one.0, class(one.0)), (two.0, class(two.0)), one.2 - from, &owed),
                _ if means.mixed && here.len() > 2 => {
                    mixed(&here, &areas, owed[IDLE], |i| (color(i), 1.0 / f64::from(marks[i].lanes)))
                }
                _ => {
                    let best = (0..=IDLE).filter(|&k| areas[k] > 0.0).max_by(|&a, &b| {
                        let score = |k: usize| 2.0 * areas[k] + owed[k];
                        score(a).total_cmp(&score(b)).then(b.cmp(&a))
                    });
                    let best = best.unwrap_or(IDLE);
                    let widest = here.iter().filter(|piece| class(piece.0) == best);
                    let widest = widest.max_by(|a, b| (a.2 - a.1).total_cmp(&(b.2 - b.1)));
                    (Cell::One(widest.and_then(|piece| piece.0)), only(best))
                }
            };
            for k in 0..=IDLE {
                owed[k] = (owed[k] + areas[k] - shown[k]).clamp(-2.0, 2.0);
            }
            cell
        })
        .collect()
}

fn only(class: usize) -> [f64; IDLE + 1] {
    std::array::from_fn(|k| if k == class { 1.0 } else { 0.0 })
}

/// Returns the boxes of a line, with edges in cells.
fn pieces(marks: &[Mark], axis: &Axis, width: f64) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for part in axis.parts() {
        for (i, mark) in marks.iter().enumerate() {
            if let Some((left, right)) = part.inside(mark.span.start_ns, mark.span.end_ns) {
                pieces.push((Some(i), left * width, right * width));
            }
        }
    }
    pieces
}

/// Returns what is between `from` and `to`, idle time included.
fn within(pieces: &[Piece], from: f64, to: f64) -> Vec<Piece> {
    let mut here: Vec<Piece> = Vec::new();
    let mut free = from;
    for &(what, left, right) in pieces.iter().take_while(|piece| piece.1 < to) {
        let (left, right) = (left.max(from), right.min(to));
        if right - left <= NOTHING {
            continue;
        }
        if left - free > NOTHING {
            here.push((None, free, left));
        }
        here.push((what, left, right));
        free = free.max(right);
    }
    if to - free > NOTHING && !here.is_empty() {
        here.push((None, free, to));
    }
    here
}

/// Splits a cell of two things at the eighth that best pays what is owed. No character leaves its left eighths free, so
/// a cell that starts idle can only be split at its half.
fn split(
    one: (Option<usize>, usize),
    two: (Option<usize>, usize),
    at: f64,
    owed: &[f64; IDLE + 1],
) -> (Cell, [f64; IDLE + 1]) {
    let due = if one.1 == two.1 { 0.0 } else { ((owed[one.1] - owed[two.1]) / 2.0).clamp(-0.5, 0.5) };
    let target = (at + due) * 8.0;
    let eighths = if one.0.is_none() { (target / 4.0).round() * 4.0 } else { target.round() }.clamp(0.0, 8.0);
    let mut shown = [0.0; IDLE + 1];
    shown[one.1] += eighths / 8.0;
    shown[two.1] += 1.0 - eighths / 8.0;
    let cell = match eighths as u8 {
        0 => Cell::One(two.0),
        8 => Cell::One(one.0),
        at => Cell::Two(one.0, two.0, at),
    };
    (cell, shown)
}

/// Returns the mean colour of the busy part of a cell and its size.
fn mixed(
    here: &[Piece],
    areas: &[f64; IDLE + 1],
    owed: f64,
    color: impl Fn(usize) -> (Rgb, f64),
) -> (Cell, [f64; IDLE + 1]) {
    let busy = 1.0 - areas[IDLE];
    let mut sum = [0.0; 3];
    for &(what, left, right) in here {
        let Some((rgb, height)) = what.map(&color) else { continue };
        (0..3).for_each(|i| sum[i] += f64::from(rgb[i]) * (right - left) * height);
    }
    // Owed idle time is paid only in cells with idle time.
    let owed = if areas[IDLE] > 0.0 { owed.clamp(-0.5, 0.5) } else { 0.0 };
    let eighths = ((busy - owed) * 8.0).round().clamp(0.0, 8.0);
    let mut shown = areas.map(|area| area / busy.max(1e-9) * eighths / 8.0);
    shown[IDLE] = 1.0 - eighths / 8.0;
    let rgb = sum.map(|c| (c / busy.max(1e-9)).round().clamp(0.0, 255.0) as u8);
    (if eighths > 0.0 { Cell::Mixed(rgb, eighths as u8) } else { Cell::One(None) }, shown)
}
