//! The event engine: simulates contention for links, queues, slots and processors.
//!
//! The [sweep](super::sweep()) needs a fixed order and links that nobody shares. Here messages queue for links and buffer slots,
//! communication queues block at their heads, devices share processors and durations vary by chance. A configuration without
//! any contention is simulated by a sweep; both methods agree to the tick.
//!
//! Time is whole ticks; shared work is counted in exact fractions of a tick and ends at the first whole tick at which it is
//! done. Events of one tick are handled by device, then by kind: a message has left its link, a message arrives, a device is
//! free, an op ends. So the same input gives the same output on every machine.

mod copies;
mod engine;
mod host_links;
mod jitter;
mod messages;
mod prepared;
mod run;
mod sharing;
mod traffic;

pub use jitter::Jitter;
pub use prepared::{EventError, Prepared};
pub use run::{Each, Makespans, monte_carlo, simulate};

use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;

/// What a machine adds to the costs of ops. The default adds nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// When a send completes and what it holds up.
    pub delivery: Delivery,
    /// Under [`Delivery::OneSided`]: number of messages for which each channel (stage boundary and direction) has room at its
    /// receiver, until the ops that use them have ended. `None`: no limit.
    pub slots: Option<u32>,
    /// The links between devices.
    pub network: Network,
    /// Processors that several devices share. A device outside of these has its own.
    pub processors: Vec<Processor>,
    /// How long an op takes while its device sends or receives a message, per mille of what it takes otherwise; 1000 means no
    /// slow-down.
    pub overlap_per_mille: u32,
    /// Random durations.
    pub jitter: Option<Jitter>,
    /// Number of neighbouring devices that share a link to the host, on which the copies of one direction run one after the other, in
    /// the order in which they could start. With 1 every device has its own.
    pub devices_per_host_link: u32,
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
            devices_per_host_link: 1,
        }
    }
}

/// The links between devices. A message occupies its link for its transfer time, then travels for the costs' `arrival`, or for
/// what the transfer leaves of it (see [`Put`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// How long a message occupies its link, in ticks; 0 means that links are never contended.
    pub transfer: u64,
    /// How messages share a link.
    pub sharing: Sharing,
    /// Which messages use the same link.
    pub scope: Scope,
    /// Under [`Sharing::FairShare`]: how long a message occupies its link while 1, 2, .. do, per mille of alone; the last value
    /// applies to more. Empty: equal shares of the link's speed, which is 1000, 2000, ..
    pub contention: Vec<u32>,
    /// Whether the costs include the transfer.
    pub put: Put,
}

/// Which part of the costs includes the time for which a message occupies its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Put {
    /// None: it precedes `arrival`, and its sender computes on.
    #[default]
    Apart,
    /// The first part of `arrival`; its sender computes on.
    Beside,
    /// The first part of `arrival` and of `after`: its sender is held up until it is through.
    Holding,
}

/// How messages share a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// They do not slow each other down.
    #[default]
    Unlimited,
    /// One after the other, in the order in which they could have begun.
    #[serde(rename = "first-come")]
    FirstComeFirstServed,
    /// All at once, each at an equal share of the link's speed (max-min fair: no message has another bottleneck).
    #[serde(rename = "fair")]
    FairShare,
}

/// Which messages use the same link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Messages from one device to one other.
    #[default]
    Pair,
    /// Messages from one device to all others: its egress port.
    Egress,
    /// All messages: a bus or a shared memory.
    Machine,
}

/// A processor that several devices share: with n of their ops running, each runs at min(1, cores / n) of its speed, and slower
/// by what its neighbours take of caches, memory bandwidth and power.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// Devices that share it.
    pub devices: Vec<u32>,
    /// Number of ops that it runs in parallel.
    pub cores: u32,
    /// How long an op takes while 1, 2, .. of its cores compute, per mille of alone; the last value applies to more. Empty means
    /// 1000.
    pub contention: Vec<u32>,
}

impl Processor {
    /// Returns the share of its full speed at which an op runs while `running` ops run here, as a fraction.
    pub(super) fn share(&self, running: u32) -> (u64, u64) {
        let running = running.max(1);
        let cores = self.cores.min(running);
        let contention = self.contention.get(cores.max(1) as usize - 1).or(self.contention.last());
        (u64::from(cores) * 1000, u64::from(running) * u64::from(contention.copied().unwrap_or(1000)))
    }
}

/// Times of a message, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferTime {
    /// Index of the op that makes it.
    pub op: usize,
    /// When it could be sent.
    pub queued: u64,
    /// When it began to leave: at the head of its queue, with a slot or its partner ready, and with its link free.
    pub start: u64,
    /// When the receiver could use it.
    pub end: u64,
}

/// Observes a simulation.
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

/// Ignores everything.
impl Observer for () {}

/// An observer that records everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Start and end by op index.
    pub ops: Vec<(u64, u64)>,
    /// In no particular order.
    pub transfers: Vec<TransferTime>,
}

impl Record {
    /// Returns an empty record for the ops of `graph`.
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
