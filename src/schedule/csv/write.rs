//! Writing a schedule as a file that PyTorch loads.

use super::cells::push;
use super::{Error, Format};
use crate::op::{Kind, Op, boundary_letter};
use crate::schedule::{Schedule, next_unit, unit_name, units};
use crate::sharding::{Collective, CollectiveKind, Placed, Sharding};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Returns the text of a PyTorch schedule file: one row per device, no empty cells.
///
/// Under [`Format::ComputeComms`] a send follows the op that makes it and a receive precedes the op that needs it; receives move
/// forward only to avoid a cycle of waits. All rows follow one global order of transfers, so the file runs even if a send waits for
/// its receive. Collectives are the schedule's own. If it has none, parameters are gathered before a stage's first op; after its last,
/// gradients are reduced (and scaled: PyTorch scales them nowhere else) and parameters freed. As in PyTorch, the wait for a sent activation follows its micro-batch's backward, and
/// the wait for a sent gradient is at the end of the row.
///
/// # Errors
/// A schedule that PyTorch's classes cannot hold, or that deadlocks.
pub fn write(schedule: &Schedule, format: Format) -> Result<String, Error> {
    check(schedule)?;
    let rows = match format {
        Format::ComputeOnly => (0..schedule.devices()).map(|device| row(schedule.program(device))).collect(),
        Format::ComputeCollectives => {
            (0..schedule.devices()).map(|device| with_collectives(schedule, device)).collect()
        }
        Format::ComputeComms { waits } => WrittenTransfers::new(schedule, waits).run()?,
    };
    let mut text = String::with_capacity(rows.iter().map(|row| row.len() + 1).sum());
    for row in rows {
        text.push_str(&row);
        text.push('\n');
    }
    Ok(text)
}

/// Checks that PyTorch's classes can hold the schedule.
///
/// # Errors
/// [`Error::Schedule`] if they cannot.
pub fn check(schedule: &Schedule) -> Result<(), Error> {
    let placement = &schedule.placement;
    let refuse = |reason: String, remedy: &str| {
        Err(Error::Schedule { schedule: schedule.name.clone(), reason, remedy: remedy.to_string() })
    };
    if let Some(op) = schedule.beyond_microbatches() {
        let reason = format!("PyTorch's CSV cannot express {} ({})", op.feature(), op.alone());
        return refuse(reason, "predict still works");
    }
    if placement.directions() > 1 {
        let (one, other) = (placement.device_of_stage(0, 0), placement.device_of_stage(0, 1));
        let reason =
            format!("stage 0 is on device {one} and on device {other}, but in PyTorch a stage is on one row only");
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

fn row(program: &[Op]) -> String {
    let mut text = String::with_capacity(program.len() * 6);
    units(program).for_each(|unit| push(&mut text, &unit_name(unit)));
    text
}

/// Returns the ops of a device with its collectives.
fn with_collectives(schedule: &Schedule, device: u32) -> String {
    let sharding = schedule.sharding.clone().unwrap_or_else(|| Arc::new(whole_step(schedule)));
    let mut text = String::new();
    let mut number = 0;
    for unit in units(schedule.program(device)) {
        sharding.before(device, number).iter().for_each(|placed| push(&mut text, &placed.collective.to_string()));
        push(&mut text, &unit_name(unit));
        number += unit.len();
    }
    sharding.before(device, number).iter().for_each(|placed| push(&mut text, &placed.collective.to_string()));
    text
}

/// Returns collectives that gather each stage once: before its first op. After its last one they reduce and free it.
fn whole_step(schedule: &Schedule) -> Sharding {
    let device = |device: u32| {
        let mut left: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        schedule.program(device).iter().for_each(|op| left.entry(op.stage()).or_default().0 += 1);
        let (mut all, mut number) = (Vec::new(), 0);
        for unit in units(schedule.program(device)) {
            let mut push = |before, kind, stage| all.push(Placed { before, collective: Collective { kind, stage } });
            let after = number + unit.len();
            let mut finished = Vec::new();
            for op in unit {
                let (count, done) = left.entry(op.stage()).or_default();
                if *done == 0 {
                    push(number, CollectiveKind::Unshard, op.stage());
                }
                *done += 1;
                finished.extend((count == done).then_some(op.stage()));
            }
            for stage in finished {
                push(after, CollectiveKind::ReduceGrad, stage);
                push(after, CollectiveKind::WaitReduceGrad, stage);
                push(after, CollectiveKind::Reshard, stage);
            }
            number = after;
        }
        all
    };
    Sharding::new((0..schedule.devices()).map(device).collect())
}

/// Writes the rows while all programs advance together. A device waits until its outputs are sent; a transfer happens when the
/// receiver's next op needs it or, if no device can continue, for the oldest send. Each transfer is written to both rows at once,
/// which defines the global order.
struct WrittenTransfers<'a> {
    schedule: &'a Schedule,
    rows: Vec<String>,
    /// By device: number of ops written.
    done: Vec<usize>,
    /// By device: outputs that are not sent.
    unsent: Vec<Vec<WrittenTransfer>>,
    /// All sends in the order of their ops; some are done.
    waiting: VecDeque<WrittenTransfer>,
    /// By (stage, micro-batch, gradient or not): state of the input.
    inputs: Vec<Input>,
    sharding: Arc<Sharding>,
    /// By device: the waits for sent gradients; `None` if the file has no waits.
    waits: Option<Vec<String>>,
    /// Devices that may be able to continue.
    ready: VecDeque<u32>,
}

/// An output that goes to another device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WrittenTransfer {
    from: u32,
    to: u32,
    /// Of the sending stage.
    stage: u32,
    /// Of the receiving stage.
    next: u32,
    microbatch: u32,
    gradient: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    Unmade,
    Unsent,
    Here,
}

