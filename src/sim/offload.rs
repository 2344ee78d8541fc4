//! PipeOffload's plan of copies to and from the host (Wan et al., arXiv 2503.01328), as its authors' program computes it.
//!
//! Devices 2x and 2x + 1 share a link, whose time is cut into slots: while one device writes, the other reads. Times are floating-point
//! numbers, added up in the program's order, since its comparisons depend on how they are rounded.

use super::waits::OpTimes;
use pipesim_cost::CostTable;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::schedule::{Programs, Schedule};
use std::collections::BTreeMap;

/// A copy with the link to itself takes this share of one next to a copy in the other direction.
const ALONE: f64 = 0.7;

/// Activations whose backward starts within this many slots stay on the device.
const LEAST_SLOTS: f64 = 6.0;

/// Most slots of a step.
const MOST_SLOTS: f64 = 1e7;

/// Difference of times that counts as none.
const NEAR: f64 = 1e-9;

/// A copy of a plan, in the costs' unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedCopy {
    /// OFFLOAD or RELOAD of a unit.
    pub op: Op,
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
}

/// When each device copies which activations.
#[derive(Clone, Debug, PartialEq)]
pub struct OffloadPlan {
    /// By device, in the order of its forwards.
    pub to_host: Vec<Vec<PlannedCopy>>,
    /// By device, by start.
    pub from_host: Vec<Vec<PlannedCopy>>,
    /// By device: the most chunk activations held without copies, and with them.
    pub peaks: Vec<[i64; 2]>,
    /// Duration of a copy next to one in the other direction: a slot.
    pub slot: f64,
    /// Starts of all ops, by the graph's index, with warm-up forwards delayed.
    pub starts: Vec<f64>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum OffloadRefused {
    #[error("expected whole micro-batches without copies; leave offload(..) out")]
    NotWhole,
    #[error("expected a time of a copy above 0, found {found}; give more")]
    NoTime { found: f64 },
    #[error("copies of {copy} are too short to be planned over a step of {step}; give a longer copy")]
    TooShort { copy: f64, step: f64 },
    #[error("a plan of copies needs the time of a copy; give it as `costs` copy=0.5")]
    Missing,
    #[error("device {device}: no slot is left for {back} after {away}; offload fewer chunks, or copy faster")]
    NoSlot { device: u32, away: Op, back: Op },
}

/// Start and end of every op, in the costs' unit.
struct Times<'a> {
    graph: &'a TaskGraph,
    start: Vec<f64>,
    end: Vec<f64>,
}

impl Times<'_> {
    fn duration(&self, index: usize) -> f64 {
        self.end[index] - self.start[index]
    }

    /// Returns the time by which an activation must be back for the backward number `index`.
    fn back_by(&self, index: usize) -> f64 {
        self.start[index] - self.duration(index)
    }

    /// Delays the forwards of a device between the forward of the last chunk's first micro-batch and its first backward. The next stage,
    /// the next forward and that backward limit the delay.
    fn delay_warm_up(&mut self, device: u32, comm: f64) {
        let (graph, range) = (self.graph, self.graph.schedule().range(device));
        let Some(first) = range.clone().find(|&index| graph.op(index).kind().is_backward()) else { return };
        let limit = self.back_by(first);
        let last_chunk = graph.schedule().placement.stages_of(device).last();
        let mut next: Option<usize> = None;
        for index in (range.start..first).rev().filter(|&index| graph.op(index).kind() == Kind::F) {
            let op = graph.op(index);
            if op.microbatch() == 0 && Some(op.stage()) == last_chunk {
                break;
            }
            let of_next = next.map_or(limit, |next| self.start[next]);
            let of_user = graph.consumer(index).map_or(limit, |user| self.start[user] - comm);
            let (duration, end) = (self.duration(index), limit.min(of_next).min(of_user).max(self.end[index]));
            (self.start[index], self.end[index]) = (end - duration, end);
            next = Some(index);
        }
    }
}

/// The slots of one device: they start at `first` and alternate between copies to the host and from it.
struct LinkSlots {
    to_host: Vec<f64>,
    from_host: Vec<f64>,
}

impl LinkSlots {
    fn new(first: f64, slot: f64, until: f64) -> LinkSlots {
        let line = |first: f64| std::iter::successors(Some(first), |start| Some(start + 2.0 * slot));
        let all = |first: f64| line(first).take_while(|&start| start <= until).collect();
        LinkSlots { to_host: all(first), from_host: all(first + slot) }
    }
}

/// A unit that goes to the host: its forward and backward, by the graph's index, and the starts of its slots.
#[derive(Clone, Copy, Debug)]
struct OffloadedUnit {
    forward: usize,
    backward: usize,
    to_host: f64,
    from_host: f64,
}

