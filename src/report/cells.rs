//! What each cell of a terminal's line shows, so that a line has the colours or letters of its ops in proportion to their times.
//!
//! A cell that an op fills shows that op. Where ops are narrower, cells are mixed by area if the terminal has the colours for
//! that; else each cell shows one of what lies in it: the nearest, but what came off badly in the cells before has precedence.

use super::axis::Axis;
use super::palette::{Class, Rgb};
use super::scene::Mark;

/// What a cell shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell {
    /// A box, by number, or idle time.
    One(Option<usize>),
    /// A box or idle time, and from so many eighths on another.
    Two(Option<usize>, Option<usize>, u8),
    /// Several boxes, mixed; so many eighths of the cell are busy, all but those at its end.
    Mixed(Rgb, u8),
    /// The mark where something is left out.
    Break,
}

/// How cells can show things.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// Whether cells can have mixed colours.
    pub(super) mixed: bool,
    /// Whether cells can be split at eighths.
    pub(super) split: bool,
}

/// Parts of cells below this are nobody's.
const NOTHING: f64 = 1e-6;

/// Of a line: what idle time is among the classes.
const IDLE: usize = Class::COUNT;

/// A part of a cell: the box, or idle time, and where it lies, in cells.
type Piece = (Option<usize>, f64, f64);

/// The cells of a line of `marks`. `color`: of a box.
pub(super) fn cells(
    marks: &[Mark],
    axis: &Axis,
    count: usize,
    means: Means,
    color: impl Fn(usize) -> Rgb,
) -> Vec<Cell> {
    let pieces = pieces(marks, axis, count as f64);
    let class = |what: Option<usize>| what.map_or(IDLE, |i| marks[i].class as usize);
    // How much more time than cells each class had so far.
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
            // What is left by rounding is no idle time.
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

/// A cell that shows one class.
fn only(class: usize) -> [f64; IDLE + 1] {
    std::array::from_fn(|k| if k == class { 1.0 } else { 0.0 })
}

/// Boxes and the idle time between them, in cells.
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

/// What of `pieces` lies from `from` to `to`, with the idle time between.
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

/// A cell of two things, split nearest to where the second starts so that what was owed is paid. No character leaves its left
/// eighths free, so that a cell that starts idle is filled from its half on, whole or not at all.
fn split(
    one: (Option<usize>, usize),
    two: (Option<usize>, usize),
    at: f64,
    owed: &[f64; IDLE + 1],
) -> (Cell, [f64; IDLE + 1]) {
    let due = if one.1 == two.1 { 0.0 } else { ((owed[one.1] - owed[two.1]) / 2.0).clamp(-0.5, 0.5) };
    let wanted = (at + due) * 8.0;
    let eighths = if one.0.is_none() { (wanted / 4.0).round() * 4.0 } else { wanted.round() }.clamp(0.0, 8.0);
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

/// The mean colour of what is busy in a cell, and how much of the cell that is.
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
    // A debt of idle time is paid where something idles.
    let owed = if areas[IDLE] > 0.0 { owed.clamp(-0.5, 0.5) } else { 0.0 };
    let eighths = ((busy - owed) * 8.0).round().clamp(0.0, 8.0);
    let mut shown = areas.map(|area| area / busy.max(1e-9) * eighths / 8.0);
    shown[IDLE] = 1.0 - eighths / 8.0;
    let rgb = sum.map(|c| (c / busy.max(1e-9)).round().clamp(0.0, 255.0) as u8);
    (if eighths > 0.0 { Cell::Mixed(rgb, eighths as u8) } else { Cell::One(None) }, shown)
}
