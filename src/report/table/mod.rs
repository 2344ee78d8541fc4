//! The figures as tables, for the terminal and as Markdown.

pub mod comparison;
pub mod latex;

use crate::number::{MISSING, number, off_by, percent, points, signed_percent};
use crate::text::{columns, fit, folded, wrapped};
use crate::{Entry, Panel, Report, Table};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, TableStyle, Width};
use comparison::{bound_and_gap, time};
use pipesim_schedule::metrics::Metrics;
use pipesim_schedule::statistics::LEAST_FOR_CI95;
use std::collections::BTreeSet;

const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Longest text of a cell; file contents are untrusted.
const LONGEST: usize = 1000;

/// The figures that predicted and measured panels share.
fn common(panel: &Panel) -> [String; 5] {
    let m = &panel.metrics;
    [
        time(m.makespan, panel),
        percent(m.bubble),
        percent(m.span_bubble),
        percent(m.bubble_over_ideal),
        number(m.peak_activations()),
    ]
}

const COMMON: [&str; 5] = ["makespan", "bubble", "span bubble", "bubble over ideal", "peak activations"];

fn predicted(report: &Report) -> Option<Table> {
    if report.entries.iter().all(|entry| entry.predicted.is_none()) {
        return None;
    }
    let panels = || report.entries.iter().flat_map(|entry| &entry.predicted);
    let any = |has: fn(&Metrics) -> bool| panels().any(|panel| has(&panel.metrics));
    // If the machine's speed varied, bounds refer to another speed than these makespans and have their own table.
    let bound = any(|m| m.lower_bound.is_some()) && !any(|m| m.typical_speed.is_some());
    let mut header = vec!["schedule"];
    header.extend(COMMON);
    header.extend(["lower bound", "gap"].into_iter().filter(|_| bound));
    let row = |entry: &Entry| {
        let mut cells = vec![entry.name.clone()];
        if let Some(panel) = &entry.predicted {
            cells.extend(common(panel));
            if bound {
                cells.extend(bound_and_gap(panel));
            }
        }
        cells.resize(header.len(), MISSING.into());
        cells
    };
    Some(Table::new("", &header, report.entries.iter().map(row).collect()))
}

/// Returns the table of predicted makespans at the machine's median speed against their lower bounds, if its speed
/// varied.
fn typical(report: &Report) -> Option<Table> {
    let row = |entry: &Entry| {
        let panel = entry.predicted.as_ref()?;
        let makespan = time(panel.metrics.typical_speed?.makespan, panel);
        Some([entry.name.clone(), makespan].into_iter().chain(bound_and_gap(panel)).collect())
    };
    let rows: Vec<Vec<String>> = report.entries.iter().filter_map(row).collect();
    let caption = "Prediction at the machine's median speed (above: at its speed during the measured step)";
    (!rows.is_empty()).then(|| Table::new(caption, &["schedule", "makespan", "lower bound", "gap"], rows))
}

/// Returns the table of measurements with their prediction errors.
fn measured(report: &Report) -> Option<Table> {
    if report.entries.iter().all(|entry| entry.measured.is_none()) {
        return None;
    }
    let errors = report.entries.iter().any(|entry| entry.error.is_some());
    let mut header = vec!["schedule", "iteration"];
    // Next to errors, rates that repeat the bubble would make the table too wide for a terminal.
    let shown = |i: usize| !errors || i < 2;
    header.extend(COMMON.into_iter().enumerate().filter(|&(i, _)| shown(i)).map(|(_, name)| name));
    header.extend(["makespan error", "bubble error", "op start error p95"].into_iter().filter(|_| errors));
    let row = |entry: &Entry| {
        let mut cells = vec![entry.name.clone()];
        if let Some(panel) = &entry.measured {
            cells.push(time(panel.iteration(), panel));
            cells.extend(common(panel).into_iter().enumerate().filter(|&(i, _)| shown(i)).map(|(_, cell)| cell));
            if let Some(error) = &entry.error {
                cells.extend([signed_percent(error.makespan), points(error.bubble), percent(error.op_start_p95)]);
            }
        }
        cells.resize(header.len(), MISSING.into());
        cells
    };
    Some(Table::new("", &header, report.entries.iter().map(row).collect()))
}

