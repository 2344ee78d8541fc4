//! The timeline in a terminal: one line per device, all schedules on one scale, a ruler under them.
//!
//! With colours, boxes are exact to an eighth of a cell and carry micro-batch numbers; without, they are letters.

mod cells;

use crate::number::{changed, percent, quantity, trimmed};
use crate::picture::layout::NO_REPEAT;
use crate::picture::ruler::repeats;
use crate::scene::axis::{Axis, Scale};
use crate::scene::look::Palette;
use crate::scene::palette::{Class, Colors, Ink, Rgb, Tone, WHITE, mix};
use crate::scene::rows::{Form, LANES, LaneMarks, Mark, Row, classes, lane_marks, lanes_in_use, rows};
use crate::terminal::cells::{Cell, TerminalAbilities, cells};
use crate::text::{columns, fit, plain};
use crate::{Panel, Report};
use pipesim_cost::pair::Stream;
use pipesim_schedule::timeline::Source;
use std::fmt::Write;

/// Beyond this many devices, only every n-th is drawn.
const MOST_DEVICES: usize = 64;

/// Up to this many devices, copies and collectives have lines of their own.
const MOST_WITH_LANES: usize = 16;

/// Width of the mark for hidden time, in cells.
const BREAK: f64 = 2.0;

/// How the lines are drawn.
#[derive(Clone, Copy)]
struct Pens {
    /// Width of the time axis in cells.
    cells: usize,
    ascii: bool,
    colors: Colors,
    palette: Palette,
}

impl Pens {
    fn tone(&self, mark: &Mark) -> Tone {
        self.palette.tone(mark.class, mark.shade)
    }

    fn colored(&self) -> bool {
        self.colors != Colors::None
    }
}

