//! The actions of a file, and what is said of one that is wrong.

use super::cells::{Action, CELL, Cells, What, parse};
use super::{Error, MAX_BYTES};
use crate::op::Kind;
use std::ops::Range;

/// The actions of a file by row.
pub struct Table<'a> {
    file: &'a str,
    /// Of all rows, one after the other.
    pub actions: Vec<Action>,
    /// By row, where its actions are.
    pub rows: Vec<Range<usize>>,
}

impl<'a> Table<'a> {
    /// Reads the cells; empty rows at the end are left out.
    pub fn scan(file: &'a str, text: &str) -> Result<Table<'a>, Error> {
        let mut table = Table { file, actions: Vec::new(), rows: Vec::new() };
        if text.len() > MAX_BYTES {
            let found = format!("{} MiB", text.len() >> 20);
            return Err(table.fault("at most 256 MiB", found, "export fewer micro-batches"));
        }
        let separators = text.bytes().filter(|b| matches!(b, b',' | b';' | b'\n' | b'\r')).count();
        table.actions.reserve_exact((separators + 1).min(text.len() / "0F0,".len() + 1));
        for cell in Cells::new(text) {
            let Some(content) = cell.text else {
                let expected = "the quote at its beginning to be closed";
                return Err(table.cell_fault(cell.row, cell.column, expected, "\"", "close or remove the quote"));
            };
            let content = content.trim();
            if content.is_empty() {
                continue;
            }
            if cell.row > table.rows.len() {
                let (row, device) = (table.rows.len() + 1, table.rows.len());
                let found = format!("row {row} (device {device}) without any");
                return Err(table.fault("every row to hold ops", found, "remove the empty row"));
            }
            if cell.row == table.rows.len() {
                table.rows.push(table.actions.len()..table.actions.len());
            }
            parse(content, cell.column as u32, &mut table.actions).map_err(|expected| {
                let found: String = content.chars().take(40).collect();
                table.cell_fault(cell.row, cell.column, &expected.to_string(), &found, "correct the cell or empty it")
            })?;
            table.rows[cell.row].end = table.actions.len();
        }
        if table.ops().next().is_none() {
            return Err(table.fault(CELL, "no op at all".to_string(), "name a file that PyTorch's _dump_csv wrote"));
        }
        Ok(table)
    }

    /// The ops with their rows.
    pub fn ops(&self) -> impl Iterator<Item = (usize, Kind, &Action)> {
        let of = |(row, range): (usize, &Range<usize>)| self.actions[range.clone()].iter().map(move |a| (row, a));
        self.rows.iter().enumerate().flat_map(of).filter_map(|(row, action)| match action.what {
            What::Op(kind) => Some((row, kind, action)),
            _ => None,
        })
    }

    /// `action` of `row` is wrong.
    pub fn action_fault(&self, row: usize, action: &Action, expected: &str, remedy: &str) -> Error {
        self.cell_fault(row, action.cell as usize, expected, &action.text(), remedy)
    }

    fn cell_fault(&self, row: usize, cell: usize, expected: &str, found: &str, remedy: &str) -> Error {
        let (file, expected, found) = (self.file.to_string(), expected.to_string(), found.to_string());
        Error::Cell { file, row: row + 1, cell, expected, found, remedy: remedy.to_string() }
    }

    /// The file as a whole is wrong.
    pub fn fault(&self, expected: &str, found: String, remedy: &str) -> Error {
        Error::File { file: self.file.to_string(), expected: expected.to_string(), found, remedy: remedy.to_string() }
    }
}
