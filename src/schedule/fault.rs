//! A fault of a schedule, with its place.

use crate::op::Op;
use std::fmt;

/// A fault of a schedule and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The device whose program is wrong.
    pub device: u32,
    /// The op's number in that program; `None` means the program's end.
    pub index: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// A drawing of the ops around the place.
    pub grid: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => writeln!(f, "device {}, op number {index}: {}", self.device, self.what)?,
            None => writeln!(f, "device {}, at the end: {}", self.device, self.what)?,
        }
        write!(f, "{}", self.grid)
    }
}

impl std::error::Error for Fault {}

/// Draws the ops around column `at` of `device`'s row, with that op in brackets and an arrow after the row.
pub fn grid(programs: &[&[Op]], device: u32, at: usize) -> String {
    const COLUMNS: usize = 9;
    const ROWS: usize = 8;
    let first = at.saturating_sub(COLUMNS / 2 + 1);
    let row = device as usize;
    let rows = row.saturating_sub(ROWS / 2)..programs.len().min(row.saturating_sub(ROWS / 2) + ROWS);
    let cell = |r: usize, column: usize| -> String {
        let op = programs[r].get(column).map(Op::to_string);
        match (r == row && column == at, op) {
            (true, op) => format!("[{}]", op.as_deref().unwrap_or("end")),
            (false, op) => op.unwrap_or_default(),
        }
    };
    let width = rows.clone().flat_map(|r| (first..first + COLUMNS).map(move |c| (r, c))).map(|(r, c)| cell(r, c).len());
    let width = width.max().unwrap_or(3).max(3);
    let mut text = String::new();
    for r in rows {
        let before = if first > 0 { "... " } else { "" };
        let cells: Vec<String> = (first..first + COLUMNS).map(|c| format!("{:>width$}", cell(r, c))).collect();
        let after = if programs[r].len() > first + COLUMNS { " ..." } else { "" };
        let arrow = if r == row { "   <-- here" } else { "" };
        let line = format!("  device {r:>3} | {before}{}{after}", cells.join(" "));
        text += &format!("{}{arrow}\n", line.trim_end());
    }
    text
}
