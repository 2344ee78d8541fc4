//! From a file's text to a schedule.

use super::cells::{Action, CELL, Cells, What, parse};
use super::{Error, Imported, MAX_BYTES, communication, layout};
use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::schedule::{Programs, Schedule, Seen, pair_fault};
use std::ops::Range;

/// Reads the schedule `name` from `text`, the content of `file`: `compute_only` or `compute_comms`, whichever it is.
///
/// Placement and number of micro-batches follow from the cells: a stage is where its row is; a stage on two rows makes the
/// placement bidirectional, direction 0 being the row that runs the first half of the micro-batches.
///
/// # Errors
/// The first cell that is wrong, or what makes the file as a whole no schedule.
pub fn read(name: &str, file: &str, text: &str) -> Result<Imported, Error> {
    let mut table = Table::scan(file, text)?;
    let mut warnings = Vec::new();
    let old = table.translate(&mut warnings)?;
    let (placement, microbatches) = layout::infer(&table)?;
    let schedule = table.schedule(name, placement, microbatches, old)?;
    communication::check(&table, &schedule)?;
    table.note_omissions(&mut warnings);
    Ok(Imported { schedule, warnings })
}

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
    fn scan(file: &'a str, text: &str) -> Result<Table<'a>, Error> {
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
                table.cell_fault(cell.row, cell.column, &expected, &found, "correct the cell or empty it")
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

    /// Turns the letters of before December 2024 (`B` for the input's half of the backward, `BW` for all of it) into
    /// today's `I` and `B`; whether there were any.
    fn translate(&mut self, warnings: &mut Vec<String>) -> Result<bool, Error> {
        let has = |what: What| self.actions.iter().any(|action| action.what == what);
        let whole = has(What::WholeBackward);
        let split = has(What::Op(Kind::I));
        if whole && split {
            let mixed = self.rows.iter().enumerate().find_map(|(row, range)| {
                let action = self.actions[range.clone()].iter().find(|a| a.what == What::WholeBackward)?;
                let remedy = "write the full backward as B everywhere";
                Some(self.action_fault(row, action, "today's letters, for the file also has I", remedy))
            });
            return mixed.map_or(Ok(false), Err);
        }
        if !whole && (split || !has(What::Op(Kind::W)) || !has(What::Op(Kind::B))) {
            return Ok(false);
        }
        let mut counts = [0_usize; 2];
        for action in &mut self.actions {
            match action.what {
                What::Op(Kind::B) => (action.what, counts[0]) = (What::Op(Kind::I), counts[0] + 1),
                What::WholeBackward => (action.what, counts[1]) = (What::Op(Kind::B), counts[1] + 1),
                _ => {}
            }
        }
        let [input, whole] = counts;
        warnings.push(format!("old dialect (PyTorch before December 2024): {input} B read as I, {whole} BW read as B"));
        Ok(true)
    }

    /// Puts the ops in order and checks that each stage runs every micro-batch once forward and once backward.
    fn schedule(&self, name: &str, placement: Placement, microbatches: u32, old: bool) -> Result<Schedule, Error> {
        let stages = placement.stages() as usize;
        let mut programs = Programs::default();
        programs.ops.reserve_exact(self.ops().count());
        let mut chunk_of = vec![0; stages * placement.directions() as usize];
        for (row, range) in self.rows.iter().enumerate() {
            let device = row as u32;
            for (number, chunk) in placement.held_by(device).iter().enumerate() {
                chunk_of[chunk.direction as usize * stages + chunk.stage as usize] = number;
            }
            let mut seen = Seen::new(&placement, device, microbatches);
            let mut opening: Option<Op> = None;
            for action in &self.actions[range.clone()] {
                let What::Op(kind) = action.what else { continue };
                let direction = direction(&placement, action.microbatch, microbatches);
                let op = Op::new(kind, action.stage, action.microbatch).in_direction(direction);
                let fault = opening.take().and_then(|first| pair_fault(first, op)).map_or(Ok(()), Err);
                let chunk = chunk_of[direction as usize * stages + op.stage() as usize];
                fault.and_then(|()| seen.add(chunk, op)).map_err(|what| self.refused(row, action, &what, old))?;
                opening = action.opens_pair.then_some(op);
                programs.ops.push(if action.opens_pair { op.opening_pair() } else { op });
            }
            if let Some(missing) = seen.missing() {
                let found = format!("row {} (device {row}) where {missing}", row + 1);
                let expected = "every stage to run each micro-batch forward and backward (B, or I and later W)";
                return Err(self.fault(expected, found, &format!("add it{}", dialect(old))));
            }
            programs.finish(Vec::new());
        }
        Ok(Schedule::new(name, placement, microbatches, programs))
    }

    /// An op that cannot run where it stands.
    fn refused(&self, row: usize, action: &Action, what: &str, old: bool) -> Error {
        let remedy = format!("correct the row's order{}", dialect(old));
        self.action_fault(row, action, &format!("an op that can run here ({what})"), &remedy)
    }

    /// A warning where actions that pipesim has no use for were left out.
    fn note_omissions(&self, warnings: &mut Vec<String>) {
        let count = self.actions.iter().filter(|action| action.what == What::Sharding).count();
        if count > 0 {
            warnings
                .push(format!("{count} UNSHARD, RESHARD and REDUCE_GRAD actions left out: parameters are not sharded"));
        }
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

/// The direction in which micro-batch `index` of m runs.
pub fn direction(placement: &Placement, index: u32, microbatches: u32) -> u32 {
    u32::from(!placement.microbatches_of(0, microbatches).contains(&index))
}

fn dialect(old: bool) -> &'static str {
    if old { " (having W but no I, the file was read in the old dialect: B as I, BW as B)" } else { "" }
}
