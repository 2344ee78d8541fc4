//! Cells of a CSV file.

use pipesim_answer::resolve::{Error, usage};

/// A row with the line on which it starts, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvRow {
    pub line: usize,
    pub cells: Vec<String>,
}

/// Reads rows of cells, which may be quoted; empty lines and comments after `#` at the start of a line are skipped.
///
/// # Errors
/// A quote that is not closed.
pub fn csv_rows(text: &str) -> Result<Vec<CsvRow>, Error> {
    let (mut rows, mut row, mut cell) = (Vec::new(), CsvRow { line: 1, cells: Vec::new() }, String::new());
    let (mut line, mut quoted_since) = (1, None);
    let mut letters = text.strip_prefix('\u{feff}').unwrap_or(text).chars().chain(['\n']).peekable();
    while let Some(letter) = letters.next() {
        line += usize::from(letter == '\n');
        match (letter, quoted_since) {
            ('"', Some(_)) if letters.peek() == Some(&'"') => cell.extend(letters.next()),
            ('"', Some(_)) => quoted_since = None,
            ('"', None) if cell.trim().is_empty() => quoted_since = Some(line),
            (',', None) => row.cells.push(std::mem::take(&mut cell)),
            ('\n', None) => {
                row.cells.push(std::mem::take(&mut cell));
                let next = CsvRow { line, cells: Vec::new() };
                let CsvRow { line, cells } = std::mem::replace(&mut row, next);
                let cells: Vec<String> = cells.iter().map(|cell| cell.trim().to_string()).collect();
                if cells.iter().any(|cell| !cell.is_empty()) && !cells[0].starts_with('#') {
                    rows.push(CsvRow { line, cells });
                }
            }
            (letter, _) => cell.push(letter),
        }
    }
    match quoted_since {
        Some(line) => Err(usage(format!("line {line}: expected a closing quote, found none; add it"))),
        None => Ok(rows),
    }
}