/// Returns the table of prediction, measurement and error with its noise, if steps were measured.
fn judged(report: &Report) -> Option<Table> {
    let steps = report.entries.iter().filter_map(|entry| entry.error.as_ref()?.steps).min()?;
    let row = |entry: &Entry| {
        let mut cells = vec![entry.name.clone()];
        if let (Some(predicted), Some(measured), Some(error)) = (&entry.predicted, &entry.measured, &entry.error) {
            cells.extend([predicted, measured].map(|panel| time(panel.metrics.makespan, panel)));
            cells.extend([off_by(error.makespan), error.noise.map_or(MISSING.into(), percent)]);
            cells.extend([predicted, measured].map(|panel| percent(panel.metrics.bubble)));
        }
        cells
    };
    let rows = report.entries.iter().map(row).collect();
    let half = if steps < LEAST_FOR_CI95 { "range" } else { "95 % interval" };
    let caption = format!("Makespan of the median step; noise: half the {half} over {steps} steps");
    let header = ["schedule", "predicted", "measured", "error", "noise", "predicted bubble", "measured bubble"];
    Some(Table::new(caption, &header, rows))
}

/// Returns the tables of a report with their captions; a single table of figures needs none.
pub fn tables(report: &Report) -> Vec<Table> {
    if let Some(judged) = judged(report) {
        return [judged].into_iter().chain(report.extra_tables.iter().cloned()).collect();
    }
    let (mut predicted, mut measured) = (predicted(report), measured(report));
    if let (Some(predicted), Some(measured)) = (&mut predicted, &mut measured) {
        (predicted.caption, measured.caption) = ("Predicted".to_string(), "Measured".to_string());
    }
    let mut tables = report.comparison();
    if !tables.is_empty() {
        predicted = None;
    }
    tables.extend([predicted, typical(report), measured].into_iter().flatten());
    if tables.is_empty() && report.extra_tables.is_empty() {
        tables.push(Table::new("", &[&["schedule"], &COMMON[..]].concat(), Vec::new()));
    }
    tables.extend(report.extra_tables.iter().cloned());
    tables
}

