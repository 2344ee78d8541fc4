//! A measured step as a task graph with the times of its ops.

use pipesim_cost::{CostError, CostTable, OpTime, Summary, TickUnits};
use pipesim_schedule::activation::Keep;
use pipesim_schedule::deadlock::Deadlock;
use pipesim_schedule::fault::Fault;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use pipesim_schedule::schedule::{Programs, Schedule};
use pipesim_schedule::statistics::median;
use pipesim_schedule::timeline::{Queue, Timeline};
use pipesim_sim::{Delay, Held, OpTimes};
use std::collections::{BTreeMap, BTreeSet};

/// Why a timeline cannot be diagnosed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No timelines were given.
    #[error("expected the timeline of a step or more, found none")]
    NoTimeline,
    /// Timelines of different pipelines.
    #[error("expected steps of one run, found different placements of stages; give one run's timelines")]
    SeveralRuns,
    /// Times in abstract units have no length, so they are no costs.
    #[error(
        "expected times in ns, us, ms or s, found abstract units, which have no length in time; give the timeline of a measured run"
    )]
    NoUnit,
    /// A step in abstract units, as schedules without costs have, is explained as a prediction.
    #[error(
        "expected times in ns, us, ms or s, found abstract units; explain such a step from its costs, as in `stages` 4 `micro` 8 `costs` F=1,I=1,W=1"
    )]
    Abstract,
    /// More ops than can be explained.
    #[error("expected a step of at most {0} ops, found more; explain a smaller one")]
    TooLong(usize),
    /// Ops of these devices are missing.
    #[error(
        "expected the ops of every device, found those of device {} missing or cut off: what the others waited for is unknown; record and import the traces of all ranks",
        listed(.0)
    )]
    Incomplete(Vec<u32>),
    /// Stages whose devices are not known, with what was found.
    #[error("expected every stage on one device, or on one for each direction; {0}")]
    Stages(String),
    /// Ops are missing, or there are too many.
    #[error("the timeline is not of a complete step: {0}")]
    Ops(Fault),
    /// Devices wait for each other.
    #[error("expected an order that can run, found one in which devices wait for each other: {0}")]
    Order(Deadlock),
    /// The costs do not match its stages.
    #[error(transparent)]
    Costs(#[from] CostError),
}

fn listed(devices: &[u32]) -> String {
    devices.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// A measured step: the order of its ops, their times in ns, and what each start waited for.
#[derive(Clone, Debug)]
pub struct MeasuredStep {
    pub graph: TaskGraph,
    /// Times in ns. An op starts when its device is free, or when the output that it needs has arrived (`delays`), and `held` later.
    pub times: OpTimes,
    /// Mean duration by stage and kind, in ns; gaps and messages are 0, as `times` has them op by op.
    pub means: CostTable,
    /// Nanoseconds per unit of the timeline.
    pub unit_ns: u64,
}

/// What an op needs before it can start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// End of the op before it on its device, or 0.
    pub free: u64,
    /// The op whose output it waits for.
    pub maker: Option<usize>,
    /// End of that op, or 0.
    pub made: u64,
    /// Whether the output comes from another device.
    pub is_message: bool,
}

/// When the output of an op left its device and had arrived, in ns from the op's end.
#[derive(Clone, Copy)]
struct Sent {
    left: u64,
    arrived: u64,
}

impl Needs {
    /// Returns how long the message that an op waits for takes: after its maker's end, or, if the receiver was busy when it left, after the
    /// receiver is free. `usual` is how long outputs usually wait until they are sent, `typical` how long messages take in total.
    fn message(&self, start: u64, sent: Option<Sent>, usual: u64, typical: u64) -> Delay {
        let most = start.saturating_sub(self.made);
        match sent {
            None => Delay { after: 0, arrival: typical.min(most) },
            // A receiver that posts its receive late makes the message late, not the other way round.
            Some(Sent { left, arrived }) if self.made + left <= self.free => {
                Delay { after: (self.made + arrived).min(start).saturating_sub(self.free), arrival: left.min(most) }
            }
            // A send that starts later than sends usually do was held up by its host.
            Some(Sent { left, arrived }) => {
                Delay { after: 0, arrival: arrived.saturating_sub(left.saturating_sub(usual)).min(most) }
            }
        }
    }
}