impl<'a> WrittenTransfers<'a> {
    /// Creates empty rows; `waits` as in [`Format::ComputeComms`].
    fn new(schedule: &'a Schedule, waits: bool) -> WrittenTransfers<'a> {
        let (devices, stages) = (schedule.devices(), schedule.placement.stages() as usize);
        WrittenTransfers {
            schedule,
            rows: vec![String::new(); devices as usize],
            done: vec![0; devices as usize],
            unsent: vec![Vec::new(); devices as usize],
            waiting: VecDeque::new(),
            inputs: vec![Input::Unmade; stages * schedule.microbatches as usize * 2],
            sharding: schedule.sharding.clone().unwrap_or_else(|| Arc::new(whole_step(schedule))),
            waits: waits.then(|| vec![String::new(); devices as usize]),
            ready: (0..devices).collect(),
        }
    }

    fn run(mut self) -> Result<Vec<String>, Error> {
        loop {
            while let Some(device) = self.ready.pop_front() {
                while self.advance(device) {}
            }
            let oldest = loop {
                match self.waiting.pop_front() {
                    Some(transfer) if !self.unsent[transfer.from as usize].contains(&transfer) => {}
                    other => break other,
                }
            };
            match oldest {
                Some(transfer) => self.transfer(transfer),
                None => break,
            }
        }
        match (0..self.schedule.devices()).find_map(|device| Some((device, *self.rest(device).first()?))) {
            None => {
                (0..self.schedule.devices()).for_each(|device| self.write_collectives(device));
                for (row, wait) in self.rows.iter_mut().zip(self.waits.iter().flatten()).filter(|(_, w)| !w.is_empty())
                {
                    push(row, wait);
                }
                Ok(self.rows)
            }
            Some((device, op)) => Err(Error::Schedule {
                schedule: self.schedule.name.clone(),
                reason: format!("its order of ops deadlocks: device {device} waits at {} forever", op.alone()),
                remedy: "run pipesim check on it to see the cycle".to_string(),
            }),
        }
    }

    fn rest(&self, device: u32) -> &'a [Op] {
        &self.schedule.program(device)[self.done[device as usize]..]
    }

