//! Idle time by cause: intervals in ticks, and the same for readers.

use crate::cost::CostTable;
use crate::graph::TaskGraph;
use serde::Serialize;

/// Why a device idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Before the device's first op.
    Fill,
    /// After the device's last op.
    Drain,
    /// What this device waits for takes as long as it does with equal stages and free links.
    Dependence,
    /// Transfers and host overheads on the way to what this device waits for, or its own host overhead.
    Communication,
    /// Ops on the way to what this device waits for take longer than the average of their kind.
    Imbalance,
    /// An F could run, but for the memory it takes.
    Memory,
    /// The order chose to wait: an op that stands later would have fitted.
    Order,
}

impl Cause {
    /// Every cause, in the order in which tables list them.
    pub const ALL: [Cause; 7] = [
        Cause::Fill,
        Cause::Drain,
        Cause::Dependence,
        Cause::Communication,
        Cause::Imbalance,
        Cause::Memory,
        Cause::Order,
    ];

    /// Its name for readers; `capped` says whether a cap on activations was given: else a device's own peak stands for it.
    pub fn name(self, capped: bool) -> &'static str {
        match self {
            Cause::Fill => "fill",
            Cause::Drain => "drain",
            Cause::Dependence => "dependence",
            Cause::Communication => "exposed communication",
            Cause::Imbalance => "imbalance",
            Cause::Memory if capped => "memory cap",
            Cause::Memory => "own peak",
            Cause::Order => "order",
        }
    }

    /// What the name means, for readers.
    pub fn definition(self, capped: bool) -> &'static str {
        match self {
            Cause::Fill => "before the device's first op",
            Cause::Drain => "after the device's last op",
            Cause::Dependence => "what it waits for takes as long as it does with equal stages and free links",
            Cause::Communication => {
                "transfers and host overheads on the way to what it waits for; free links would save it, and shorten fill and drain, too"
            }
            Cause::Imbalance => {
                "ops on the way to what it waits for take longer than the average of their kind; equal stages would save it, and shorten fill and drain, too"
            }
            Cause::Memory if capped => "a forward was ready, but above the cap on activations",
            Cause::Memory => "a forward was ready, but above what the device ever holds here",
            Cause::Order => "the order chose to wait: an op that stands later would have fitted",
        }
    }
}

/// An idle interval of one device with one cause, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The device.
    pub device: u32,
    /// Its start.
    pub start: u64,
    /// Its end.
    pub end: u64,
    /// Why.
    pub cause: Cause,
    /// The op that the device runs next; `None` in the drain.
    pub next: Option<usize>,
    /// The op to blame: the one whose output the device waits for; under imbalance the last on the way to it that takes longer
    /// than the average; under order and memory the one that could have run here.
    pub op: Option<usize>,
}

/// Ticks by cause, indexed as [`Cause::ALL`].
pub type Causes = [u64; Cause::ALL.len()];

/// Every idle interval of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// End of the last op, in ticks.
    pub makespan: u64,
    /// By device, then by time. What idles longer for the same cause and op is one interval.
    pub idle: Vec<Idle>,
    /// By device; each adds up to makespan - busy.
    pub devices: Vec<Causes>,
}

/// An idle interval for readers: ops by name, times in the costs' unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleSpan {
    /// The device.
    pub device: u32,
    /// Its start.
    pub start: f64,
    /// Its end.
    pub end: f64,
    /// Why.
    pub cause: Cause,
    /// The op that the device runs next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The op to blame: the one whose output the device waits for, under imbalance the last slow one on the way to it, under order and
    /// memory the one that could have run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// That op's device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<u32>,
}

/// Idle time by cause, in the costs' unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IdleTime {
    /// All causes together: makespan - busy.
    pub idle: f64,
    /// Before the first op.
    pub fill: f64,
    /// After the last.
    pub drain: f64,
    /// [`Cause::Dependence`].
    pub dependence: f64,
    /// [`Cause::Communication`].
    pub communication: f64,
    /// [`Cause::Imbalance`].
    pub imbalance: f64,
    /// [`Cause::Memory`].
    pub memory: f64,
    /// [`Cause::Order`].
    pub order: f64,
}

/// What `explain --format json` says about idle time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleReport {
    /// End of the last op.
    pub makespan: f64,
    /// Sum over devices.
    pub total: IdleTime,
    /// By device.
    pub per_device: Vec<IdleTime>,
    /// Every interval.
    pub idle: Vec<IdleSpan>,
}

impl Explanation {
    /// Sum over devices: p * makespan - busy.
    pub fn total(&self) -> Causes {
        let add = |sum: Causes, of: &Causes| std::array::from_fn(|cause| sum[cause] + of[cause]);
        self.devices.iter().fold(Causes::default(), add)
    }

    /// The same for readers.
    pub fn report(&self, graph: &TaskGraph, costs: &CostTable) -> IdleReport {
        let unit = |ticks: u64| ticks as f64 / costs.ticks_per_unit;
        let time = |causes: &Causes| {
            let [fill, drain, dependence, communication, imbalance, memory, order] = causes.map(unit); // as in Cause::ALL
            let idle = unit(causes.iter().sum());
            IdleTime { idle, fill, drain, dependence, communication, imbalance, memory, order }
        };
        let name = |index: usize| graph.op(index).to_string();
        let span = |idle: &Idle| IdleSpan {
            device: idle.device,
            start: unit(idle.start),
            end: unit(idle.end),
            cause: idle.cause,
            next: idle.next.map(name),
            op: idle.op.map(name),
            on: idle.op.map(|op| graph.device_of(op)),
        };
        IdleReport {
            makespan: unit(self.makespan),
            total: time(&self.total()),
            per_device: self.devices.iter().map(time).collect(),
            idle: self.idle.iter().map(span).collect(),
        }
    }
}
