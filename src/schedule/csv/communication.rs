//! Checks the sends and receives of a `compute_comms` file against its placement.

use super::Error;
use super::cells::{Action, What};
use super::table::Table;
use crate::op::{Kind, Op, boundary_letter};
use crate::schedule::Schedule;
use crate::sharding::CollectiveKind;

const REDUCE: What = What::Collective(CollectiveKind::ReduceGrad);
const WAIT_REDUCE: What = What::Collective(CollectiveKind::WaitReduceGrad);

/// What a stage has done for a micro-batch.
const FORWARD: u8 = 1;
const BACKWARD: u8 = 2;
const SENT: u8 = 4; // shifted by 1 for a gradient
const RECEIVED: u8 = 16; // shifted by 1 for a gradient
const WAITED: u8 = 64; // shifted by 1 for a gradient

/// Checks that exactly the outputs that leave a device are sent, after the op that makes them, and received before the op that needs
/// them. A file without sends and receives passes. In a file with waits (PyTorch 2.15), each send has one, and each reduction has
/// one before the next reduction of its row.
pub fn check(table: &Table, schedule: &Schedule) -> Result<(), Error> {
    let waits = table
        .actions
        .iter()
        .any(|action| matches!(action.what, What::WaitSend(_) | What::Collective(CollectiveKind::WaitReduceGrad)));
    if waits {
        check_reductions(table)?;
    }
    let transfers = |action: &Action| matches!(action.what, What::Send(_) | What::Receive(_) | What::WaitSend(_));
    if !table.actions.iter().any(transfers) {
        return Ok(());
    }
    let mut transfers_seen = Transfers::new(table, schedule);
    for (row, range) in table.rows.iter().enumerate() {
        for action in &table.actions[range.clone()] {
            transfers_seen.note(row, action)?;
        }
    }
    transfers_seen.check_sent(waits)
}

/// Checks that each row waits for a reduction before it begins another, and for the last one.
fn check_reductions(table: &Table) -> Result<(), Error> {
    for (row, range) in table.rows.iter().enumerate() {
        let mut begun: Option<&Action> = None;
        for action in &table.actions[range.clone()] {
            match (action.what, begun) {
                (REDUCE, None) => begun = Some(action),
                (REDUCE, Some(other)) => {
                    let wait = Action { what: WAIT_REDUCE, ..*other }.text();
                    let expected = format!("{wait} before it, since a row reduces one stage at a time");
                    return Err(table.action_fault(row, action, &expected, &format!("add {wait} before this cell")));
                }
                (WAIT_REDUCE, Some(other)) if other.stage == action.stage => begun = None,
                (WAIT_REDUCE, _) => {
                    let reduce = Action { what: REDUCE, ..*action }.text();
                    let expected = format!("{reduce} before it");
                    return Err(table.action_fault(row, action, &expected, "remove or move this cell"));
                }
                _ => {}
            }
        }
        if let Some(action) = begun {
            let wait = Action { what: WAIT_REDUCE, ..*action }.text();
            let expected = format!("{wait} after it, since this file waits for sends and reductions");
            return Err(table.action_fault(row, action, &expected, &format!("add {wait} after this cell")));
        }
    }
    Ok(())
}

struct Transfers<'a> {
    table: &'a Table<'a>,
    schedule: &'a Schedule,
    /// By (stage, micro-batch).
    done: Vec<u8>,
}