impl MeasuredStep {
    /// Reads a step from the timeline of an execution.
    ///
    /// # Errors
    /// Devices without their ops, stages that no placement has, or an order that no execution has.
    pub fn new(timeline: &Timeline) -> Result<MeasuredStep, Error> {
        if !timeline.incomplete_devices.is_empty() {
            return Err(Error::Incomplete(timeline.incomplete_devices.clone()));
        }
        let (placement, rows) = rows(timeline)?;
        let spans: BTreeMap<(u32, Op), (u64, u64)> =
            timeline.ops().map(|(op, span)| ((span.device, op), (span.start_ns, span.end_ns))).collect();
        let schedule =
            Schedule::new(&timeline.schedule, placement, timeline.microbatches, rows.into_iter().collect::<Programs>());
        schedule.validate().map_err(Error::Ops)?;
        let graph = TaskGraph::new(schedule).map_err(Error::Order)?;
        let mut times = OpTimes::of(&graph);
        for index in 0..graph.len() {
            let key = (graph.device_of(index), graph.op(index).in_direction(0));
            (times.start[index], times.end[index]) = spans[&key];
        }
        let means = means(&graph, &times, timeline);
        let mut step = MeasuredStep { graph, times, means, unit_ns: timeline.unit_ns };
        step.set_waits(&sends(timeline));
        Ok(step)
    }

    /// Returns what op number `index` needs before it can start.
    pub(super) fn needs(&self, index: usize) -> Needs {
        let end = |other: usize| self.times.end[other];
        let maker = self.graph.upstream(index);
        Needs {
            free: self.graph.before(index).map_or(0, end),
            maker,
            made: maker.map_or(0, end),
            is_message: self.graph.transfer(index).is_some(),
        }
    }

    /// Splits the time between the moment at which an op has all it needs and its start: a message takes as long as messages
    /// typically do on its link, or as its send says; the rest is the host's.
    fn set_waits(&mut self, sends: &BTreeMap<(u32, Op), (u64, u64)>) {
        let all = 0..self.graph.len();
        let links = Links::new(self);
        let sent = |index: usize| {
            let (left, arrived) = sends.get(&(self.graph.device_of(index), self.graph.op(index).in_direction(0)))?;
            let end = self.times.end[index];
            Some(Sent { left: left.saturating_sub(end), arrived: arrived.saturating_sub(end) })
        };
        let leaves: Vec<f64> = all.clone().filter_map(|index| Some(sent(index)?.left as f64)).collect();
        let usual = median(&leaves) as u64;
        let (mut delays, mut held) = (vec![Delay::default(); all.len()], vec![Held::default(); all.len()]);
        for index in all.clone() {
            let (needs, start) = (self.needs(index), self.times.start[index]);
            let after = self.graph.before(index);
            let mut ready = needs.free.max(needs.made);
            if let (Some(maker), true) = (needs.maker, needs.is_message) {
                let delay = needs.message(start, sent(maker), usual, links.typical(self.link(maker, index)));
                delays[maker].arrival = delay.arrival;
                if let Some(before) = after {
                    delays[before].after = delay.after;
                }
                ready = (needs.free + delay.after).max(needs.made + delay.arrival);
            }
            held[index] = Held { ticks: start.saturating_sub(ready), after };
        }
        let late: Vec<u64> = held.iter().map(|held| held.ticks).collect();
        for index in all {
            let needs = self.needs(index);
            if let (Some(maker), true) = (needs.maker, needs.is_message)
                && self.is_late_after(maker, needs.free, late[index], sent(maker), &late)
            {
                held[index].after = Some(maker);
            }
        }
        (self.times.delays, self.times.held) = (delays, held);
    }

