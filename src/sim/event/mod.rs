//! The event engine: time goes from event to event, and resources that several ops or messages want decide who comes first.
//!
//! Where the [sweep](super::sweep()) needs a fixed order and links that nobody shares, this engine lets messages queue for
//! links and buffer slots, lets communication queues block at their heads, lets devices share a processor and lets ops last
//! by chance. Where both engines apply they agree to the tick.
//!
//! Time is whole ticks; work that is shared is counted in exact fractions of a tick and ends at the first whole
//! tick at which it is done. Events of one tick are handled by device, then by kind: a link is ready, a message arrives, a
//! device is free, an op ends. So the same input gives the same output, on every machine.

mod chance;
mod engine;
mod link;
mod prepared;
mod queue;
mod rule;
mod run;
mod share;
mod straight;
mod traffic;

pub use chance::Jitter;
pub use prepared::{EventError, Prepared};
pub use run::{Each, Makespans, monte_carlo, simulate};
pub(super) use {link::Pace, share::Grain};

use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::metrics::Activity;

/// What the machine does to a schedule. The default is what the sweep assumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// When a send completes and what it holds up.
    pub delivery: Delivery,
    /// Under [`Delivery::OneSided`]: how many messages each channel (stage boundary and direction) has room for at its
    /// receiver, until the ops that use them have ended. `None`: for all.
    pub slots: Option<u32>,
    /// The links between devices.
    pub network: Network,
    /// Processors that several devices share. A device that stands in none has one of its own.
    pub processors: Vec<Processor>,
    /// How long an op of a device takes while a message leaves for it or comes from it, per mille of what it takes
    /// otherwise: 1000 means no slow-down.
    pub overlap_per_mille: u32,
    /// Durations that vary by chance.
    pub jitter: Option<Jitter>,
    /// How many ticks of the result one tick of the cost table has; more than 1 where fractions matter, as costs of whole
    /// units with shared processors or jitter.
    pub subticks: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            delivery: Delivery::OneSided,
            slots: None,
            network: Network::default(),
            processors: Vec::new(),
            overlap_per_mille: 1000,
            jitter: None,
            subticks: 1,
        }
    }
}

/// The links between devices. A message first occupies its link for its transfer time, then travels for the costs' `arrival`, or what
/// the transfer leaves of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// How long a message occupies its link, in ticks of the cost table; 0: links are as wide as it takes.
    pub transfer: u64,
    /// What happens when several messages want one link.
    pub sharing: Sharing,
    /// What one link is.
    pub scope: Scope,
    /// Under [`Sharing::FairShare`]: how long a message occupies its link while 1, 2, .. do, per mille of alone; the last holds for
    /// more. Empty: they have equal shares of its speed, 1000, 2000, ..
    pub contention: Vec<u32>,
    /// Whether the costs know of the transfer.
    pub put: Put,
}

/// Where the time that a message occupies its link stands in the costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Put {
    /// Nowhere: it comes before `arrival`, and its sender computes on.
    #[default]
    Apart,
    /// It is the first part of `arrival`; its sender computes on.
    Beside,
    /// It is the first part of `arrival` and of `after`: its sender is held up until it is through.
    Holding,
}

/// What happens when several messages want one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Each goes as if it were alone.
    #[default]
    Unlimited,
    /// One after the other, in the order in which they could have begun.
    FirstComeFirstServed,
    /// All at once, each at an equal share of the link's speed (max-min fair: no message has another bottleneck).
    FairShare,
}

/// What one link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// From one device to one other.
    #[default]
    Pair,
    /// From one device to all others: its egress port.
    Egress,
    /// From all devices to all others: a bus, or memory that all share.
    Machine,
}

/// A processor that several devices share: with n of their ops running, each goes at min(1, cores / n) of its speed, and
/// slower by what its neighbours take of caches, memory and power.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// The devices.
    pub devices: Vec<u32>,
    /// How many ops it runs side by side.
    pub cores: u32,
    /// How long an op lasts while 1, 2, .. of its cores compute, per mille of alone; the last holds for more, none means 1000.
    pub contention: Vec<u32>,
}

impl Processor {
    /// The share of its full speed at which an op goes while `running` ops run here, as a fraction.
    pub(super) fn share(&self, running: u32) -> (u64, u64) {
        let running = running.max(1);
        let cores = self.cores.min(running);
        (u64::from(cores) * 1000, u64::from(running) * u64::from(self.contention_per_mille(cores)))
    }

    /// How long an op lasts while so many of its cores compute, its own included, per mille of alone.
    fn contention_per_mille(&self, busy_cores: u32) -> u32 {
        let found = self.contention.get(busy_cores.max(1) as usize - 1).or(self.contention.last());
        found.copied().unwrap_or(1000)
    }
}

/// When a message was on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferTime {
    /// Index of the op whose output it is.
    pub op: usize,
    /// It could be sent.
    pub queued: u64,
    /// It began to leave: its turn in the communication queue, a slot or partner, and the link were there.
    pub start: u64,
    /// The receiver could use it.
    pub end: u64,
}

/// Why a device idled before its ops, in ticks. What is left of its idle time is `after` and the time behind its last op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The op whose output it waited for had not ended.
    pub dependence: u64,
    /// The message stood in a communication queue, without a slot, without a partner, or before an occupied link.
    pub queue: u64,
    /// The message was on its way.
    pub transfer: u64,
}

/// What a simulation yields besides what it tells its observer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// By device. Busy is the time from start to end of its ops, however slowly they ran.
    pub devices: Vec<Activity>,
    /// By device.
    pub waits: Vec<Waits>,
    /// How many events were handled.
    pub events: u64,
}

impl Outcome {
    /// End of the last op.
    pub fn makespan(&self) -> u64 {
        self.devices.iter().map(|device| device.last_end).max().unwrap_or(0)
    }
}

/// Who is told what happens, in the order in which it ends.
pub trait Observer {
    /// Op number `index` ran from `start` to `end`.
    fn op(&mut self, index: usize, start: u64, end: u64) {
        let _ = (index, start, end);
    }
    /// A message was delivered.
    fn transfer(&mut self, transfer: TransferTime) {
        let _ = transfer;
    }
}

/// Nobody wants to know.
impl Observer for () {}

/// An observer that notes everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Start and end by op index.
    pub ops: Vec<(u64, u64)>,
    /// In order of their ends.
    pub transfers: Vec<TransferTime>,
}

impl Record {
    /// Room for the ops of `graph`.
    pub fn new(graph: &TaskGraph) -> Record {
        Record { ops: vec![(0, 0); graph.len()], transfers: Vec::new() }
    }
}

impl Observer for Record {
    fn op(&mut self, index: usize, start: u64, end: u64) {
        self.ops[index] = (start, end);
    }
    fn transfer(&mut self, transfer: TransferTime) {
        self.transfers.push(transfer);
    }
}
