//! Deadlock: which party waits for what, and for which other party, when nothing can proceed. All detectors share this report: the task
//! graph among its ops, the checker under a delivery, the event engine, the watchdog of a run.

use crate::op::Op;
use std::fmt;

/// A party that waits, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants say what their fields are
pub enum Party {
    /// A device at an op of its program, by number; `None` at the end.
    Device { device: u32, number: usize, op: Option<Op> },
    /// A device's communication queue, by name, and the entries at its head, such as `2SEND_F3` or, in a batch,
    /// `2SEND_F3 with 2RECV_B1`.
    Queue { device: u32, queue: String, head: String },
}

impl Party {
    /// The device, or the queue's device.
    pub fn device(&self) -> u32 {
        match self {
            Party::Device { device, .. } | Party::Queue { device, .. } => *device,
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Device { device, number, op: Some(op) } => write!(f, "device {device} at op number {number} ({op})"),
            Party::Device { device, number, op: None } => write!(f, "device {device} at op number {number} (its end)"),
            Party::Queue { device, queue, head } => write!(f, "device {device}, {head} at the head of its {queue}"),
        }
    }
}

/// What a party waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The end of an op.
    Op(Op),
    /// The output of an op that has ended.
    Transfer(Op),
    /// The other side of a transfer, or the receive of an op's own input.
    Entry(String),
    /// A free slot of a full channel: this op's end frees the next.
    Slot(Op),
    /// Nothing that is known: it is at work, or its turn has not come.
    Nothing,
}

/// A party that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who is stuck, and where.
    pub party: Party,
    /// What it waits for.
    pub awaited: Awaited,
    /// The party that would have to do it, and its position.
    pub on: Party,
    /// For how long already, where that was measured.
    pub seconds: Option<u64>,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.party)?;
        let awaited = match &self.awaited {
            Awaited::Op(op) => format!(" waits for {op}"),
            Awaited::Transfer(op) => format!(" waits for the transfer of {op}"),
            Awaited::Entry(entry) => format!(" waits for {entry}"),
            Awaited::Slot(op) => format!(" waits for a free slot of its channel; the next is freed by {op}"),
            Awaited::Nothing if self.seconds.is_some() => " waits for its turn".to_string(),
            Awaited::Nothing => String::new(),
        };
        write!(f, "{awaited}")?;
        match (&self.on, &self.awaited) {
            (_, Awaited::Nothing) => {}
            (Party::Device { device, .. }, Awaited::Transfer(_)) => write!(f, " from device {device}")?,
            (Party::Device { device, op: Some(op), .. }, _) if awaited.ends_with(&format!(" {op}")) => {
                write!(f, ", at which device {device} is itself stuck")?;
            }
            (Party::Device { device, .. }, _) => write!(f, ", which stands later on device {device}")?,
            (Party::Queue { device, queue, head }, Awaited::Entry(entry))
                if head.split(" with ").any(|part| part == entry) =>
            {
                write!(f, ", at the head of device {device}'s {queue}")?;
            }
            (Party::Queue { device, queue, head }, _) => {
                write!(f, ", behind {head} at the head of device {device}'s {queue}")?;
            }
        }
        self.seconds.map_or(Ok(()), |seconds| write!(f, ", since {seconds} s"))
    }
}

/// Devices and communication queues that wait for one another in a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Under what, such as `channel delivery`; empty where the order of ops alone does it.
    pub under: String,
    /// Who waits for whom: each for the next, the last for the first.
    pub waits: Vec<Wait>,
    /// The ops around the first of them, drawn.
    pub grid: String,
}

impl Deadlock {
    /// Device and op number of the first device in the circle.
    pub fn place(&self) -> Option<(u32, usize)> {
        self.waits.iter().find_map(|wait| match wait.party {
            Party::Device { device, number, .. } => Some((device, number)),
            Party::Queue { .. } => None,
        })
    }
}

impl Wait {
    /// Says in a few words which device waits for what of another one; nothing about a device and a queue of its own.
    fn in_brief(&self) -> Option<String> {
        let (device, other) = (self.party.device(), self.on.device());
        let what = match &self.awaited {
            Awaited::Op(op) | Awaited::Transfer(op) => op.to_string(),
            Awaited::Entry(entry) => entry.clone(),
            Awaited::Slot(_) => "a free slot".to_string(),
            Awaited::Nothing => "its turn".to_string(),
        };
        (device != other).then(|| format!("device {device} waits for {what} of device {other}"))
    }
}

impl Deadlock {
    /// Says in one line which device waits for what of which other one.
    pub fn in_brief(&self) -> String {
        self.waits.iter().filter_map(Wait::in_brief).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.under.is_empty() {
            write!(f, "under {} ", self.under)?;
        }
        writeln!(f, "the devices wait for one another in a circle:")?;
        self.waits.iter().try_for_each(|wait| writeln!(f, "  {wait}"))?;
        write!(f, "{}", self.grid)
    }
}

impl std::error::Error for Deadlock {}