impl Report {
    /// Draws the timelines of a report in `width` columns with the `colors` of the terminal; `ascii` avoids all other
    /// characters.
    pub fn terminal(&self, width: usize, ascii: bool, colors: Colors) -> String {
        let width = width.clamp(20, 2000);
        let both = self.entries.iter().any(|entry| entry.predicted.is_some() && entry.measured.is_some());
        let devices = self.panels().map(|p| p.timeline.devices as usize).max().unwrap_or(0);
        let digits = devices.saturating_sub(1).to_string().len();
        let label = digits + if both { 2 } else { 0 } + 2;
        let busy = if width >= 50 { 6 } else { 0 };
        let look =
            Pens { cells: width.saturating_sub(label + 1 + busy).max(4), ascii, colors, palette: self.look.palette };
        let scale = Scale::readable(self, look.cells as f64, 1.9, BREAK);
        let mut out = String::new();
        let separator = if ascii { " - " } else { " · " };
        let bar = if ascii { "|" } else { "│" };
        let last = self.entries.iter().rposition(|entry| entry.panels().next().is_some());
        for (i, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.left_out().is_none()) {
            if !out.is_empty() {
                out.push('\n');
            }
            heading(&mut out, entry, width, &look, separator);
            let panels = entry.panels().zip(scale.axes(i)).map(|(panel, axis)| Lines::new(panel, axis, &look));
            let panels: Vec<Lines> = panels.collect();
            let devices = panels.iter().map(|lines| lines.rows.len()).max().unwrap_or(0);
            let step = devices.div_ceil(MOST_DEVICES).max(1);
            for device in (0..devices).step_by(step) {
                for (n, lines) in panels.iter().enumerate() {
                    let Some(row) = lines.rows.get(device) else { continue };
                    let edges = [(lines.axis.began(), ["<", "‹"]), (lines.axis.goes_on(), [">", "›"])];
                    let [before, after] = edges.map(|(cut, edge)| if cut { edge[usize::from(!ascii)] } else { bar });
                    let number = if n == 0 { device.to_string() } else { String::new() };
                    let which = match (both, panels.len(), n) {
                        (false, ..) => "",
                        (true, 1, _) => "  ",
                        (true, _, 0) => " p",
                        (true, ..) => " m",
                    };
                    let cells = lines.line(&row.compute, &look, |mark, fits| mark.label(lines.form, fits));
                    let _ = write!(out, "{number:>digits$}{which} {before}{cells}{after}");
                    let m = &lines.panel.metrics;
                    if busy > 0
                        && m.makespan > 0.0
                        && let Some(d) = m.per_device.iter().find(|d| d.device as usize == device)
                    {
                        // A device without a complete trace is marked.
                        let share = lines
                            .panel
                            .busy_share(d)
                            .map_or("?".to_string(), |share| format!("{:.0} %", share * 100.0));
                        let _ = write!(out, "{:>busy$}", fit(&share, busy, ""));
                    }
                    out.truncate(out.trim_end_matches(' ').len());
                    out.push('\n');
                    for lane in lines.shown.iter().filter(|_| devices <= MOST_WITH_LANES) {
                        if lines.beside[device][*lane].is_empty() {
                            continue;
                        }
                        let cells = lines.line(&lines.beside[device][*lane], &look, |mark, fits| mark.brief(fits));
                        let _ = writeln!(out, "{:pad$}{before}{cells}{after}", "", pad = label - 1);
                    }
                }
            }
            if step > 1 {
                let text = format!("one device in {step} is shown, of {devices}");
                let _ = writeln!(out, "{}", shortened(&text, width, &look));
            }
            let Some(first) = panels.first() else { continue };
            let is_last = last == Some(i);
            // If nothing is cut, all schedules share one ruler.
            if is_last || first.axis.repeat.is_some() || scale.axes(i + 1).iter().any(|axis| axis.repeat.is_some()) {
                ruler(&mut out, first, label, width, &look);
            }
            if let Some(text) = repeats(first.panel, first.axis) {
                let (mark, times) = if ascii { ("~", "x") } else { ("≈", "×") };
                let text = format!("{mark} the steady state, drawn once: {}", text.replace('×', times));
                let _ = writeln!(out, "{}", shortened(&text, width, &look));
            } else if self.look.collapse && self.look.window.is_none() {
                let _ = writeln!(out, "{}", shortened(NO_REPEAT, width, &look));
            }
        }
        if self.panels().next().is_some() {
            legend(&mut out, self, &scale, width, both, &look);
            let axes = || (0..self.entries.len()).flat_map(|i| scale.axes(i));
            if axes().all(|axis| axis.typical() * (look.cells as f64) < 0.9) {
                let text = &self.look.no_letters[usize::from(self.look.collapse)];
                let _ = writeln!(out, "{}", shortened(text, width, &look));
            }
        }
        out
    }
}

/// Cuts `text` to `width` columns, in ASCII if asked for.
fn shortened(text: &str, width: usize, look: &Pens) -> String {
    if look.ascii {
        let text: String = plain(text).chars().map(|c| if c.is_ascii() { c } else { '?' }).collect();
        fit(&text, width, "..")
    } else {
        fit(text, width, "…")
    }
}

