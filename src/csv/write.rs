//! From a schedule to a file that PyTorch loads.

use super::cells::push;
use super::transfers::Transfers;
use super::{Error, Format};
use crate::op::{Kind, Op};
use crate::schedule::{Schedule, unit_name, units};

/// The text of a PyTorch schedule file: one row per device, no empty cells.
///
/// Under [`Format::ComputeComms`] a send stands right after the op that makes it and a receive right before the op that
/// needs it, moved forward only where sends and receives would otherwise wait for each other in a circle: there is one
/// global order of transfers that every row follows, so the file runs even where a send waits for its receive. Parameters
/// are gathered before a stage's first op; gradients are reduced (and scaled: PyTorch does that nowhere else) and
/// parameters freed after its last. A sent activation is waited for after its micro-batch's backward, which nobody could
/// run before it had arrived, a sent gradient at the end of the row: so does PyTorch itself.
pub fn write(schedule: &Schedule, format: Format) -> Result<String, Error> {
    check(schedule)?;
    let rows = match format {
        Format::ComputeOnly => (0..schedule.devices()).map(|device| row(schedule.program(device))).collect(),
        Format::ComputeComms { waits } => Transfers::new(schedule, waits).run()?,
    };
    let mut text = String::with_capacity(rows.iter().map(|row| row.len() + 1).sum());
    for row in rows {
        text.push_str(&row);
        text.push('\n');
    }
    Ok(text)
}

/// That PyTorch's classes can hold the schedule.
fn check(schedule: &Schedule) -> Result<(), Error> {
    let placement = &schedule.placement;
    let refuse = |reason: String, remedy: &str| {
        Err(Error::Schedule { schedule: schedule.name.clone(), reason, remedy: remedy.to_string() })
    };
    if placement.directions() > 1 {
        let (one, other) = (placement.device_of_stage(0, 0), placement.device_of_stage(0, 1));
        let reason =
            format!("stage 0 is on device {one} and on device {other}, but PyTorch takes a stage on one row only");
        return refuse(reason, "choose a schedule of one direction, such as dualpipe-v");
    }
    if let Err(fault) = schedule.validate() {
        return refuse(fault.to_string(), "correct the schedule");
    }
    let last = placement.stages() - 1;
    let device = placement.device_of_stage(last, 0);
    let forwards = schedule.program(device).iter().filter(|op| op.kind() == Kind::F && op.stage() == last);
    if let Some((expected, op)) = (0..).zip(forwards).find(|(expected, op)| op.microbatch() != *expected) {
        let reason = format!(
            "{} comes where {} should: PyTorch finds the loss of micro-batch i as the i-th that the last stage computed",
            op.alone(),
            Op::new(Kind::F, last, expected)
        );
        return refuse(reason, "let the last stage run its forwards in order of micro-batch");
    }
    Ok(())
}

/// A program's cells.
fn row(program: &[Op]) -> String {
    let mut text = String::with_capacity(program.len() * 6);
    units(program).for_each(|unit| push(&mut text, &unit_name(unit)));
    text
}