/// Plans the copies of the activations of the first `chunks` chunks of every device. A copy lasts `offload_time` of the longest F + I + W of a
/// chunk's op.
///
/// # Errors
/// The graph has copies already, a copy takes no time, or an activation would have to be back before it has gone.
pub fn plan_offload(
    graph: &TaskGraph,
    costs: &CostTable,
    chunks: u32,
    offload_time: f64,
) -> Result<OffloadPlan, OffloadRefused> {
    let schedule = graph.schedule();
    let unit = |ticks: u64| costs.in_units(ticks);
    if schedule.has_copies() || schedule.slices().is_cut() {
        return Err(OffloadRefused::NotWhole);
    }
    let whole = |op: Op| [Kind::F, Kind::I, Kind::W].map(|kind| costs.of(op.of_kind(kind)).duration).iter().sum();
    let longest = unit(schedule.placement.op_kinds().map(whole).max().unwrap_or(0));
    let slot = rounded(offload_time * longest);
    if !(slot > 0.0 && slot.is_finite()) {
        return Err(OffloadRefused::NoTime { found: slot });
    }
    let swept = OpTimes::swept(graph, costs);
    let of = |ticks: &[u64]| ticks.iter().map(|&ticks| unit(ticks)).collect();
    let mut times = Times { graph, start: of(&swept.start), end: of(&swept.end) };
    (0..schedule.devices()).rev().for_each(|device| times.delay_warm_up(device, costs.summary.comm));
    let until = times.end.iter().copied().fold(0.0, f64::max);
    if until / slot > MOST_SLOTS {
        return Err(OffloadRefused::TooShort { copy: slot, step: until });
    }
    let devices = schedule.devices() as usize;
    let mut plan = OffloadPlan {
        to_host: vec![Vec::new(); devices],
        from_host: vec![Vec::new(); devices],
        peaks: Vec::new(),
        slot,
        starts: Vec::new(),
    };
    for first in (0..schedule.devices()).step_by(2) {
        plan.add_pair(&times, first, chunks)?;
    }
    plan.peaks = (0..schedule.devices()).map(|device| plan.peaks_of(&times, device)).collect();
    Ok(OffloadPlan { starts: times.start, ..plan })
}

/// Returns the schedule of `graph` with the copies of the plan for the first `chunks` chunks of every device. A copy lasts as long as `costs` say.
///
/// # Errors
/// As [`plan_offload`].
pub(crate) fn planned_offload(graph: &TaskGraph, costs: &CostTable, chunks: u32) -> Result<Schedule, OffloadRefused> {
    let longest = |kinds: &[Kind]| {
        let lasts = |op: Op| kinds.iter().map(|&kind| costs.of(op.of_kind(kind)).duration).sum::<u64>();
        graph.schedule().placement.op_kinds().map(lasts).max().unwrap_or(0)
    };
    let (copy, compute) = (longest(&[Kind::O]), longest(&[Kind::F, Kind::I, Kind::W]));
    if copy == 0 {
        return Err(OffloadRefused::Missing);
    }
    Ok(plan_offload(graph, costs, chunks, copy as f64 / compute.max(1) as f64)?.schedule(graph))
}

/// Rounds to two decimals, as the program does.
fn rounded(time: f64) -> f64 {
    format!("{time:.2}").parse().unwrap_or(time)
}

impl OffloadPlan {
    /// Plans the copies of device `first` and of the next one, which share a link.
    fn add_pair(&mut self, times: &Times, first: u32, chunks: u32) -> Result<(), OffloadRefused> {
        let (graph, slot) = (times.graph, self.slot);
        let schedule = graph.schedule();
        let begin = times.end[schedule.range(first).start];
        let until = times.end.iter().copied().fold(0.0, f64::max);
        let mut all: Vec<(u32, OffloadedUnit)> = Vec::new();
        for device in (first..first + 2).take_while(|&device| device < schedule.devices()) {
            let shift = if device == first { 0.0 } else { slot };
            let slots = LinkSlots::new(begin + shift, slot, until);
            let mut units = offloaded(times, device, chunks, slot);
            assign(times, &mut units, &slots, slot).map_err(|away| OffloadRefused::NoSlot {
                device,
                away,
                back: away.of_kind(Kind::L),
            })?;
            all.extend(units.into_iter().map(|unit| (device, unit)));
        }
        // Before the pair reads for the first time, its copies have the link to themselves, one after the other.
        let reads = all.iter().map(|(_, unit)| unit.from_host).fold(f64::INFINITY, f64::min);
        all.sort_by(|(_, one), (_, other)| one.to_host.total_cmp(&other.to_host));
        let mut free: Option<f64> = None;
        for (device, OffloadedUnit { forward, to_host, .. }) in &all {
            let op = graph.op(*forward).of_kind(Kind::O);
            let (start, end) = if *to_host < reads {
                let start = times.end[*forward].max(free.unwrap_or(*to_host));
                (start, start + ALONE * slot)
            } else {
                (*to_host, to_host + slot)
            };
            free = Some(end);
            self.to_host[*device as usize].push(PlannedCopy { op, start, end });
        }
        for (device, OffloadedUnit { backward, from_host, .. }) in all {
            let op = graph.op(backward).of_kind(Kind::L);
            self.from_host[device as usize].push(PlannedCopy { op, start: from_host, end: from_host + slot });
        }
        for device in (first..first + 2).take_while(|&device| device < schedule.devices()) {
            self.from_host[device as usize].sort_by(|one, other| one.start.total_cmp(&other.start));
        }
        Ok(())
    }

