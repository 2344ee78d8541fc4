//! Deadlock: who waits for whom when nothing can happen any more.

use super::Observer;
use super::engine::Engine;
use super::queue::{Entry, NONE};
use crate::op::{Kind, Op};
use std::fmt;

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// A device's compute.
    Device(u32),
    /// A communication queue: its number among all, and its device.
    Queue(usize, u32),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Device(device) => write!(f, "device {device}"),
            Party::Queue(_, device) => write!(f, "a communication queue of device {device}"),
        }
    }
}

/// One wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Who waits.
    pub who: Party,
    /// At which op or entry, as PyTorch writes them: `1F3`, `1SEND_F3`, `2RECV_F3`.
    pub at: String,
    /// For what.
    pub awaited: String,
    /// Who would have to provide it.
    pub on: Party,
}

/// Devices and communication queues that wait for one another in a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Who waits for whom; the last waits for the first.
    pub waits: Vec<Stuck>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing can happen any more, for these wait for one another in a circle:")?;
        for Stuck { who, at, awaited, on } in &self.waits {
            write!(f, "\n  {who} at {at} waits for {awaited} on {on}")?;
        }
        write!(f, "\nanother order of ops, more queues or slots, or one-sided delivery avoids it")
    }
}

impl std::error::Error for Deadlock {}

/// As PyTorch names the entry of `op`'s output in a communication queue.
fn entry_name(op: Op, receives: bool) -> String {
    let (letter, to) = match op.kind() {
        Kind::F => ('F', op.stage() + 1),
        _ => ('B', op.stage().saturating_sub(1)),
    };
    let (stage, verb) = if receives { (to, "RECV") } else { (op.stage(), "SEND") };
    format!("{stage}{verb}_{letter}{}", op.microbatch())
}

impl<L: Fn(usize, u32, u64, u64) -> u64, O: Observer> Engine<'_, L, O> {
    /// The circle that an unfinished device is in or waits for.
    pub(super) fn deadlock(&self) -> Option<Deadlock> {
        let devices = 0..self.prepared.graph.schedule().devices();
        let mut who = Party::Device(devices.into_iter().find(|&device| self.next_op(device).is_some())?);
        let mut waits: Vec<Stuck> = Vec::new();
        loop {
            if let Some(start) = waits.iter().position(|wait| wait.who == who) {
                return Some(Deadlock { waits: waits.split_off(start) });
            }
            let wait = match who {
                Party::Device(device) => self.stuck_device(device),
                Party::Queue(queue, _) => self.stuck_queue(queue),
            };
            let Some(wait) = wait else { return Some(Deadlock { waits }) };
            who = wait.on;
            waits.push(wait);
        }
    }

    fn queue_party(&self, queue: u32) -> Party {
        Party::Queue(queue as usize, self.messages.owners[queue as usize])
    }

    fn made_by(&self, message: u32) -> Op {
        self.prepared.graph.op(self.messages.all[message as usize].op as usize)
    }

    fn stuck_device(&self, device: u32) -> Option<Stuck> {
        let index = self.next_op(device)?;
        let message = self.missing_input(device)?;
        let (info, op) = (self.messages.lane(message), self.prepared.graph.op(index));
        let made = self.made_by(message);
        let (awaited, on) = if !self.is_queued(message) {
            (made.to_string(), Party::Device(info.from))
        } else if info.send_queue == NONE {
            return None;
        } else {
            (entry_name(made, false), self.queue_party(info.send_queue))
        };
        Some(Stuck { who: Party::Device(device), at: op.to_string(), awaited, on })
    }

    fn stuck_queue(&self, queue: usize) -> Option<Stuck> {
        let Entry { message, receives } = self.head(queue)?;
        let (info, made) = (self.messages.lane(message), self.made_by(message));
        let partner = if receives { info.send_queue } else { info.receive_queue };
        let partner_is_there =
            partner == NONE || self.head(partner as usize) == Some(Entry { message, receives: !receives });
        let (awaited, on) = if !receives && !self.is_queued(message) {
            (made.to_string(), Party::Device(info.from))
        } else if !partner_is_there {
            (entry_name(made, !receives), self.queue_party(partner))
        } else if !self.is_queued(message) {
            (made.to_string(), Party::Device(info.from))
        } else {
            (format!("a slot of the {} to stage {}", channel_name(made), target(made)), Party::Device(info.to))
        };
        let who = self.queue_party(queue as u32);
        Some(Stuck { who, at: entry_name(made, receives), awaited, on })
    }
}

fn channel_name(op: Op) -> &'static str {
    if op.kind() == Kind::F { "activations" } else { "gradients" }
}

fn target(op: Op) -> u32 {
    if op.kind() == Kind::F { op.stage() + 1 } else { op.stage().saturating_sub(1) }
}