    /// Whether the device of op number `maker` was late by about `ticks` ns, and not the receiver, which is free from `free` on: the device
    /// sent that late, or, if sends were not recorded, its host was as late with the next op.
    fn is_late_after(&self, maker: usize, free: u64, ticks: u64, sent: Option<Sent>, late: &[u64]) -> bool {
        let end = self.times.end[maker];
        let paused = || self.graph.after(maker).map_or(0, |next| late[next]);
        let left = sent.map_or_else(paused, |sent| sent.left);
        end + left > free && 2 * left >= ticks && ticks > 0
    }

    /// Returns the devices between which the output of op number `maker` goes to op number `user`.
    pub(super) fn link(&self, maker: usize, user: usize) -> (u32, u32) {
        (self.graph.device_of(maker), self.graph.device_of(user))
    }

    /// Returns the end of the last op, in ns.
    pub fn makespan(&self) -> u64 {
        self.times.makespan()
    }

    /// Returns the total idle time in ns: p times the makespan less all ops.
    pub fn idle(&self) -> u64 {
        let busy: u64 = (0..self.graph.len()).map(|index| self.times.duration(index)).sum();
        u64::from(self.graph.schedule().devices()) * self.makespan() - busy
    }
}

/// Returns when the outputs of ops were sent and had arrived, by device and op.
fn sends(timeline: &Timeline) -> BTreeMap<(u32, Op), (u64, u64)> {
    let sends = timeline.spans.iter().filter(|span| span.queue == Queue::Send);
    sends.filter_map(|span| Some(((span.device, span.op.parse().ok()?), (span.start_ns, span.end_ns)))).collect()
}

/// Returns the placement and each device's ops in order. Stages on two devices make a bidirectional placement.
fn rows(timeline: &Timeline) -> Result<(Placement, Vec<Vec<Op>>), Error> {
    let mut devices_of: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut first_half: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for (op, span) in timeline.ops() {
        devices_of.entry(op.stage()).or_default().insert(span.device);
        let lowest = first_half.entry((op.stage(), span.device)).or_insert(op.microbatch());
        *lowest = (*lowest).min(op.microbatch());
    }
    let stages = devices_of.len() as u32;
    if devices_of.keys().copied().ne(0..stages) {
        return Err(Error::Stages("the timeline leaves stages out".to_string()));
    }
    let two = devices_of.values().any(|devices| devices.len() > 1);
    // The device with the lower micro-batches runs direction 0.
    let of = |stage: u32, direction: usize| {
        let mut held: Vec<u32> = devices_of[&stage].iter().copied().collect();
        held.sort_by_key(|&device| first_half[&(stage, device)]);
        held.get(direction).copied().ok_or_else(|| Error::Stages(format!("stage {stage} is on {} devices", held.len())))
    };
    let row = |direction| (0..stages).map(|stage| of(stage, direction)).collect::<Result<Vec<u32>, Error>>();
    let placement = match two {
        false => Placement::new("measured", timeline.devices, row(0)?),
        true => Placement::two_directions("measured", timeline.devices, [row(0)?, row(1)?]),
    };
    let placement = placement.map_err(|error| Error::Stages(error.to_string()))?;
    let mut rows = vec![Vec::new(); timeline.devices as usize];
    let mut ops: Vec<_> = timeline.ops().map(|(op, span)| (span.device, span.start_ns, span.end_ns, op)).collect();
    ops.sort_unstable();
    for (device, _, _, op) in ops {
        let direction = if two { placement.direction_of(op.microbatch(), timeline.microbatches) } else { 0 };
        rows[device as usize].push(op.in_direction(direction));
    }
    Ok((placement, rows))
}