fn heading(out: &mut String, entry: &crate::Entry, width: usize, look: &Pens, separator: &str) {
    let facts = |is_long: bool| {
        let of = |panel: &Panel| {
            let m = &panel.metrics;
            let which = match (&entry.predicted, &entry.measured) {
                (Some(_), Some(_)) => format!("{} ", crate::file::csv::source_name(panel.timeline.source)),
                _ => String::new(),
            };
            let time = |time: f64| quantity(time, &panel.timeline.time_unit);
            let is_predicted = panel.timeline.source == Source::Predicted;
            let iteration = entry.iteration().map(time).filter(|shown| is_predicted && *shown != time(m.makespan));
            let whole = match iteration {
                Some(iteration) if is_long => format!("{iteration}, of which pipeline "),
                Some(iteration) => return format!("{which}{iteration}, bubble {}", percent(m.bubble)),
                None => String::new(),
            };
            let mean = entry.over_steps.iter().find(|(name, _)| *name == "jitter_mean");
            let mean = mean.filter(|_| is_predicted && is_long);
            let mean = mean.map(|(_, mean)| {
                format!("; with jitter {} on average ({})", time(*mean), changed(mean / m.makespan - 1.0))
            });
            format!("{which}{whole}{}, bubble {}{}", time(m.makespan), percent(m.bubble), mean.unwrap_or_default())
        };
        entry.panels().map(of).collect::<Vec<_>>().join(separator)
    };
    let room = width.saturating_sub(10);
    let facts = Some(facts(true)).filter(|facts| columns(facts) <= room).unwrap_or_else(|| facts(false));
    let facts = shortened(&facts, room, look);
    let name = shortened(&entry.name, width.saturating_sub(columns(&facts) + 2), look);
    let name = if look.colored() { format!("\x1b[1m{name}\x1b[0m") } else { name };
    let _ = writeln!(out, "{}", format!("{name}  {facts}").trim_end());
}

/// A panel with everything needed to draw it.
struct Lines<'a> {
    panel: &'a Panel,
    axis: &'a Axis,
    rows: Vec<Row<'a>>,
    /// How ops are named.
    form: Option<Form>,
    beside: Vec<LaneMarks<'a>>,
    /// Lanes with a line of their own: copies and collectives.
    shown: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(panel: &'a Panel, axis: &'a Axis, look: &Pens) -> Lines<'a> {
        let rows = rows(&panel.timeline);
        let mut boxes = Vec::new();
        for mark in rows.iter().flat_map(|row| &row.compute) {
            let lasts = mark.span.end_ns.saturating_sub(mark.span.start_ns);
            let Some(op) = mark.op.filter(|_| axis.width(lasts) * look.cells as f64 > 0.8) else { continue };
            let seen = axis.seen(mark.span.start_ns, mark.span.end_ns);
            // Box edges are rounded to cells.
            let room = seen.map(|(left, right)| ((right - left) * look.cells as f64 + 0.15) as usize);
            boxes.extend(room.filter(|&room| room > 0).map(|room| (op, room)));
        }
        let forms: &[Form] =
            if look.colored() { &[Form::Kind, Form::Number, Form::Letter] } else { &[Form::Kind, Form::Letter] };
        let form = Form::fitting(forms, &boxes, |text, &room| text.len() <= room);
        let beside = lane_marks(panel, &rows);
        let in_use = lanes_in_use(beside.iter());
        let shown = (Stream::ALL.len()..LANES).filter(|&lane| in_use[lane]).collect();
        Lines { panel, axis, rows, form, beside, shown }
    }

    /// Draws one line's cells; `label` names a box in a text that fits.
    fn line(
        &self,
        marks: &[Mark],
        look: &Pens,
        label: impl Fn(&Mark, &dyn Fn(&str) -> bool) -> Option<String>,
    ) -> String {
        // Boxes of at least a cell start and end with one, so that labels fit; smaller ones share cells.
        let wide = self.axis.typical() * look.cells as f64 >= 1.0;
        let blocks = look.colored() && !look.ascii;
        let means = TerminalAbilities { mixed: blocks && look.colors != Colors::Sixteen, split: blocks && !wide };
        let cells = cells(marks, self.axis, look.cells, means, |i| look.colors.shown(ink(&marks[i], look).0));
        let mut text: Vec<Option<char>> = vec![None; cells.len()];
        let mut at = 0;
        for run in cells.chunk_by(|a, b| a == b) {
            if let Cell::One(Some(i)) = run[0] {
                let label = label(&marks[i], &|text| text.is_ascii() && text.len() <= run.len());
                let label = label.unwrap_or_default();
                let offset = if look.colored() { (run.len() - label.len()) / 2 } else { 0 };
                label.chars().enumerate().for_each(|(j, c)| text[at + offset + j] = Some(c));
            }
            at += run.len();
        }
        if look.colored() { colored(marks, &cells, &text, look) } else { lettered(marks, &cells, &text, look) }
    }
}

