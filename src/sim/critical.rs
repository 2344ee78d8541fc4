//! The critical path, the slack of every op, and how much one percent less of each cost would save.

use super::sweep::sweep_lasting;
use super::waits::{Doing, OpTimes, TimedGraph, WaitPiece};
use pipesim_cost::{CostTable, OpTime};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::metrics::makespan;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use pipesim_schedule::schedule::Overlap;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Returns a chain of ops, transfers and host overheads from time 0 to the makespan without a gap: the op that ends last (on the
/// lowest device), what it waited for longest, and so on. If several chains are critical, it is one of them.
pub fn critical_path(graph: &TaskGraph, costs: &CostTable, times: &OpTimes) -> Vec<WaitPiece> {
    let makespan = times.makespan();
    let Some(last) = times.end.iter().position(|&end| end == makespan) else { return Vec::new() };
    TimedGraph { graph, costs, times }.chain(last)
}

/// Returns, by op, by how many ticks it alone may be longer without increasing the makespan of this order. `lasting` has the durations
/// of ops if they differ from the costs.
pub fn slacks(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, lasting: Option<&[u64]>) -> Vec<u64> {
    let makespan = times.makespan();
    let mut latest_end = vec![makespan; graph.len()];
    for index in graph.order().into_iter().rev() {
        let latest_start = latest_end[index].saturating_sub(times.duration(index));
        for need in (TimedGraph { graph, costs, times }).needs(index) {
            let latest = latest_start.saturating_sub(need.lag);
            latest_end[need.end_of] = latest_end[need.end_of].min(latest);
        }
    }
    let alone = |index: usize| lasting.map_or_else(|| costs.of(graph.op(index)).duration, |lasting| lasting[index]);
    let slack = |index: usize| {
        let room = latest_end[index].saturating_sub(times.end[index]);
        match (graph.pair(index), graph.overlap()) {
            // The pair does not take longer until the shorter op is as long as the longer.
            (Some((first, last)), Overlap::Max) => room + alone(first).max(alone(last)) - alone(index),
            // The pair takes longer in proportion.
            (Some((first, last)), Overlap::Streams) => {
                let (sum, whole) = (alone(first) + alone(last), times.end[last] - times.start[first]);
                (u128::from(room) * u128::from(sum) / u128::from(whole.max(1))) as u64
            }
            _ => room,
        }
    };
    (0..graph.len()).map(slack).collect()
}

/// A share of the costs, which is made shorter to see what the step gains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CostShare {
    /// All ops of a device.
    Device(u32),
    /// All ops of a stage.
    Stage(u32),
    /// All ops of a kind.
    Kind(Kind),
    /// All transfers and host overheads.
    Communication,
    /// The transfers from one device to another.
    Link {
        /// Sending device.
        from: u32,
        /// Receiving device.
        to: u32,
    },
}

impl fmt::Display for CostShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostShare::Device(device) => write!(f, "device {device}"),
            CostShare::Stage(stage) => write!(f, "stage {stage}"),
            CostShare::Kind(kind) => write!(f, "{}", kind.letter()),
            CostShare::Communication => write!(f, "communication"),
            CostShare::Link { from, to } => write!(f, "link {from} to {to}"),
        }
    }
}

/// Returns the devices between which the output of `op` is transferred.
fn link(placement: &Placement, op: Op) -> Option<(u32, u32)> {
    let from = placement.device_of(op);
    placement.receiver(op).filter(|&to| to != from).map(|to| (from, to))
}

impl CostShare {
    /// Returns all parts of the costs of `graph`: devices, stages (if devices have several), kinds, communication, links.
    pub fn all(graph: &TaskGraph) -> Vec<CostShare> {
        let schedule = graph.schedule();
        let (placement, counts) = (&schedule.placement, schedule.counts());
        let used = || placement.op_kinds().filter(|op| counts[op.slot()] > 0);
        let mut shares: Vec<CostShare> = (0..schedule.devices()).map(CostShare::Device).collect();
        if placement.stages() > schedule.devices() || placement.directions() > 1 {
            shares.extend((0..placement.stages()).map(CostShare::Stage));
        }
        shares.extend(Kind::ALL.into_iter().filter(|&kind| used().any(|op| op.kind() == kind)).map(CostShare::Kind));
        shares.push(CostShare::Communication);
        let links: BTreeSet<(u32, u32)> = used().filter_map(|op| link(placement, op)).collect();
        shares.extend(links.into_iter().map(|(from, to)| CostShare::Link { from, to }));
        shares
    }

    /// Reduces the time of ops such as `op` by one percent of this part, rounded down.
    pub fn less(self, placement: &Placement, op: Op, time: OpTime) -> OpTime {
        let less = |ticks: u64, less: bool| {
            if less { (u128::from(ticks) * u128::from(PERCENT - 1) / u128::from(PERCENT)) as u64 } else { ticks }
        };
        OpTime {
            duration: less(time.duration, self.computes(placement, op)),
            after: less(time.after, self == CostShare::Communication),
            arrival: less(time.arrival, self.carries(placement, op)),
        }
    }

