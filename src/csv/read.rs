//! Reading a schedule from the text of a file.

use super::cells::{Action, What};
use super::table::{Table, infer_placement};
use super::{Error, Imported, communication};
use crate::op::{Kind, Op};
use crate::placement::Placement;
use crate::schedule::{ProgramCheck, Programs, Schedule, check_pair};

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
    table.note_omissions(&mut warnings);
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
        Ok(Schedule::new(name, placement, microbatches, programs))
    }

    /// Returns the error that an op cannot run at its place.
    fn refused(&self, row: usize, action: &Action, what: &str, old: bool) -> Error {
        let remedy = format!("correct the row's order{}", dialect(old));
        self.action_fault(row, action, &format!("an op that can run here ({what})"), &remedy)
    }

    /// Warns of actions that pipesim ignores.
    fn note_omissions(&self, warnings: &mut Vec<String>) {
        let left_out = |action: &&Action| matches!(action.what, What::Sharding | What::Reduce | What::WaitReduce);
        let count = self.actions.iter().filter(left_out).count();
        if count > 0 {
            let names = "UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD";
            warnings.push(format!("{count} {names} actions ignored: parameters are not sharded"));
        }
    }
}

fn dialect(old: bool) -> &'static str {
    if old { " (having W but no I, the file was read in the old dialect: B as I, BW as B)" } else { "" }
}