fn idle(look: &Pens) -> char {
    if look.ascii { '.' } else { '·' }
}

fn broken(look: &Pens) -> char {
    if look.ascii { '~' } else { '≈' }
}

/// Draws cells as letters: the kind's letter at the start of a box, then a line.
fn lettered(marks: &[Mark], cells: &[Cell], text: &[Option<char>], look: &Pens) -> String {
    let mut previous = None;
    let letters = cells.iter().zip(text).map(|(cell, &label)| {
        let (before, here) = (previous, if let Cell::One(here) = *cell { here } else { None });
        previous = here;
        match (label, cell, here) {
            (Some(c), ..) => c,
            (None, Cell::Break, _) => broken(look),
            (None, _, None) => idle(look),
            (None, _, Some(i)) if before == Some(i) => {
                if look.ascii {
                    '-'
                } else {
                    '━'
                }
            }
            (None, _, Some(i)) => letter(&marks[i]),
        }
    });
    letters.collect()
}

fn letter(mark: &Mark) -> char {
    match mark.class.letter() {
        Some(letter) => letter,
        None => mark.span.op.chars().find(char::is_ascii_alphanumeric).unwrap_or('s').to_ascii_lowercase(),
    }
}

/// Returns a box's colour. Odd micro-batches are a little darker, to tell neighbours of one kind apart.
fn ink(mark: &Mark, look: &Pens) -> Ink {
    let odd = mark.op.is_some_and(|op| op.microbatch() % 2 == 1);
    (mix(look.tone(mark).color, [0; 3], if odd { 0.1 } else { 0.0 }), mark.class.near() + if odd { 0 } else { 8 })
}

/// Draws cells as coloured blocks.
fn colored(marks: &[Mark], cells: &[Cell], text: &[Option<char>], look: &Pens) -> String {
    let color = |what: Option<usize>| what.map(|i| ink(&marks[i], look));
    let mut out = String::new();
    let mut pen: Pen = (None, None);
    let mut owed = [0.0; 3];
    for (cell, &label) in cells.iter().zip(text) {
        let (front, back, c) = match (label, *cell) {
            (Some(c), Cell::One(Some(i))) => {
                // A terminal's own colours are bright except blue, red and magenta.
                let white = match (look.colors, ink(&marks[i], look)) {
                    (Colors::Sixteen, (_, near)) => matches!(near, 1 | 4 | 5),
                    _ => look.tone(&marks[i]).text == WHITE,
                };
                (Some(if white { ([255; 3], 15) } else { ([16; 3], 0) }), color(Some(i)), c)
            }
            (_, Cell::Break) => (None, None, broken(look)),
            (_, Cell::One(None)) => (None, None, idle(look)),
            (_, Cell::One(what)) => (None, color(what), ' '),
            (_, Cell::Two(None, right, _)) => (color(right), None, '▐'),
            (_, Cell::Two(left, right, at)) => (color(left), color(right), eighths(at)),
            (_, Cell::Mixed(rgb, busy)) => {
                let shown = settled(rgb, &mut owed, look.colors);
                if busy == 8 { (None, Some((shown, 7)), ' ') } else { (Some((shown, 7)), None, eighths(busy)) }
            }
        };
        set_pen(&mut out, &mut pen, (front, back), look);
        out.push(c);
    }
    set_pen(&mut out, &mut pen, (None, None), look);
    out
}

/// Returns a block that fills 1 to 7 eighths of a cell from the left.
fn eighths(count: u8) -> char {
    ['▏', '▎', '▍', '▌', '▋', '▊', '▉'][usize::from(count.clamp(1, 7)) - 1]
}