impl<'a> Transfers<'a> {
    fn new(table: &'a Table<'a>, schedule: &'a Schedule) -> Transfers<'a> {
        let cells = schedule.placement.stages() as usize * schedule.microbatches as usize;
        Transfers { table, schedule, done: vec![0; cells] }
    }

    fn place(&self, action: &Action) -> usize {
        action.stage as usize * self.schedule.microbatches as usize + action.microbatch as usize
    }

    /// Returns the forward or backward of the action's stage that makes or needs what is transferred.
    fn op(&self, action: &Action, gradient: bool) -> Op {
        let kind = if gradient { Kind::B } else { Kind::F };
        let direction = self.schedule.placement.direction_of(action.microbatch, self.schedule.microbatches);
        Op::new(kind, action.stage, action.microbatch).in_direction(direction)
    }

    /// Whether the input of `op` comes from another device.
    fn is_received(&self, op: Op) -> bool {
        let placement = &self.schedule.placement;
        placement.sender(op).is_some_and(|sender| sender != placement.device_of(op))
    }

    fn note(&mut self, row: usize, action: &Action) -> Result<(), Error> {
        match action.what {
            What::Op(Kind::W) | What::Collective(_) | What::WholeBackward => Ok(()),
            What::Op(kind) => self.compute(row, action, kind.is_backward()),
            What::Send(gradient) => self.transfer(row, action, gradient, true),
            What::Receive(gradient) => self.transfer(row, action, gradient, false),
            What::WaitSend(gradient) => self.wait(row, action, gradient),
        }
    }

    /// Checks that the send of a wait precedes it in its row.
    fn wait(&mut self, row: usize, action: &Action, gradient: bool) -> Result<(), Error> {
        let send = Action { what: What::Send(gradient), ..*action }.text();
        let Schedule { placement, microbatches, .. } = self.schedule;
        let known = action.stage < placement.stages() && action.microbatch < *microbatches;
        let here = known && placement.device_of(self.op(action, gradient)) == row as u32;
        let place = if here { self.place(action) } else { 0 };
        if !here || self.done[place] & SENT << u8::from(gradient) == 0 {
            let expected = format!("{send} before it in its row");
            return Err(self.table.action_fault(row, action, &expected, "remove or move this cell"));
        }
        if self.done[place] & WAITED << u8::from(gradient) != 0 {
            return Err(self.table.action_fault(row, action, "each wait once", "remove this cell"));
        }
        self.done[place] |= WAITED << u8::from(gradient);
        Ok(())
    }

    fn compute(&mut self, row: usize, action: &Action, gradient: bool) -> Result<(), Error> {
        let place = self.place(action);
        if self.is_received(self.op(action, gradient)) && self.done[place] & RECEIVED << u8::from(gradient) == 0 {
            let receive = Action { what: What::Receive(gradient), ..*action }.text();
            let expected = format!("{receive} before it, since another device makes its input");
            return Err(self.table.action_fault(row, action, &expected, &format!("add {receive} before this cell")));
        }
        self.done[place] |= if gradient { BACKWARD } else { FORWARD };
        Ok(())
    }

    fn transfer(&mut self, row: usize, action: &Action, gradient: bool, send: bool) -> Result<(), Error> {
        let Schedule { placement, microbatches, .. } = self.schedule;
        let known = action.stage < placement.stages() && action.microbatch < *microbatches;
        let refuse = |expected: &str| Err(self.table.action_fault(row, action, expected, "remove or move this cell"));
        if !known {
            return refuse(&format!("stages below {}, micro-batches below {microbatches}", placement.stages()));
        }
        let op = self.op(action, gradient);
        let what = if gradient { "gradient" } else { "activation" };
        if placement.device_of(op) != row as u32 {
            return refuse(&format!(
                "this {what} in row {}, where stage {} is",
                placement.device_of(op) + 1,
                op.stage()
            ));
        }
        let crosses = if send { placement.leaves_device(op) } else { self.is_received(op) };
        if !crosses {
            return refuse(&format!("no transfer: no {what} of stage {} crosses devices here", op.stage()));
        }
        let place = self.place(action);
        let (bit, computed) = (if send { SENT } else { RECEIVED } << u8::from(gradient), 1 << u8::from(gradient));
        if self.done[place] & bit != 0 {
            return refuse("each transfer once");
        }
        if (self.done[place] & computed != 0) != send {
            return refuse(if send {
                "a send after the op that makes it"
            } else {
                "a receive before the op that needs it"
            });
        }
        self.done[place] |= bit;
        Ok(())
    }

    /// Checks that every output that leaves a device is sent and, with `waits`, waited for.
    fn check_sent(&self, waits: bool) -> Result<(), Error> {
        for (row, kind, action) in self.table.ops().filter(|(_, kind, _)| *kind != Kind::W) {
            let gradient = kind.is_backward();
            let (done, letter) = (self.done[self.place(action)] >> u8::from(gradient), boundary_letter(gradient));
            if !self.schedule.placement.leaves_device(self.op(action, gradient)) {
                continue;
            }
            let (name, reason) = match (done & SENT != 0, done & WAITED != 0) {
                (false, _) => ("SEND", "the next stage is on another device"),
                (_, false) if waits => ("WAIT_SEND", "this file waits for sends and reductions"),
                _ => continue,
            };
            let missing = format!("{}{name}_{letter}{}", action.stage, action.microbatch);
            let expected = format!("{missing} after it, since {reason}");
            return Err(self.table.action_fault(row, action, &expected, &format!("add {missing} after this cell")));
        }
        Ok(())
    }
}