impl Report {
    /// Returns the tables as text: predicted, measured, then the extra ones. With a `width`, cells are broken at spaces to
    /// fit; without, a row is a line.
    pub fn table(&self, width: Option<usize>) -> String {
        let caption = |text: &str| match text {
            "" => String::new(),
            text => wrapped(&fit(text, LONGEST, "…"), width).join("\n") + "\n",
        };
        let one = |table: Table| caption(&table.caption) + &grid(table, width);
        tables(self).into_iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

/// Draws a grid. If its words do not fit the width side by side, the remaining columns follow below; if not even two
/// columns fit, each row becomes a list.
fn grid(Table { header, mut rows, .. }: Table, width: Option<usize>) -> String {
    let count = rows.iter().map(Vec::len).chain([header.len()]).max().unwrap_or(0);
    // A single word may take half the width, or 40 columns.
    let cut = |cell: &str| {
        let most = width.filter(|_| !cell.contains(' ')).map_or(LONGEST, |width| (width / 2).max(40).min(width));
        fit(cell, most, "…").replace(" %", "\u{a0}%")
    };
    let mut header: Vec<String> =
        header.iter().map(|name| if width.is_some() { broken(&cut(name)) } else { cut(name) }).collect();
    header.resize(count, String::new());
    for row in &mut rows {
        row.resize(count, String::new());
        row.iter_mut().for_each(|cell| *cell = cut(cell));
    }
    let text = match width.map(|width| (width, arranged(&header, &rows, width))) {
        None => grid_of(&header, &rows, None),
        Some((width, None)) => list(&header, &rows, width),
        Some((width, Some((groups, least)))) => {
            let one = |group: &Vec<usize>| {
                let pick = |row: &Vec<String>| group.iter().map(|&i| row[i].clone()).collect::<Vec<_>>();
                let least = group.iter().map(|&i| least[i]).collect();
                grid_of(&pick(&header), &rows.iter().map(pick).collect::<Vec<_>>(), Some((width, least)))
            };
            groups.iter().map(one).collect::<Vec<_>>().join("\n")
        }
    };
    text.replace('\u{a0}', " ")
}

/// Columns that a cell needs besides its text: the padding and the line between two.
const BESIDES: usize = 2;

/// Splits columns into groups that fit `width`, each with the columns that name the rows; and returns the least width
/// of each column. None if two columns do not fit.
fn arranged(header: &[String], rows: &[Vec<String>], width: usize) -> Option<(Vec<Vec<usize>>, Vec<usize>)> {
    let longest = |column: usize, ends: &[char]| {
        let cells = rows.iter().map(Vec::as_slice).chain([header]).filter_map(|row| row.get(column));
        cells.flat_map(|cell| cell.split(ends)).map(columns).max().unwrap_or(0)
    };
    let names_rows = |keys: usize| rows.iter().map(|row| &row[..keys]).collect::<BTreeSet<_>>().len() == rows.len();
    let keys = (1..header.len().min(4)).find(|&keys| names_rows(keys)).unwrap_or(1).min(header.len());
    // Words are never broken; row names are not if they take at most half of the width.
    let words: Vec<usize> = (0..header.len()).map(|column| longest(column, &[' ', '\n'])).collect();
    let whole: Vec<usize> = (0..header.len()).map(|i| if i < keys { longest(i, &['\n']) } else { words[i] }).collect();
    let taken = |least: &[usize]| least.iter().map(|column| column + BESIDES).sum::<usize>();
    let width = width + 1;
    let least = if taken(&whole[..keys]) * 2 <= width || taken(&whole) <= width { whole } else { words };
    if taken(&least) <= width {
        return Some((vec![(0..header.len()).collect()], least));
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut used = width;
    for column in keys..header.len() {
        if used + least[column] + BESIDES > width {
            groups.push((0..keys).collect());
            used = taken(&least[..keys]);
        }
        used += least[column] + BESIDES;
        groups.last_mut()?.push(column);
        if used > width {
            return None;
        }
    }
    (!groups.is_empty()).then_some((groups, least))
}

fn list(header: &[String], rows: &[Vec<String>], width: usize) -> String {
    let mut out = String::new();
    for row in rows {
        for (i, (name, cell)) in header.iter().zip(row).enumerate() {
            let (name, indent) = (name.replace('\n', " "), if i == 0 { "" } else { "  " });
            let colon = if name.is_empty() { "" } else { ": " };
            out += &folded(&format!("{indent}{name}{colon}{cell}\n"), Some(width));
        }
    }
    out
}

/// Draws a grid, optionally in a width with the least width of each column.
fn grid_of(header: &[String], rows: &[Vec<String>], room: Option<(usize, Vec<usize>)>) -> String {
    let mut grid = comfy_table::Table::new();
    grid.load_style(STYLE);
    grid.set_header(header).add_rows(rows);
    let arrangement = if room.is_some() { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
    let number = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    grid.set_content_arrangement(arrangement).set_width(number(room.as_ref().map_or(usize::MAX, |(width, _)| *width)));
    for (i, column) in grid.column_iter_mut().enumerate() {
        column.set_cell_alignment(if i == 0 { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding((0, 1));
        if let Some((_, least)) = &room {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(number(least[i] + 1))));
        }
    }
    let mut out: String = grid.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    if out.is_empty() {
        out.push('\n');
    }
    out
}

/// Breaks a column's name in two lines to keep columns narrow.
pub fn broken(name: &str) -> String {
    if name.len() < 9 {
        return name.to_string();
    }
    match name.char_indices().filter(|&(_, c)| c == ' ').min_by_key(|&(i, _)| i.abs_diff(name.len() / 2)) {
        Some((i, _)) => format!("{}\n{}", &name[..i], &name[i + 1..]),
        None => name.to_string(),
    }
}

impl Report {
    /// Returns the tables as Markdown.
    pub fn markdown(&self) -> String {
        let caption = |text: &str| if text.is_empty() { String::new() } else { cell(text) + "\n\n" };
        let one = |table: Table| caption(&table.caption) + &markdown_grid(&table);
        let verdict = if self.verdict.is_empty() { String::new() } else { cell(&self.verdict) + "\n\n" };
        verdict + &tables(self).into_iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

fn markdown_grid(Table { header, rows, .. }: &Table) -> String {
    let width = rows.iter().map(Vec::len).chain([header.len()]).max().unwrap_or(0);
    let line = |cells: &mut dyn Iterator<Item = String>| -> String {
        let mut cells: Vec<String> = cells.collect();
        cells.resize(width, String::new());
        format!("| {} |\n", cells.join(" | "))
    };
    let mut out = line(&mut header.iter().map(|name| cell(name)));
    out.push_str(&line(&mut (0..width).map(|i| if i == 0 { ":---".into() } else { "---:".into() })));
    for row in rows {
        out.push_str(&line(&mut row.iter().map(|text| cell(text))));
    }
    out
}

/// Escapes a text so that it cannot end its cell or become markup.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in crate::text::plain(text).chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            c => out.push(c),
        }
    }
    out
}