    /// Returns the most chunk activations that a device holds without copies and with them. Those that a W frees at its start, the program counts
    /// before those that a RELOAD takes at the same time, and these before those that an OFFLOAD frees.
    fn peaks_of(&self, times: &Times, device: u32) -> [i64; 2] {
        let graph = times.graph;
        let key = |time: f64| (time * 1e6).round() as i64;
        let change = |kind: Kind| i64::from(kind == Kind::F) - i64::from(matches!(kind, Kind::W | Kind::B));
        let computes = graph.schedule().range(device).map(|index| (index, change(graph.op(index).kind())));
        let computes: Vec<(usize, i64)> = computes.filter(|&(_, change)| change != 0).collect();
        let most = |changes: &[(i64, u8, usize, i64)]| {
            let held = changes.iter().scan(0, |held, change| {
                *held += change.3;
                Some(*held)
            });
            held.max().unwrap_or(0)
        };
        let mut changes: Vec<(i64, u8, usize, i64)> =
            computes.iter().map(|&(index, change)| (key(times.start[index]), 0, index, change)).collect();
        let before = most(&changes);
        let copies = self.to_host[device as usize].iter().map(|copy| (key(copy.end), 2, 0, -1));
        changes.extend(copies.chain(self.from_host[device as usize].iter().map(|copy| (key(copy.start), 1, 0, 1))));
        changes.sort_unstable();
        [before, most(&changes)]
    }

    /// Returns the schedule of `graph` with the copies of this plan: each after the last op of its device that starts before it does.
    pub fn schedule(&self, graph: &TaskGraph) -> Schedule {
        let schedule = graph.schedule();
        let row = |device: u32| -> Vec<Op> {
            let computes = schedule.range(device).map(|index| (self.starts[index], 1, graph.op(index)));
            let copies = self.to_host[device as usize].iter().chain(&self.from_host[device as usize]);
            let mut all: Vec<(f64, u8, Op)> = computes.chain(copies.map(|copy| (copy.start, 0, copy.op))).collect();
            all.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
            all.into_iter().map(|(_, _, op)| op).collect()
        };
        let rows: Programs = (0..schedule.devices()).map(row).collect();
        Schedule::new(&schedule.name, schedule.placement.clone(), schedule.microbatches, rows)
    }
}

/// Returns the units of the first `chunks` chunks whose backward is far enough, in the order of their forwards; their slots are not known.
fn offloaded(times: &Times, device: u32, chunks: u32, slot: f64) -> Vec<OffloadedUnit> {
    let graph = times.graph;
    let stages: Vec<u32> = graph.schedule().placement.stages_of(device).take(chunks as usize).collect();
    let range = graph.schedule().range(device);
    let backwards = range.clone().filter(|&index| graph.op(index).kind().is_backward());
    let backwards: BTreeMap<Op, usize> = backwards.map(|index| (graph.op(index).of_kind(Kind::F), index)).collect();
    let forwards = range.clone().filter(|&index| graph.op(index).kind() == Kind::F);
    let units = forwards.filter(|&index| stages.contains(&graph.op(index).stage())).filter_map(|forward| {
        let backward = *backwards.get(&graph.op(forward).alone())?;
        Some(OffloadedUnit { forward, backward, to_host: 0.0, from_host: 0.0 })
    });
    units.filter(|unit| times.back_by(unit.backward) - times.end[unit.forward] > LEAST_SLOTS * slot).collect()
}

/// Gives each unit the first free slot to the host after its forward and, from the last backward back, the last free slot from the host before
/// its backward; fails with the OFFLOAD of a unit that would be back before it has gone.
fn assign(times: &Times, units: &mut [OffloadedUnit], slots: &LinkSlots, slot: f64) -> Result<(), Op> {
    let refused = |unit: &OffloadedUnit| times.graph.op(unit.forward).of_kind(Kind::O);
    let mut taken = vec![false; slots.to_host.len()];
    for unit in units.iter_mut() {
        let first = slots.to_host.partition_point(|&start| start < times.end[unit.forward]);
        let free = (first..taken.len()).find(|&number| !taken[number]).ok_or_else(|| refused(unit))?;
        (taken[free], unit.to_host) = (true, slots.to_host[free]);
    }
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|&number| std::cmp::Reverse(units[number].backward));
    let mut taken = vec![false; slots.from_host.len()];
    for number in order {
        let unit = &mut units[number];
        let by = times.back_by(unit.backward);
        let after = slots.from_host.partition_point(|&start| start + slot <= by);
        let free = (0..after).rev().find(|&number| !taken[number]).ok_or_else(|| refused(unit))?;
        (taken[free], unit.from_host) = (true, slots.from_host[free]);
        if unit.from_host + NEAR < unit.to_host + slot {
            return Err(refused(unit));
        }
    }
    Ok(())
}