    /// Returns the index of an input.
    fn place(&self, stage: u32, microbatch: u32, gradient: bool) -> usize {
        (stage as usize * self.schedule.microbatches as usize + microbatch as usize) * 2 + usize::from(gradient)
    }

    /// Writes the next op or pair of `device`; returns false if it must wait.
    fn advance(&mut self, device: u32) -> bool {
        let Some(unit) = next_unit(self.rest(device)) else { return false };
        let mut complete = true;
        for op in unit {
            let Some(producer) = op.upstream(self.schedule.placement.stages()) else { continue };
            let place = self.place(op.stage(), op.microbatch(), op.kind().is_backward());
            if self.inputs[place] == Input::Unsent {
                self.transfer(self.crossing(producer, *op));
            }
            complete &= self.inputs[place] == Input::Here;
        }
        if !complete || !self.unsent[device as usize].is_empty() {
            return false;
        }
        self.compute(device, unit);
        true
    }

    /// Returns the transfer from stage `producer` that `consumer` needs.
    fn crossing(&self, producer: u32, consumer: Op) -> WrittenTransfer {
        let placement = &self.schedule.placement;
        WrittenTransfer {
            from: placement.device_of_stage(producer, 0),
            to: placement.device_of_stage(consumer.stage(), 0),
            stage: producer,
            next: consumer.stage(),
            microbatch: consumer.microbatch(),
            gradient: consumer.kind().is_backward(),
        }
    }

    /// Writes `unit` to the row of `device` and records its outputs.
    fn compute(&mut self, device: u32, unit: &[Op]) {
        let (index, placement) = (device as usize, &self.schedule.placement);
        self.write_collectives(device);
        push(&mut self.rows[index], &unit_name(unit));
        let sent = |op: &&Op| op.kind().is_backward() && placement.leaves_device(op.of_kind(Kind::F));
        for op in unit.iter().filter(|_| self.waits.is_some()).filter(sent) {
            push(&mut self.rows[index], &format!("{}WAIT_SEND_F{}", op.stage(), op.microbatch()));
        }
        self.done[index] += unit.len();
        for op in unit {
            let Some(next) = op.downstream(placement.stages()) else { continue };
            let transfer = self.crossing(op.stage(), op.on_stage(next));
            let place = self.place(next, op.microbatch(), transfer.gradient);
            if !placement.leaves_device(*op) {
                self.inputs[place] = Input::Here;
                continue;
            }
            self.inputs[place] = Input::Unsent;
            self.unsent[index].push(transfer);
            self.waiting.push_back(transfer);
            self.ready.push_back(transfer.to);
        }
    }

    fn transfer(&mut self, transfer: WrittenTransfer) {
        let WrittenTransfer { from, to, stage, next, microbatch, gradient } = transfer;
        push(&mut self.rows[from as usize], &format!("{stage}SEND_{}{microbatch}", boundary_letter(gradient)));
        push(&mut self.rows[to as usize], &format!("{next}RECV_{}{microbatch}", boundary_letter(gradient)));
        if let Some(waits) = self.waits.as_mut().filter(|_| gradient) {
            push(&mut waits[from as usize], &format!("{stage}WAIT_SEND_B{microbatch}"));
        }
        self.unsent[from as usize].retain(|unsent| *unsent != transfer);
        let place = self.place(next, microbatch, gradient);
        self.inputs[place] = Input::Here;
        self.ready.extend([from, to]);
    }

    /// Writes the collectives before the next op of a device. Files without waits wait for each reduction at once.
    fn write_collectives(&mut self, device: u32) {
        let has_waits = self.waits.is_some();
        let row = &mut self.rows[device as usize];
        for placed in self.sharding.before(device, self.done[device as usize]) {
            if has_waits || placed.collective.kind != CollectiveKind::WaitReduceGrad {
                push(row, &placed.collective.to_string());
            }
        }
    }
}
