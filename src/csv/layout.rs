//! Which placement and how many micro-batches a file's rows amount to.

use super::Error;
use super::cells::Action;
use super::table::Table;
use crate::op::Kind;
use crate::placement::{Placement, PlacementError};
use std::cmp::Reverse;

/// No row yet.
const NOWHERE: u32 = u32::MAX;

/// Placement and number of micro-batches. Nothing is allocated beyond the number of ops, whatever numbers they name.
pub fn infer(table: &Table) -> Result<(Placement, u32), Error> {
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
            "rows that are devices, each with as many stages",
            reason.to_string(),
            "give every device as many stages",
        )
    })?;
    Ok((placement, microbatches))
}

/// One more than the highest number that `of` gives; a number that the count of ops rules out is an error.
fn highest(table: &Table, noun: &str, of: impl Fn(&Action) -> u32) -> Result<u32, Error> {
    let count = table.ops().count();
    let Some((row, _, action)) = table.ops().min_by_key(|(_, _, action)| Reverse(of(action))) else { return Ok(0) };
    if of(action) as usize >= count {
        let expected = format!("{noun} numbers from 0 without gaps, so below {count}, the file's number of ops");
        return Err(table.action_fault(row, action, &expected, &format!("correct the {noun} number")));
    }
    Ok(of(action) + 1)
}

/// That there are as many forwards as S stages and m micro-batches take, before anything of that size is allocated.
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

/// The placement of stages that stand on one row each.
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

/// The placement of stages that stand on two rows, one for either half of the micro-batches.
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
                "this op on row {} with others of stage {}: a stage may stand on two rows only if one runs micro-batches \
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
