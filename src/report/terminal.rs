//! The timeline in a terminal: one line a device, all schedules on one scale, a ruler under them.
//!
//! With colours, cells are filled to the eighth of a cell and carry micro-batch numbers; without, they are letters.

use super::number::{percent, quantity, ticks, trimmed};
use super::palette::{Class, Colors, Ink, mix, wants_white_text};
use super::scene::{Mark, Scale, classes, rows};
use super::text::{columns, fit, plain};
use super::{Panel, Report};
use std::fmt::Write;

/// Schedules with more devices show every n-th only.
const MOST_DEVICES: usize = 64;

/// How the lines are drawn.
#[derive(Clone, Copy)]
struct Look {
    /// Cells that the time axis has.
    cells: usize,
    ascii: bool,
    colors: Colors,
}

impl Look {
    fn colored(&self) -> bool {
        self.colors != Colors::None
    }
}

/// The timelines of a report in `width` columns. `ascii` avoids all other characters, `colors` are those of the terminal.
pub fn terminal(report: &Report, width: usize, ascii: bool, colors: Colors) -> String {
    let width = width.clamp(20, 2000);
    let both = report.entries.iter().any(|entry| entry.predicted.is_some() && entry.measured.is_some());
    let devices =
        report.entries.iter().flat_map(|e| e.panels()).map(|p| p.timeline.devices as usize).max().unwrap_or(0);
    let digits = devices.saturating_sub(1).to_string().len();
    let label = digits + if both { 2 } else { 0 } + 2;
    let busy = if width >= 50 { 6 } else { 0 };
    let look = Look { cells: width.saturating_sub(label + 1 + busy).max(4), ascii, colors };
    let scale = Scale::readable(report, look.cells as f64, 1.9);
    let mut out = String::new();
    let separator = if ascii { " - " } else { " · " };
    let bar = if ascii { "|" } else { "│" };
    for (i, entry) in report.entries.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        heading(&mut out, entry, width, &look, separator);
        let panels: Vec<(&Panel, Vec<_>)> = entry.panels().map(|panel| (panel, rows(&panel.timeline))).collect();
        let devices = panels.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
        let step = devices.div_ceil(MOST_DEVICES).max(1);
        for device in (0..devices).step_by(step) {
            for (n, (panel, rows)) in panels.iter().enumerate() {
                let Some(row) = rows.get(device) else { continue };
                let number = if n == 0 { device.to_string() } else { String::new() };
                let which = match (both, panels.len(), n) {
                    (false, ..) => "",
                    (true, 1, _) => "  ",
                    (true, _, 0) => " p",
                    (true, ..) => " m",
                };
                let cells = line(&row.compute, panel, &scale, &look);
                let edge = if scale.cuts(panel) { if ascii { ">" } else { "›" } } else { bar };
                let _ = write!(out, "{number:>digits$}{which} {bar}{cells}{edge}");
                let m = &panel.metrics;
                if busy > 0
                    && m.makespan > 0.0
                    && let Some(d) = m.per_device.iter().find(|d| d.device as usize == device)
                {
                    let share = format!("{:.0} %", d.busy / m.makespan * 100.0);
                    let _ = write!(out, "{:>busy$}", fit(&share, busy, ""));
                }
                trim_line(&mut out);
            }
        }
        if step > 1 {
            let text = format!("one device in {step} is shown, of {devices}");
            let _ = writeln!(out, "{}", shortened(&text, width, &look));
        }
    }
    if let Some(panel) = report.entries.iter().flat_map(|e| e.panels()).next() {
        ruler(&mut out, scale.end(panel), &panel.timeline.time_unit, label, width, &look);
        legend(&mut out, report, &scale, width, both, &look);
    }
    out
}

