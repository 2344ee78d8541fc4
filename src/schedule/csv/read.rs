//! Reading a schedule from the text of a file.

use super::cells::{Action, What};
use super::table::{Table, infer_placement};
use super::{Error, Imported, communication};
use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::schedule::{ProgramCheck, Programs, Schedule, check_pair};
use crate::sharding::{Collective, CollectiveKind, Placed, Sharding};
use std::collections::BTreeSet;
use std::ops::Range;

/// Reads the schedule `name` from `text`, the content of `file`, in either format.
///
/// Placement and number of micro-batches follow from the cells: rows are devices; a stage on two rows makes the placement
/// bidirectional, and the row that runs the first half of the micro-batches is direction 0.
///
/// # Errors
/// A wrong cell or file; the text says where, what was expected, and what to do.
pub fn read(name: &str, file: &str, text: &str) -> Result<Imported, Error> {
    let mut table = Table::scan(file, text)?;
    let mut warnings = Vec::new();
    let old = table.translate(&mut warnings)?;
    let (placement, microbatches) = infer_placement(&table)?;
    let schedule = table.schedule(name, placement, microbatches, old)?;
    communication::check(&table, &schedule)?;
    table.note_collectives(&mut warnings);
    Ok(Imported { schedule, warnings })
}

impl Table<'_> {
    /// Translates the letters before December 2024 (`B` for the backward of the input, `BW` for the full backward) into `I` and `B`.
    /// Returns whether there were any.
    fn translate(&mut self, warnings: &mut Vec<String>) -> Result<bool, Error> {
        let has = |what: What| self.actions.iter().any(|action| action.what == what);
        let whole = has(What::WholeBackward);
        let split = has(What::Op(Kind::I));
        if whole && split {
            let mixed = self.rows.iter().enumerate().find_map(|(row, range)| {
                let action = self.actions[range.clone()].iter().find(|a| a.what == What::WholeBackward)?;
                let remedy = "write the full backward as B everywhere";
                Some(self.action_fault(row, action, "current letters, since the file also has I", remedy))
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

    /// Creates the schedule; checks that each stage runs every micro-batch once forward and once backward.
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
            let mut seen = ProgramCheck::new(&placement, device, microbatches, 1);
            let mut opening: Option<Op> = None;
            for action in &self.actions[range.clone()] {
                let What::Op(kind) = action.what else { continue };
                let direction = placement.direction_of(action.microbatch, microbatches);
                let op = Op::new(kind, action.stage, action.microbatch).in_direction(direction);
                let fault = opening.take().map_or(Ok(()), |first| check_pair(first, Some(op)));
                let chunk = chunk_of[direction as usize * stages + op.stage() as usize];
                fault
                    .and_then(|()| seen.add(chunk, op))
                    .map_err(|what| self.refused(row, action, &what.to_string(), old))?;
                opening = action.opens_pair.then_some(op);
                programs.ops.push(if action.opens_pair { op.opening_pair() } else { op });
            }
            if let Err(missing) = seen.check_complete() {
                let found = format!("row {} (device {row}) where {missing}", row + 1);
                let expected = "every stage to run each micro-batch forward and backward (B, or I and later W)";
                return Err(self.fault(expected, found, &format!("add it{}", dialect(old))));
            }
            programs.finish(Vec::new());
        }
        Ok(Schedule::new(name, placement, microbatches, programs).with_sharding(self.sharding()?))
    }

    /// Returns the collectives; checks that a stage is gathered where it is used, if the file gathers any.
    fn sharding(&self) -> Result<Option<Sharding>, Error> {
        let is_unshard = |action: &Action| action.what == What::Collective(CollectiveKind::Unshard);
        let gathers = self.actions.iter().any(is_unshard);
        let is_wait = |action: &Action| action.what == What::Collective(CollectiveKind::WaitReduceGrad);
        let waits = self.actions.iter().any(is_wait);
        let row = |(row, range): (usize, &Range<usize>)| {
            let (mut active, mut number, mut placed) = (BTreeSet::new(), 0, Vec::new());
            let actions = &self.actions[range.clone()];
            let ops = actions.iter().filter(|action| matches!(action.what, What::Op(_)));
            let held: BTreeSet<u32> = ops.map(|action| action.stage).collect();
            for action in actions {
                let expected = match action.what {
                    What::Collective(_) if !held.contains(&action.stage) => {
                        let expected = "a collective of a stage of this row";
                        return Err(self.action_fault(row, action, expected, "remove or move this cell"));
                    }
                    What::Op(_) => {
                        number += 1;
                        (gathers && !active.contains(&action.stage)).then_some((CollectiveKind::Unshard, "before it"))
                    }
                    What::Collective(kind) => {
                        let mut place = |kind| {
                            let collective = Collective { kind, stage: action.stage };
                            placed.push(Placed { before: number, collective });
                        };
                        place(kind);
                        // before PyTorch 2.15 a reduction is waited for at once
                        if kind == CollectiveKind::ReduceGrad && !waits {
                            place(CollectiveKind::WaitReduceGrad);
                        }
                        match kind {
                            CollectiveKind::Unshard if !active.insert(action.stage) => {
                                Some((CollectiveKind::Reshard, "before it, since the stage is gathered already"))
                            }
                            CollectiveKind::Reshard if gathers && !active.remove(&action.stage) => {
                                Some((CollectiveKind::Unshard, "before it"))
                            }
                            _ => None,
                        }
                    }
                    _ => None,
                };
                if let Some((kind, place)) = expected {
                    let missing = Collective { kind, stage: action.stage };
                    let (expected, remedy) = (format!("{missing} {place}"), format!("add {missing} before this cell"));
                    return Err(self.action_fault(row, action, &expected, &remedy));
                }
            }
            Ok(placed)
        };
        let devices = self.rows.iter().enumerate().map(row).collect::<Result<Vec<_>, _>>()?;
        let sharding = Sharding::new(devices);
        Ok(Some(sharding).filter(|sharding| !sharding.is_empty()))
    }

    /// Returns the error that an op cannot run at its place.
    fn refused(&self, row: usize, action: &Action, what: &str, old: bool) -> Error {
        let remedy = format!("correct the row's order{}", dialect(old));
        self.action_fault(row, action, &format!("an op that can run here ({what})"), &remedy)
    }

    /// Says how to give collectives a time.
    fn note_collectives(&self, warnings: &mut Vec<String>) {
        let count = self.actions.iter().filter(|action| matches!(action.what, What::Collective(_))).count();
        if count > 0 {
            let names = "UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD";
            warnings.push(format!("{count} {names} actions kept; `costs` unshard=1,reduce=1 gives them a time"));
        }
    }
}

fn dialect(old: bool) -> &'static str {
    if old { " (having W but no I, the file was read in the old dialect: B as I, BW as B)" } else { "" }
}