    /// Whether this part includes the compute time of ops such as `op`.
    fn computes(self, placement: &Placement, op: Op) -> bool {
        match self {
            CostShare::Device(device) => placement.device_of(op) == device,
            CostShare::Stage(stage) => op.stage() == stage,
            CostShare::Kind(kind) => op.kind() == kind,
            CostShare::Communication | CostShare::Link { .. } => false,
        }
    }

    /// Whether this part includes the transfer of the output of ops such as `op`.
    fn carries(self, placement: &Placement, op: Op) -> bool {
        match self {
            CostShare::Communication => true,
            CostShare::Link { from, to } => link(placement, op) == Some((from, to)),
            CostShare::Device(_) | CostShare::Stage(_) | CostShare::Kind(_) => false,
        }
    }
}

/// How much one percent less of a part of the costs saves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Name of the part: `device 2`, `stage 3`, `W`, `communication`, `link 0 to 1`.
    pub part: String,
    /// By how many percent the makespan shrinks if all times of the part shrink by one percent: 1 if the whole critical path consists
    /// of it, 0 if none of it does.
    pub percent: f64,
}

/// Multiplier of costs that makes one percent of them a whole number of ticks.
pub const PERCENT: u32 = 100;

/// Returns `parts` if each tick can be divided into as many, and 1 if the step would be too long in such ticks. `longest` is the
/// longest duration of an op if it exceeds the costs.
pub fn finer_by(parts: u32, graph: &TaskGraph, costs: &CostTable, longest: u64) -> u32 {
    let total = |time: OpTime| u128::from(time.duration) + u128::from(time.after) + u128::from(time.arrival);
    let most = graph.schedule().placement.op_kinds().map(|op| total(costs.of(op))).max().unwrap_or(0);
    let bound = (most + u128::from(longest)).saturating_mul(graph.len() as u128);
    if bound < u128::from(u64::MAX / u64::from(parts.max(1))) { parts } else { 1 }
}

/// Returns how much one percent less of each of `shares` saves on this order, by one sweep per share. `lasting` has the durations of ops
/// if they differ from the costs.
pub fn sensitivities(
    graph: &TaskGraph,
    costs: &CostTable,
    lasting: Option<&[u64]>,
    shares: &[CostShare],
) -> Vec<Sensitivity> {
    let placement = &graph.schedule().placement;
    let scale = finer_by(PERCENT, graph, costs, lasting.into_iter().flatten().copied().max().unwrap_or(0));
    let fine = costs.finer(scale);
    let makespan_of = |share: Option<CostShare>| {
        let less = |op: Op, time: OpTime| share.map_or(time, |share| share.less(placement, op, time));
        let table = fine.with_times(placement, less);
        let lasts = |index: usize, _, _, duration| match lasting {
            Some(lasting) => {
                let time = OpTime { duration: lasting[index] * u64::from(scale), ..OpTime::default() };
                less(graph.op(index), time).duration
            }
            None => duration,
        };
        makespan(&sweep_lasting(graph, &table, lasts, |_, _, _| ()))
    };
    let whole = makespan_of(None);
    let percent = |share: CostShare| match whole {
        0 => 0.0,
        whole => whole.saturating_sub(makespan_of(Some(share))) as f64 / whole as f64 * f64::from(PERCENT),
    };
    shares.iter().map(|&share| Sensitivity { part: share.to_string(), percent: percent(share) }).collect()
}

/// A piece of the critical path for output, in the costs' unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CriticalSpan {
    /// `run`, `transfer` or `overhead`.
    pub what: &'static str,
    /// The op that runs, whose output is transferred, or which causes the overhead.
    pub op: String,
    /// Device on which it happens.
    pub device: u32,
    /// The op that waits for the transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
}

/// Returns the pieces of a critical path for output.
pub fn critical_spans(graph: &TaskGraph, costs: &CostTable, path: &[WaitPiece]) -> Vec<CriticalSpan> {
    let unit = |ticks: u64| costs.in_units(ticks);
    let span = |&WaitPiece { start, end, doing }: &WaitPiece| {
        let (what, op, user) = match doing {
            Doing::Running(op) => ("run", op, None),
            Doing::Transfer { maker, user } => ("transfer", maker, Some(user)),
            Doing::Overhead(op) => ("overhead", op, None),
        };
        let name = |index: usize| graph.op(index).to_string();
        let device = graph.device_of(op);
        CriticalSpan { what, op: name(op), device, to: user.map(name), start: unit(start), end: unit(end) }
    };
    path.iter().map(span).collect()
}