/// Returns the nearest colour that the terminal has, and carries the difference over to the next cell.
fn settled(target: Rgb, owed: &mut [f64; 3], colors: Colors) -> Rgb {
    let due: [f64; 3] = std::array::from_fn(|i| f64::from(target[i]) + owed[i]);
    let shown = colors.shown(due.map(|c| c.round().clamp(0.0, 255.0) as u8));
    *owed = std::array::from_fn(|i| (due[i] - f64::from(shown[i])).clamp(-128.0, 128.0));
    shown
}

/// Foreground and background.
type Pen = (Option<Ink>, Option<Ink>);

fn set_pen(out: &mut String, pen: &mut Pen, target: Pen, look: &Pens) {
    if *pen == target {
        return;
    }
    out.push_str("\x1b[0m");
    out.extend(target.0.map(|ink| look.colors.pen(ink, false)));
    out.extend(target.1.map(|ink| look.colors.pen(ink, true)));
    *pen = target;
}

fn ruler(out: &mut String, lines: &Lines, label: usize, width: usize, look: &Pens) {
    let (ticks, decimals) = lines.axis.ticks(lines.panel, (look.cells / 9).max(1));
    let (corner, dash, tick) = if look.ascii { ('+', '-', '+') } else { ('└', '─', '┴') };
    let mut axis: Vec<char> = vec![dash; look.cells];
    if let Some((from, to)) = lines.axis.mark() {
        let cell = |share: f64| ((share * look.cells as f64).round() as usize).min(look.cells);
        axis[cell(from)..cell(to)].fill(broken(look));
    }
    let mut numbers: Vec<char> = vec![' '; width.saturating_sub(label)];
    let mut free = 0;
    for (share, value) in ticks {
        let cell = ((share * look.cells as f64).round() as usize).min(look.cells.saturating_sub(1));
        axis[cell] = tick;
        let text = trimmed(value, decimals);
        if cell >= free && cell + text.len() <= numbers.len() {
            for (i, c) in text.chars().enumerate() {
                numbers[cell + i] = c;
            }
            free = cell + text.len() + 1;
        }
    }
    let unit = shortened(&lines.panel.timeline.time_unit, numbers.len().saturating_sub(free), look);
    for (i, c) in unit.chars().enumerate().filter(|_| columns(&unit) == unit.chars().count()) {
        numbers[free + i] = c;
    }
    let pad = " ".repeat(label - 1);
    let axis: String = axis.into_iter().collect();
    let numbers: String = numbers.into_iter().collect();
    let _ = writeln!(out, "{pad}{corner}{axis}");
    let _ = writeln!(out, "{pad} {}", numbers.trim_end());
}

fn legend(out: &mut String, report: &Report, scale: &Scale, width: usize, both: bool, look: &Pens) {
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
            let pen = look.colors.pen((look.palette.tone(class, 0).color, class.near()), true);
            let _ = write!(out, "{pen} \x1b[0m ");
        }
        out.push_str(text);
        used += wide;
    };
    let has_lanes = report.panels().all(|panel| panel.timeline.devices as usize <= MOST_WITH_LANES);
    let is_drawn = |class: &Class| match class {
        Class::Send | Class::Receive => false,
        Class::Gather | Class::Reduce => has_lanes,
        Class::Op(kind) => has_lanes || kind.is_compute(),
        Class::Step => true,
    };
    for class in classes(report).into_iter().filter(is_drawn) {
        item(&class.name(), Some(class));
    }
    item(idle, None);
    if (0..report.entries.len()).flat_map(|i| scale.axes(i)).any(Axis::goes_on) {
        item(if look.ascii { "> goes on" } else { "› goes on" }, None);
    }
    if both {
        item("p predicted", None);
        let is_of_steps =
            report.entries.iter().any(|entry| entry.error.as_ref().is_some_and(|error| error.steps.is_some()));
        item(if is_of_steps { "m measured: the step nearest the median" } else { "m measured" }, None);
    }
    out.push('\n');
}