/// Returns the mean durations by stage and kind.
fn means(graph: &TaskGraph, times: &OpTimes, timeline: &Timeline) -> CostTable {
    let mut sums = vec![(0_u64, 0_u64); graph.schedule().placement.slots()];
    for index in 0..graph.len() {
        let (sum, count) = &mut sums[graph.op(index).slot()];
        (*sum, *count) = (*sum + times.duration(index), *count + 1);
    }
    let mean = |op: Op| {
        let (sum, count) = sums[op.slot()];
        sum.checked_div(count).unwrap_or(0)
    };
    let placement = &graph.schedule().placement;
    let all = |kind: Kind| {
        let ops = placement.op_kinds().filter(|op| op.kind() == kind);
        ops.map(|op| mean(op) as f64).sum::<f64>() / f64::from(placement.devices()) / timeline.unit_ns as f64
    };
    let unit: &'static str =
        ["unit", "ns", "us", "ms", "s"].into_iter().find(|unit| *unit == timeline.time_unit).unwrap_or("unit");
    let summary = Summary::new(all, 0.0, timeline.keep);
    let units = TickUnits { ticks_per_unit: timeline.unit_ns as f64, time_unit: unit, unit_ns: timeline.unit_ns };
    let mut table = CostTable::new(placement, units, summary, |op| OpTime { duration: mean(op), after: 0, arrival: 0 });
    table.keep = Keep::new(timeline.keep);
    table
}

/// Fewest samples whose median counts.
const FEWEST: usize = 3;

/// Samples in ns by device or link.
type Samples<Key> = BTreeMap<Key, Vec<f64>>;

/// Typical times of messages by link, in ns.
///
/// A start is late by its host and, if it waits for another device, by the message. What hosts take is seen where nothing else was
/// awaited; the rest is the message's.
struct Links {
    directed: BTreeMap<(u32, u32), u64>,
    either_way: BTreeMap<(u32, u32), u64>,
    all: u64,
}

impl Links {
    fn new(step: &MeasuredStep) -> Links {
        let lag = |index: usize, since: u64| step.times.start[index].saturating_sub(since) as f64;
        let all = 0..step.graph.len();
        let waits = |index: usize| {
            let needs = step.needs(index);
            (needs.is_message && needs.made > needs.free).then_some(needs)
        };
        let longest = 2.0 * median(&all.clone().filter_map(|i| Some(lag(i, waits(i)?.made))).collect::<Vec<_>>());
        let mut hosts: Samples<u32> = BTreeMap::new();
        for index in all.clone().filter(|&index| step.graph.before(index).is_some()) {
            let needs = step.needs(index);
            if !needs.is_message || needs.made + longest as u64 <= needs.free {
                hosts.entry(step.graph.device_of(index)).or_default().push(lag(index, needs.free));
            }
        }
        let usual = median(&hosts.values().flatten().copied().collect::<Vec<_>>());
        let host = |device: u32| {
            let own = hosts.get(&device).filter(|samples| samples.len() >= FEWEST);
            own.map_or(usual, |samples| median(samples))
        };
        let (mut directed, mut either_way): (Samples<_>, Samples<_>) = Default::default();
        for index in all {
            let Some((needs, maker)) = waits(index).and_then(|needs| Some((needs, needs.maker?))) else { continue };
            let (from, to) = step.link(maker, index);
            let message = (lag(index, needs.made) - host(to)).max(0.0);
            directed.entry((from, to)).or_default().push(message);
            either_way.entry((from.min(to), from.max(to))).or_default().push(message);
        }
        let whole = median(&either_way.values().flatten().copied().collect::<Vec<_>>()) as u64;
        let typical = |samples: Samples<(u32, u32)>| {
            let enough = samples.into_iter().filter(|(_, samples)| samples.len() >= FEWEST);
            enough.map(|(link, samples)| (link, median(&samples) as u64)).collect()
        };
        Links { directed: typical(directed), either_way: typical(either_way), all: whole }
    }

    /// Returns the typical time of a message on a link, in ns; that of all links if the link has too few messages that were waited for.
    fn typical(&self, (from, to): (u32, u32)) -> u64 {
        let either_way = || self.either_way.get(&(from.min(to), from.max(to)));
        self.directed.get(&(from, to)).or_else(either_way).copied().unwrap_or(self.all)
    }
}
