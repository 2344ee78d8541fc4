//! Idle time by cause: intervals in ticks, and their form for output.

use pipesim_cost::CostTable;
use pipesim_schedule::graph::TaskGraph;
use serde::Serialize;

/// Why a device idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Before the device's first op.
    Fill,
    /// After the device's last op.
    Drain,
    /// Waiting for another device, even with equal stages and free links.
    Dependence,
    /// Transfers and host overheads before what this device waits for, or its own host overhead.
    Communication,
    /// Ops before what this device waits for take longer than the average of their kind.
    Imbalance,
    /// An F could run if there were memory for it.
    Memory,
    /// A later op of this device would have fitted.
    Order,
    /// Everything that the next op, or an op before what this device waits for, needed was there, but its host started it later.
    /// Only in measured steps.
    Host,
    /// Ops before what this device waits for took longer than they do on average. Only in measured steps.
    Straggler,
}

impl Cause {
    /// All causes, in the order of tables.
    pub const ALL: [Cause; 9] = [
        Cause::Fill,
        Cause::Drain,
        Cause::Dependence,
        Cause::Communication,
        Cause::Imbalance,
        Cause::Memory,
        Cause::Order,
        Cause::Host,
        Cause::Straggler,
    ];

    /// Returns whether predicted steps have it, too.
    pub fn is_predicted(self) -> bool {
        !matches!(self, Cause::Host | Cause::Straggler)
    }

    /// Returns its name for output; without a cap on activations (`capped`) the device's own peak is used as the cap.
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
            Cause::Host => "host delay",
            Cause::Straggler => "stragglers",
        }
    }

    /// Returns the meaning of the name, for output.
    pub fn definition(self, capped: bool) -> &'static str {
        match self {
            Cause::Fill => "before the device's first op",
            Cause::Drain => "after the device's last op",
            Cause::Dependence => "waiting for other devices, even with equal stages and free links",
            Cause::Communication => {
                "transfers and host overheads before what it waits for; free links would save it, and shorten fill and drain, too"
            }
            Cause::Imbalance => {
                "ops before what it waits for take longer than the average of their kind; equal stages and slices would save it, and shorten fill and drain, too"
            }
            Cause::Memory if capped => "a forward was ready, but would have exceeded the cap on activations",
            Cause::Memory => "a forward was ready, but would have exceeded the device's own peak",
            Cause::Order => "a later op of the device would have fitted",
            Cause::Host => "all that an op needed was there, but its host started it, or sent its output, later",
            Cause::Straggler => "ops before what it waits for took longer than they do on average",
        }
    }
}

/// Which ops are slow under imbalance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowOps {
    /// The ops of some stages are slower than the others.
    #[default]
    Stages,
    /// The ops of some slices of the sequence are slower, on all stages.
    Slices,
    /// Some stages and some slices.
    Both,
}

/// An idle interval of one device with one cause, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The device.
    pub device: u32,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
    /// Why it idles.
    pub cause: Cause,
    /// The op that the device runs next; `None` in the drain.
    pub next: Option<usize>,
    /// The responsible op: the one whose output the device waits for; under imbalance and stragglers the last op before it that takes
    /// longer than the average; under order and memory the op that could have run here; under host delay the op after which the host
    /// was late.
    pub op: Option<usize>,
}

/// Ticks by cause, indexed as [`Cause::ALL`].
pub type Causes = [u64; Cause::ALL.len()];

/// All idle intervals of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// End of the last op, in ticks.
    pub makespan: u64,
    /// By device, then by time; adjacent intervals with the same cause and op are merged.
    pub idle: Vec<Idle>,
    /// By device; the causes add up to makespan - busy.
    pub devices: Vec<Causes>,
    /// Ticks of imbalance due to slices of a sequence that are slower than others on all stages. The rest is due to slow
    /// stages.
    pub imbalance_of_slices: u64,
}

/// An idle interval for output: ops by name, times in the costs' unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleSpan {
    /// The device.
    pub device: u32,
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
    /// Why it idles.
    pub cause: Cause,
    /// The op that the device runs next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The responsible op: the one whose output the device waits for, under imbalance the last slow op before it, under order and
    /// memory the op that could have run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// That op's device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<u32>,
}

/// Idle time by cause, in the costs' unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IdleTime {
    /// Sum of all causes: makespan - busy.
    pub idle: f64,
    /// Before the first op.
    pub fill: f64,
    /// After the last.
    pub drain: f64,
    /// Waiting for another device, even with equal stages and free links.
    pub dependence: f64,
    /// Transfers and host overheads before what the device waits for.
    pub communication: f64,
    /// Ops that take longer than the average of their kind.
    pub imbalance: f64,
    /// An F could run if there were memory for it.
    pub memory: f64,
    /// A later op of the device would have fitted.
    pub order: f64,
    /// Measured steps only.
    #[serde(skip_serializing_if = "is_zero")]
    pub host: f64,
    /// Measured steps only.
    #[serde(skip_serializing_if = "is_zero")]
    pub straggler: f64,
}

fn is_zero(time: &f64) -> bool {
    *time == 0.0
}

impl IdleTime {
    /// Returns the time of `cause`.
    pub fn of(&self, cause: Cause) -> f64 {
        let IdleTime { fill, drain, dependence, communication, imbalance, memory, order, host, straggler, .. } = *self;
        [fill, drain, dependence, communication, imbalance, memory, order, host, straggler][cause as usize]
    }
}

/// Idle time in `explain --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleReport {
    /// End of the last op.
    pub makespan: f64,
    /// Sum over devices.
    pub total: IdleTime,
    /// By device.
    pub per_device: Vec<IdleTime>,
    /// All idle intervals, by device and time.
    pub idle: Vec<IdleSpan>,
    /// Which ops are slow under imbalance.
    #[serde(skip)]
    pub slow: SlowOps,
}

impl Explanation {
    /// Returns the sum over devices: p * makespan - busy.
    pub fn total(&self) -> Causes {
        let add = |sum: Causes, of: &Causes| std::array::from_fn(|cause| sum[cause] + of[cause]);
        self.devices.iter().fold(Causes::default(), add)
    }

    /// Converts for output.
    pub fn report(&self, graph: &TaskGraph, costs: &CostTable) -> IdleReport {
        let unit = |ticks: u64| costs.in_units(ticks);
        let time = |causes: &Causes| {
            // as in Cause::ALL
            let [fill, drain, dependence, communication, imbalance, memory, order, host, straggler] = causes.map(unit);
            let idle = unit(causes.iter().sum());
            IdleTime { idle, fill, drain, dependence, communication, imbalance, memory, order, host, straggler }
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
            slow: self.slow_ops(),
        }
    }

    /// Returns which ops are slow under imbalance: those that make more than two thirds of it, or both.
    fn slow_ops(&self) -> SlowOps {
        let (all, of_slices) = (self.total()[Cause::Imbalance as usize], self.imbalance_of_slices);
        match (3 * of_slices > all, 3 * of_slices > 2 * all) {
            (_, true) => SlowOps::Slices,
            (true, false) => SlowOps::Both,
            (false, false) => SlowOps::Stages,
        }
    }
}
