//! The actions of a file, with the placement and the number of micro-batches that they imply.

use super::cells::{Action, CELL, Cells, What, parse};
use super::{Error, MAX_BYTES};
use crate::op::Kind;
use crate::placement::{Placement, PlacementError};
use std::cmp::Reverse;
use std::ops::Range;

pub struct Table<'a> {
    file: &'a str,
    /// Actions of all rows, one after the other.
    pub actions: Vec<Action>,
    /// By row: the range of its actions.
    pub rows: Vec<Range<usize>>,
}

impl<'a> Table<'a> {
    /// Reads the cells; ignores empty rows at the end.
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

    pub fn ops(&self) -> impl Iterator<Item = (usize, Kind, &Action)> {
        let of = |(row, range): (usize, &Range<usize>)| self.actions[range.clone()].iter().map(move |a| (row, a));
        self.rows.iter().enumerate().flat_map(of).filter_map(|(row, action)| match action.what {
            What::Op(kind) => Some((row, kind, action)),
            _ => None,
        })
    }

    /// Returns the error that `action` of `row` is wrong.
    pub fn action_fault(&self, row: usize, action: &Action, expected: &str, remedy: &str) -> Error {
        self.cell_fault(row, action.cell as usize, expected, &action.text(), remedy)
    }

    fn cell_fault(&self, row: usize, cell: usize, expected: &str, found: &str, remedy: &str) -> Error {
        let (file, expected, found) = (self.file.to_string(), expected.to_string(), found.to_string());
        Error::Cell { file, row: row + 1, cell, expected, found, remedy: remedy.to_string() }
    }

    pub fn fault(&self, expected: &str, found: String, remedy: &str) -> Error {
        Error::File { file: self.file.to_string(), expected: expected.to_string(), found, remedy: remedy.to_string() }
    }
}

const NOWHERE: u32 = u32::MAX;

/// Infers placement and number of micro-batches. Allocates no more than the number of ops implies, whatever numbers they contain.
pub fn infer_placement(table: &Table) -> Result<(Placement, u32), Error> {
    let stages = highest(table, "stage", |action| action.stage)?;
    let microbatches = highest(table, "micro-batch", |action| action.microbatch)?;
    check_complete(table, stages, microbatches)?;

    let mut rows = vec![NOWHERE; stages as usize];
    let mut twice = false;
    for (row, _, action) in table.ops() {
        let place = &mut rows[action.stage as usize];
        twice |= *place != NOWHERE && *place != row as u32;
        *place = if *place == NOWHERE { row as u32 } else { *place };
    }
    let devices = table.rows.len() as u32;
    let placement = if twice { bidirectional(table, stages, microbatches)? } else { one_way(devices, rows) };
    let placement = placement.map_err(|reason| {
        table.fault(
            "one row per device, each with the same number of stages",
            reason.to_string(),
            "give every device the same number of stages",
        )
    })?;
    Ok((placement, microbatches))
}

/// Returns one more than the largest number that `of` returns; numbers that the number of ops rules out are errors.
fn highest(table: &Table, noun: &str, of: impl Fn(&Action) -> u32) -> Result<u32, Error> {
    let count = table.ops().count();
    let Some((row, _, action)) = table.ops().min_by_key(|(_, _, action)| Reverse(of(action))) else { return Ok(0) };
    if of(action) as usize >= count {
        let expected = format!("{noun} numbers from 0 without gaps, so below {count}, the file's number of ops");
        return Err(table.action_fault(row, action, &expected, &format!("correct the {noun} number")));
    }
    Ok(of(action) + 1)
}

/// Checks that there are forwards for all stages and micro-batches, before anything of that size is allocated.
fn check_complete(table: &Table, stages: u32, microbatches: u32) -> Result<(), Error> {
    let mut forwards = vec![0_u64; stages as usize];
    for (_, _, action) in table.ops().filter(|(_, kind, _)| *kind == Kind::F) {
        forwards[action.stage as usize] += 1;
    }
    let Some(stage) = forwards.iter().position(|&count| count < u64::from(microbatches)) else { return Ok(()) };
    let mut present = vec![false; microbatches as usize];
    let of_stage = |&(_, kind, action): &(usize, Kind, &Action)| kind == Kind::F && action.stage as usize == stage;
    table.ops().filter(of_stage).for_each(|(_, _, action)| present[action.microbatch as usize] = true);
    let missing = present.iter().position(|&present| !present).unwrap_or(0);
    let last = |(_, _, action): &(usize, Kind, &Action)| match forwards[stage] {
        0 => action.stage,
        _ => action.microbatch,
    };
    let Some((row, _, action)) = table.ops().min_by_key(|op| Reverse(last(op))) else { return Ok(()) };
    let expected = format!(
        "every stage to run every micro-batch of the file (stages 0 to {}, micro-batches 0 to {}), but {stage}F{missing} is missing",
        stages - 1,
        microbatches - 1
    );
    Err(table.action_fault(row, action, &expected, &format!("add {stage}F{missing} or correct this number")))
}

/// Returns the placement of stages that are each on one row.
fn one_way(devices: u32, rows: Vec<u32>) -> Result<Placement, PlacementError> {
    let stages = rows.len() as u32;
    if devices > 0 && stages.is_multiple_of(devices) {
        let chunks = stages / devices;
        let down = if chunks == 1 { "linear" } else { "loop" };
        let up = if chunks == 2 { "V" } else { "zigzag" };
        for known in [Placement::looped(down, devices, chunks), Placement::zigzag(up, devices, chunks)] {
            if rows.iter().zip(0..).all(|(&row, stage)| known.device_of_stage(stage, 0) == row) {
                return Ok(known);
            }
        }
    }
    Placement::new("custom", devices, rows)
}

/// Returns the placement of stages that are each on two rows, one for each half of the micro-batches.
fn bidirectional(table: &Table, stages: u32, microbatches: u32) -> Result<Result<Placement, PlacementError>, Error> {
    let half = microbatches.div_ceil(2);
    let mut device_of = [vec![NOWHERE; stages as usize], vec![NOWHERE; stages as usize]];
    for (row, _, action) in table.ops() {
        let direction = usize::from(action.microbatch >= half);
        let place = &mut device_of[direction][action.stage as usize];
        if *place == NOWHERE {
            *place = row as u32;
        } else if *place != row as u32 {
            let expected = format!(
                "this op on row {} with others of stage {}: a stage may be on two rows only if one runs micro-batches \
                 below {half} and the other the rest",
                *place + 1,
                action.stage
            );
            return Err(table.action_fault(row, action, &expected, "move the op to that row"));
        }
    }
    let devices = table.rows.len() as u32;
    if devices > 0 && devices.is_multiple_of(2) && stages.is_multiple_of(devices) {
        let known = Placement::bidirectional(devices, stages / devices);
        if known.as_ref().is_ok_and(|known| {
            let same = |(stage, direction): (u32, u32)| {
                known.device_of_stage(stage, direction) == device_of[direction as usize][stage as usize]
            };
            (0..stages).flat_map(|stage| [(stage, 0), (stage, 1)]).all(same)
        }) {
            return Ok(known);
        }
    }
    Ok(Placement::two_directions("custom", devices, device_of))
}