fn trim_line(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

/// `text` cut to `width` columns, in ASCII where that is asked for.
fn shortened(text: &str, width: usize, look: &Look) -> String {
    if look.ascii {
        let text: String = plain(text).chars().map(|c| if c.is_ascii() { c } else { '?' }).collect();
        fit(&text, width, "..")
    } else {
        fit(text, width, "…")
    }
}

fn heading(out: &mut String, entry: &super::Entry, width: usize, look: &Look, separator: &str) {
    let mut facts = Vec::new();
    for panel in entry.panels() {
        let m = &panel.metrics;
        let which = match (&entry.predicted, &entry.measured) {
            (Some(_), Some(_)) => format!("{} ", super::csv::source_name(panel.timeline.source)),
            _ => String::new(),
        };
        let makespan = quantity(m.makespan, &panel.timeline.time_unit);
        facts.push(format!("{which}{makespan}, bubble {}", percent(m.bubble)));
    }
    if let Some(error) = &entry.error {
        facts.push(format!("error {} over all steps", super::number::signed_percent(error.makespan)));
    }
    let facts = shortened(&facts.join(separator), width.saturating_sub(10), look);
    let name = shortened(&entry.name, width.saturating_sub(columns(&facts) + 2), look);
    let name = if look.colored() { format!("\x1b[1m{name}\x1b[0m") } else { name };
    let _ = writeln!(out, "{}", format!("{name}  {facts}").trim_end());
}

/// What lies in a cell: class and shade of a box (by index), or nothing.
type Filled = Option<usize>;

/// One device's cells.
fn line(marks: &[Mark], panel: &Panel, scale: &Scale, look: &Look) -> String {
    let n = look.cells;
    // Boxes of at least a cell start and end with one, so that their labels fit; smaller ones share cells.
    let typical = if marks.is_empty() { 0.0 } else { scale.typical_share(panel) * n as f64 };
    let grain = if look.colored() && typical < 1.0 { 1 } else { 8 };
    let eighths = |ns: u64| ((scale.share(panel, ns) * (n * 8 / grain) as f64).round() as usize * grain).min(n * 8);
    let mut filled: Vec<Filled> = vec![None; n * 8];
    let mut text: Vec<Option<char>> = vec![None; n];
    for (i, mark) in marks.iter().enumerate() {
        let (from, to) = (eighths(mark.span.start_ns), eighths(mark.span.end_ns));
        filled[from..to.max(from)].fill(Some(i));
        // An op that rounding made vanish is still shown where there is room.
        if from == to && from < n * 8 && filled[from].is_none() && mark.span.end_ns > mark.span.start_ns {
            filled[from..from + grain].fill(Some(i));
        }
    }
    for (i, mark) in marks.iter().enumerate() {
        let (from, to) = (eighths(mark.span.start_ns).div_ceil(8), eighths(mark.span.end_ns) / 8);
        let room = to.saturating_sub(from);
        let label = label(mark, room, typical >= 1.9, look);
        let offset = if look.colored() { room.saturating_sub(label.chars().count()) / 2 } else { 0 };
        for (j, c) in label.chars().enumerate() {
            if filled[(from + offset + j) * 8] == Some(i) {
                text[from + offset + j] = Some(c);
            }
        }
    }
    if look.colored() { colored(marks, &filled, &text, look) } else { lettered(marks, &filled, &text, look) }
}

/// A text of at most `room` characters for a box.
///
/// `letters`: whether kinds are written before numbers, for all boxes or for none.
fn label(mark: &Mark, room: usize, letters: bool, look: &Look) -> String {
    let fits = |text: &str| text.is_ascii() && text.len() <= room;
    match mark.op {
        Some(op) => {
            let (letter, number) = (op.kind().letter(), op.microbatch());
            let candidates = match (look.colored(), letters) {
                (_, true) => vec![format!("{letter}{number}"), letter.to_string()],
                (true, false) => vec![number.to_string(), letter.to_string()],
                (false, false) => vec![letter.to_string()],
            };
            candidates.into_iter().find(|text| fits(text)).unwrap_or_default()
        }
        None => {
            let name = plain(&mark.span.op);
            [name.clone(), name.chars().take(1).collect()].into_iter().find(|text| fits(text)).unwrap_or_default()
        }
    }
}

/// Cells as letters: the kind's letter where a box starts or is narrow, a line for the rest of it.
fn lettered(marks: &[Mark], filled: &[Filled], text: &[Option<char>], look: &Look) -> String {
    let idle = if look.ascii { '.' } else { '·' };
    let mut out = String::new();
    let mut previous: Filled = None;
    for (cell, &label) in text.iter().enumerate() {
        let here = most(&filled[cell * 8..cell * 8 + 8]);
        out.push(match (label, here) {
            (Some(c), _) => c,
            (None, None) => idle,
            (None, Some(i)) if previous == Some(i) => {
                if look.ascii {
                    '-'
                } else {
                    '━'
                }
            }
            (None, Some(i)) => letter(&marks[i]),
        });
        previous = here;
    }
    out
}

fn letter(mark: &Mark) -> char {
    match mark.op {
        Some(op) => op.kind().letter(),
        None => mark.span.op.chars().find(char::is_ascii_alphanumeric).unwrap_or('s').to_ascii_lowercase(),
    }
}

/// What fills most of a cell.
fn most(eighths: &[Filled]) -> Filled {
    let mut best: (Filled, usize) = (None, 0);
    for &candidate in eighths {
        let count = eighths.iter().filter(|&&other| other == candidate).count();
        if count > best.1 {
            best = (candidate, count);
        }
    }
    best.0
}

/// Cells as coloured blocks. A cell with two fillings is split at the eighth where the second starts.
fn colored(marks: &[Mark], filled: &[Filled], text: &[Option<char>], look: &Look) -> String {
    // Odd micro-batches are a little darker, so that neighbours of one kind stay apart.
    let dark = |mark: &Mark| if mark.op.is_some_and(|op| op.microbatch() % 2 == 1) { 0.14 } else { 0.0 };
    let ink = |mark: &Mark| -> Ink {
        let odd = dark(mark) > 0.0;
        (mix(mark.class.color(mark.shade), [0; 3], dark(mark)), mark.class.near() + if odd { 0 } else { 8 })
    };
    let color = |filling: Filled| filling.map(|i| ink(&marks[i]));
    let mut out = String::new();
    let mut pen: Pen = (None, None);
    for (cell, &label) in text.iter().enumerate() {
        let part = &filled[cell * 8..cell * 8 + 8];
        let main = most(part);
        let split = (1..8).find(|&i| color(part[i]) != color(part[0]));
        let (front, back, c) = match (label, split) {
            (Some(c), _) => {
                // A terminal's own colours are bright where they are not blue, red or magenta.
                let white = main.is_some_and(|i| match (look.colors, color(main)) {
                    (Colors::Sixteen, Some((_, near))) => matches!(near, 1 | 4 | 5),
                    _ => wants_white_text(marks[i].class.color(marks[i].shade)),
                });
                (Some(if white { ([255; 3], 15) } else { ([16; 3], 0) }), color(main), c)
            }
            (None, None) if main.is_none() => (None, None, if look.ascii { '.' } else { '·' }),
            (None, None) => (None, color(main), ' '),
            (None, Some(_)) if look.ascii => (None, color(main), if main.is_none() { '.' } else { ' ' }),
            (None, Some(at)) => edge(color(part[0]), color(part[7]), at),
        };
        set_pen(&mut out, &mut pen, (front, back), look);
        out.push(c);
    }
    set_pen(&mut out, &mut pen, (None, None), look);
    out
}

/// A cell that changes from `left` to `right` after `at` eighths: front, back and character. No character is empty to the
/// left of any eighth, so a cell that starts idle is filled from its half on, whole or not at all.
fn edge(left: Option<Ink>, right: Option<Ink>, at: usize) -> (Option<Ink>, Option<Ink>, char) {
    match (left, at) {
        (None, 1..=2) => (None, right, ' '),
        (None, 3..=5) => (right, None, '▐'),
        (None, _) => (None, None, '·'),
        _ => (left, right, ['▏', '▎', '▍', '▌', '▋', '▊', '▉'][at - 1]),
    }
}

/// Front and back.
type Pen = (Option<Ink>, Option<Ink>);

fn set_pen(out: &mut String, pen: &mut Pen, wanted: Pen, look: &Look) {
    if *pen == wanted {
        return;
    }
    out.push_str("\x1b[0m");
    out.extend(wanted.0.map(|ink| look.colors.pen(ink, false)));
    out.extend(wanted.1.map(|ink| look.colors.pen(ink, true)));
    *pen = wanted;
}

fn ruler(out: &mut String, end: f64, unit: &str, label: usize, width: usize, look: &Look) {
    let (at, decimals) = ticks(end, (look.cells / 9).max(1));
    let (corner, dash, tick) = if look.ascii { ('+', '-', '+') } else { ('└', '─', '┴') };
    let mut axis: Vec<char> = vec![dash; look.cells];
    let mut numbers: Vec<char> = vec![' '; width.saturating_sub(label)];
    let mut free = 0;
    for value in at {
        let cell = ((value / end * look.cells as f64).round() as usize).min(look.cells.saturating_sub(1));
        axis[cell] = tick;
        let text = trimmed(value, decimals);
        if cell >= free && cell + text.len() <= numbers.len() {
            for (i, c) in text.chars().enumerate() {
                numbers[cell + i] = c;
            }
            free = cell + text.len() + 1;
        }
    }
    let unit = shortened(unit, numbers.len().saturating_sub(free), look);
    for (i, c) in unit.chars().enumerate().filter(|_| columns(&unit) == unit.chars().count()) {
        numbers[free + i] = c;
    }
    let pad = " ".repeat(label - 1);
    let axis: String = axis.into_iter().collect();
    let numbers: String = numbers.into_iter().collect();
    let _ = writeln!(out, "{pad}{corner}{axis}");
    let _ = writeln!(out, "{pad} {}", numbers.trim_end());
}

fn legend(out: &mut String, report: &Report, scale: &Scale, width: usize, both: bool, look: &Look) {
    let mut used = 0;
    let idle = if look.ascii { ". idle" } else { "· idle" };
    let mut item = |text: &str, class: Option<Class>| {
        let class = class.filter(|_| look.colored());
        let wide = columns(text) + if class.is_some() { 2 } else { 0 };
        if wide > width {
            return;
        }
        if used + 2 + wide > width {
            out.push('\n');
            used = 0;
        }
        if used > 0 {
            out.push_str("  ");
            used += 2;
        }
        if let Some(class) = class {
            let pen = look.colors.pen((class.color(0), class.near()), true);
            let _ = write!(out, "{pen} \x1b[0m ");
        }
        out.push_str(text);
        used += wide;
    };
    for class in classes(report).into_iter().filter(|class| !matches!(class, Class::Send | Class::Receive)) {
        item(class.name(), Some(class));
    }
    item(idle, None);
    if report.entries.iter().flat_map(|e| e.panels()).any(|panel| scale.cuts(panel)) {
        item(if look.ascii { "> goes on" } else { "› goes on" }, None);
    }
    if both {
        item("p predicted", None);
        item("m measured", None);
    }
    out.push('\n');
}
