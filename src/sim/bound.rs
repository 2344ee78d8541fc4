//! Lower bounds of the makespan of every schedule with a placement, kinds of ops, costs, and optionally a memory cap.

use super::event::Processor;
use super::paths::{ChunkUnit, Paths};
use super::rules::{pair_duration, pairs};
use pipesim_cost::{CostTable, OpTime};
use pipesim_schedule::activation::{self, Keep, WHOLE};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;
use std::collections::{BTreeMap, BinaryHeap};

/// Lower bounds of the makespan in ticks, by argument.
///
/// They hold for every order of the same ops on the same devices. If overlapped pairs take less time than their ops, they hold
/// for every order with the same pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Work of the busiest device.
    pub work: u64,
    /// One micro-batch forward and backward through all stages, followed by the W of any stage.
    pub critical_path: u64,
    /// For any set of a device's ops: the time before the first of them, their work, and the time after the last.
    pub head_work_tail: u64,
    /// From the memory cap; `None` without a cap, or if no schedule keeps it.
    pub memory: Option<u64>,
    /// Work of devices that share cores, evenly distributed; `None` if none do.
    pub cores: Option<u64>,
    /// The largest bound if any backwards may be split into I and W; `None` if unknown. Not part of [`Bounds::best`].
    pub if_split: Option<u64>,
}

impl Bounds {
    /// Returns the largest bound and its name.
    pub fn best(&self) -> (u64, &'static str) {
        let named = [
            (self.work, "work"),
            (self.critical_path, "critical path"),
            (self.head_work_tail, "head + work + tail"),
            (self.memory.unwrap_or(0), "memory"),
            (self.cores.unwrap_or(0), "shared cores"),
        ];
        // Prefer the simplest of equal bounds.
        named.into_iter().rev().max_by_key(|&(ticks, _)| ticks).unwrap_or((0, "work"))
    }
}

/// Returns the bounds of every schedule in which no device holds more than `cap` activation units.
pub fn bounds(graph: &TaskGraph, costs: &CostTable, cap: Option<f64>) -> Bounds {
    let cap = cap.map(|cap| activation::cap(cap, graph.schedule().placement.chunks()));
    let paths = Paths::new(graph, costs);
    Bounds { if_split: if_split(&paths, cap), ..bounds_with(&paths, |_| cap) }
}

/// Returns the bounds of every schedule in which each device keeps its cap in `caps`.
pub fn bounds_within(graph: &TaskGraph, costs: &CostTable, caps: &[Option<f64>]) -> Bounds {
    let chunks = graph.schedule().placement.chunks();
    bounds_with(&Paths::new(graph, costs), |device| Some(activation::cap(caps[device as usize]?, chunks)))
}

/// Returns the bounds of every schedule in which no device holds more than it does in this one.
pub fn bounds_at_own_peaks(graph: &TaskGraph, costs: &CostTable) -> Bounds {
    bounds_with(&Paths::new(graph, costs), |device| Some(graph.schedule().most_held(device, costs.keep)))
}

/// Returns the bound of every order in which no device holds more than `cap` and each backward may be whole or split into I and W.
/// `None` if overlapped pairs take less time than their ops, since splitting changes the pairs, and for slices, recompute and copies.
fn if_split(paths: &Paths, cap: Option<i128>) -> Option<u64> {
    let (graph, placement) = (paths.graph, &paths.graph.schedule().placement);
    let is_whole = graph.schedule().beyond_microbatches().is_none();
    if !is_whole || graph.schedule().has_pairs() && graph.overlap().is_shorter() {
        return None;
    }
    let mut counts = paths.counts.clone();
    for op in placement.op_kinds().filter(|op| op.kind() == Kind::B) {
        let whole = std::mem::take(&mut counts[op.slot()]);
        [Kind::I, Kind::W].into_iter().for_each(|half| counts[op.of_kind(half).slot()] += whole);
    }
    let halves = cheapest_halves(placement, paths.costs);
    Some(bounds_with(&Paths::with_counts(graph, &halves, counts), |_| cap).best().0)
}

/// Returns costs under which I and W in sequence take no longer than B, and neither half takes longer than before. With these halves
/// instead of its backwards, no order takes longer, so a bound for these halves is a bound for all mixes of backwards.
fn cheapest_halves(placement: &Placement, costs: &CostTable) -> CostTable {
    CostTable::new(placement, costs.units, costs.summary, |op| {
        let [i, w, b] = [Kind::I, Kind::W, Kind::B].map(|kind| costs.of(op.of_kind(kind)));
        let duration = i.duration.min(b.duration);
        let after = (i.duration - duration + i.after).min(b.duration - duration);
        let arrival = (i.duration + i.arrival).min(b.duration + b.arrival) - duration;
        // The rest of a B after the I until its end, and until its device is free.
        let (rest, held) = (b.duration - duration - after, b.duration + b.after - duration - after);
        let lasts = w.duration.min(rest);
        match op.kind() {
            Kind::I => OpTime { duration, after, arrival },
            Kind::W => OpTime { duration: lasts, after: (w.duration + w.after).min(held) - lasts, ..w },
            _ => costs.of(op),
        }
    })
}

/// Returns the bound from shared `processors`; `None` if no cores are shared, or if overlapped pairs take less time than their ops.
pub(super) fn shared_cores(graph: &TaskGraph, costs: &CostTable, processors: &[Processor]) -> Option<u64> {
    let schedule = graph.schedule();
    if schedule.has_pairs() && graph.overlap().is_shorter() {
        return None;
    }
    let counts = schedule.counts();
    let work = |op: Op| u128::from(counts[schedule.class(op)]) * u128::from(costs.of(op).duration);
    let evenly = |processor: &Processor| {
        let own = |op: &Op| processor.devices.contains(&schedule.placement.device_of(*op));
        let all: u128 = schedule.op_classes().filter(own).map(work).sum();
        (all / u128::from(processor.cores.max(1))) as u64
    };
    processors.iter().map(evenly).max()
}

fn bounds_with(paths: &Paths, cap: impl Fn(u32) -> Option<i128>) -> Bounds {
    let is_whole = paths.graph.schedule().beyond_microbatches().is_none();
    let mut bounds = Bounds { critical_path: paths.longest(), ..Bounds::default() };
    for device in 0..paths.graph.schedule().devices() {
        let device_jobs = Jobs::new(paths, device);
        bounds.work = bounds.work.max(device_jobs.work());
        bounds.head_work_tail = bounds.head_work_tail.max(device_jobs.head_work_tail());
        if let Some(cap) = cap(device).filter(|_| is_whole) {
            let memory = Limited::new(paths, &device_jobs, device, cap).map(|limited| limited.bound());
            bounds.memory = bounds.memory.max(memory);
        }
    }
    bounds
}

/// Identical ops of one device.
#[derive(Clone, Copy)]
struct EqualOps {
    op: Op,
    count: i128,
    /// Duration and host overhead.
    occupancy: i128,
    after: i128,
    head: i128,
    tail: i128,
}

/// All ops of one device.
struct Jobs {
    list: Vec<EqualOps>,
    /// Overlapped pairs that take less time than their ops: by the slots of both, the number of pairs and the time that each saves.
    saved: BTreeMap<(usize, usize), (i128, i128)>,
}

impl Jobs {
    fn new(paths: &Paths, device: u32) -> Jobs {
        let schedule = paths.graph.schedule();
        let chunks = schedule.placement.held_by(device);
        let job = |(unit, kind): (ChunkUnit, Kind)| {
            let (occupancy, duration) = (paths.occupancy(kind, unit), paths.duration(kind, unit));
            EqualOps {
                op: unit.op(kind),
                count: i128::from(paths.count(kind, unit)),
                occupancy: i128::from(occupancy),
                after: i128::from(occupancy - duration),
                head: i128::from(paths.head(kind, unit)),
                tail: i128::from(paths.tail(kind, unit)),
            }
        };
        let units = chunks.iter().flat_map(|&chunk| paths.units(chunk));
        let kinds = || Kind::ALL.into_iter().filter(|kind| kind.is_compute());
        let all = units.flat_map(|unit| kinds().map(move |kind| (unit, kind)));
        let list = all.map(job).filter(|job| job.count > 0).collect();
        let mut saved = BTreeMap::new();
        let overlap = paths.graph.overlap();
        if overlap.is_shorter() && schedule.has_pairs() {
            for pair in schedule.program(device).windows(2).filter(|pair| pair[0].opens_pair()) {
                let each = || {
                    let [first, second] = [0, 1].map(|op| paths.costs.of(pair[op]).duration);
                    let streams = pairs(paths.graph, &paths.costs.extras).and_then(|pairs| pairs.of(pair[0], pair[1]));
                    let whole = pair_duration(overlap, streams, first, second);
                    i128::from(first) + i128::from(second) - i128::from(whole)
                };
                saved.entry((pair[0].slot(), pair[1].slot())).or_insert_with(|| (0, each())).0 += 1;
            }
        }
        Jobs { list, saved }
    }

    /// Returns the time of the ops that `these` selects without idle time between them.
    fn lasting(&self, these: impl Fn(&EqualOps) -> bool) -> i128 {
        let chosen = || self.list.iter().filter(|job| these(job));
        let has = |slot: usize| chosen().any(|job| job.op.slot() == slot);
        let saved = self.saved.iter().filter(|((a, b), _)| has(*a) && has(*b)).map(|(_, (count, each))| count * each);
        let work: i128 = chosen().map(|job| job.count * job.occupancy).sum();
        work - saved.sum::<i128>()
    }

    fn work(&self) -> u64 {
        let after = self.list.iter().map(|job| job.after).max().unwrap_or(0);
        to_ticks(self.lasting(|_| true) - after)
    }

    /// Returns the preemptive bound of one machine with heads and tails (Carlier 1982): the maximum over all job sets of smallest
    /// head + total work + smallest tail.
    fn head_work_tail(&self) -> u64 {
        to_ticks(if self.saved.is_empty() { self.preemptive() } else { self.largest_set() })
    }

    /// Jackson's preemptive schedule: always the released job with the longest tail. It attains the maximum over all sets.
    fn preemptive(&self) -> i128 {
        let mut by_head: Vec<&EqualOps> = self.list.iter().collect();
        by_head.sort_by_key(|job| job.head);
        let mut ready: BinaryHeap<(i128, i128)> = BinaryHeap::new(); // tail, work left
        let (mut now, mut next, mut bound) = (0, 0, 0);
        while next < by_head.len() || !ready.is_empty() {
            if ready.is_empty() {
                now = now.max(by_head[next].head);
            }
            while let Some(job) = by_head.get(next).filter(|job| job.head <= now) {
                ready.push((job.tail - job.after, job.count * job.occupancy));
                next += 1;
            }
            let Some((tail, work)) = ready.pop() else { continue };
            let until = by_head.get(next).map_or(now + work, |job| (now + work).min(job.head));
            let left = work - (until - now);
            now = until;
            if left > 0 { ready.push((tail, left)) } else { bound = bound.max(now + tail) }
        }
        bound
    }

    /// The same bound if pairs save time. The maximizing set is all jobs with head >= h and tail >= t, for some h and t.
    fn largest_set(&self) -> i128 {
        let mut latest_first: Vec<&EqualOps> = self.list.iter().collect();
        latest_first.sort_by_key(|job| std::cmp::Reverse(job.head));
        let (mut bound, mut chosen) = (0, Vec::new());
        for tail in self.list.iter().map(|job| job.tail - job.after) {
            let mut work = 0;
            chosen.clear();
            for job in latest_first.iter().filter(|job| job.tail - job.after >= tail) {
                work += job.count * job.occupancy;
                chosen.push(job.op.slot());
                let closed = |a: &usize, b: &usize| *b == job.op.slot() && chosen.contains(a);
                let saved = self.saved.iter().filter(|((a, b), _)| closed(a, b) || closed(b, a));
                work -= saved.map(|(_, (count, each))| count * each).sum::<i128>();
                bound = bound.max(job.head + work + tail);
            }
        }
        bound
    }
}

fn to_ticks(time: i128) -> u64 {
    u64::try_from(time.max(0)).unwrap_or(u64::MAX)
}

/// A device with a memory cap.
///
/// Two arguments, both valid for any placement and costs:
/// - *Lifespans.* An activation is held at least from the start of its F along the shortest path to the end of its backward. The sum
///   of all lifespans is at most the cap times the time between the device's first F and its last release.
/// - *Two ends.* Before its first backward the device runs at most as many F's as the cap allows; after its last F only the work of
///   what it then holds is left, while the last micro-batch has a long path to the end of the pipeline. So the device idles at both
///   ends, which do not overlap if there are more F's than the cap allows at once. For a linear placement the first end is Qi et
///   al., arXiv 2401.10241 appendix; for a V with unit costs both ends, where the V turns, give the 6m + 6p - 1 - 3k of Qi
///   et al., arXiv 2405.15362 figure 13.
struct Limited<'a> {
    paths: &'a Paths<'a>,
    jobs: &'a Jobs,
    chunks: Vec<ChunkUnit>,
    keep: Keep,
    /// The cap in chunk activations; a whole number if activations are kept whole.
    cap: f64,
    /// Number of F's that may start before any release.
    most: i128,
}

/// Caps above this have no effect.
const MOST: i128 = 1_000_000_000_000_000;

impl<'a> Limited<'a> {
    /// Returns `None` if the cap is below a single activation, or the device has no ops.
    fn new(paths: &'a Paths, jobs: &'a Jobs, device: u32, cap: i128) -> Option<Limited<'a>> {
        let schedule = paths.graph.schedule();
        let keep = paths.costs.keep;
        let most = cap.clamp(0, MOST * WHOLE) / WHOLE;
        let cap = if keep.is_whole() { most as f64 } else { cap.min(MOST * WHOLE) as f64 / WHOLE as f64 };
        let chunks = schedule.placement.held_by(device).iter().map(|&chunk| ChunkUnit::whole(chunk)).collect();
        (most > 0 && !jobs.list.is_empty()).then_some(Limited { paths, jobs, chunks, keep, cap, most })
    }

    fn bound(&self) -> u64 {
        self.lifespans().max(to_ticks(self.two_ends(true))).max(to_ticks(self.two_ends(false)))
    }

    fn lifespans(&self) -> u64 {
        // Overlapped ops share the time for which they hold an activation: count only the time between them.
        let overlapping = !self.jobs.saved.is_empty();
        let mut area = 0.0;
        for &chunk in &self.chunks {
            let place = self.paths.place(chunk);
            let way = self.paths.head_backward[place] - self.paths.head_forward[place];
            let whole = |kind: Kind| match overlapping {
                false => (way + self.paths.duration(kind, chunk)) as f64,
                true => (way - self.paths.duration(Kind::F, chunk)) as f64,
            };
            let left = self.keep.share() * self.paths.duration(Kind::W, chunk) as f64;
            area += self.paths.count(Kind::I, chunk) as f64 * (whole(Kind::I) + left);
            area += self.paths.count(Kind::B, chunk) as f64 * whole(Kind::B);
        }
        let head = self.forwards().map(|job| job.head).min().unwrap_or(0);
        let releases = |job: &&EqualOps| match job.op.kind() {
            Kind::I => !self.keep.is_whole(),
            Kind::W => self.keep.share() > 0.0,
            kind => kind.is_backward(),
        };
        let tail = self.jobs.list.iter().filter(releases).map(|job| job.tail).min().unwrap_or(0);
        // Rounded down slightly, as sums of floating-point numbers are inexact.
        to_ticks(head + tail).saturating_add((area / self.cap * (1.0 - 1e-12)).ceil() as u64)
    }

    fn forwards(&self) -> impl Iterator<Item = &EqualOps> {
        self.jobs.list.iter().filter(|job| job.op.kind() == Kind::F)
    }

    /// Returns the bound from both ends, for all ops, or for all but the W's (without `weights`).
    fn two_ends(&self, weights: bool) -> i128 {
        let counts = |job: &EqualOps| weights || job.op.kind() != Kind::W;
        let jobs = || self.jobs.list.iter().filter(|job| counts(job));
        let head = jobs().map(|job| job.head).min().unwrap_or(0);
        let tail = jobs().map(|job| job.tail - job.after).min().unwrap_or(0);
        let first_backward = jobs().filter(|job| job.op.kind().is_backward()).map(|job| job.head).min();
        let early = most_of(self.forwards().map(|job| (job.occupancy, job.count)), self.most);
        let begin = head.max(first_backward.unwrap_or(0) - early);
        let last_forward = self.forwards().map(|job| job.tail).min().unwrap_or(0);
        let overhead = self.forwards().map(|job| job.after).max().unwrap_or(0);
        let end = self.left(weights).map_or(tail, |left| tail.max(last_forward - left - overhead));
        let work = self.jobs.lasting(counts);
        let apart = self.forwards().map(|job| job.count).sum::<i128>() > self.most;
        if apart { begin + work + end } else { (begin + work + tail).max(head + work + end) }
    }

    /// Returns the maximum work that is left when all F's have run; `None` if unlimited.
    fn left(&self, weights: bool) -> Option<i128> {
        let of = |kind: Kind, chunk: ChunkUnit| match self.paths.count(kind, chunk) {
            0 => 0,
            _ => i128::from(self.paths.occupancy(kind, chunk)),
        };
        let whole = |chunk: ChunkUnit| {
            let split = of(Kind::I, chunk) + if weights { of(Kind::W, chunk) } else { 0 };
            (split.max(of(Kind::B, chunk)), i128::from(self.paths.count(Kind::F, chunk)))
        };
        let whole = most_of(self.chunks.iter().map(|&chunk| whole(chunk)), self.most);
        if !weights || self.keep.is_whole() || self.chunks.iter().all(|&chunk| self.paths.count(Kind::I, chunk) == 0) {
            return Some(whole);
        }
        if self.keep.share() == 0.0 {
            return None;
        }
        // The device may hold whole activations, or more partial ones after their I.
        let rate = |&chunk: &ChunkUnit| {
            let split = of(Kind::I, chunk) + of(Kind::W, chunk);
            (split.max(of(Kind::B, chunk)) as f64).max(of(Kind::W, chunk) as f64 / self.keep.share())
        };
        let rate = self.chunks.iter().map(rate).fold(0.0, f64::max);
        Some((rate * self.cap * (1.0 + 1e-12)).ceil() as i128)
    }
}

/// Returns the largest sum of `number` items out of (size, count).
fn most_of(these: impl Iterator<Item = (i128, i128)>, number: i128) -> i128 {
    let mut these: Vec<(i128, i128)> = these.collect();
    these.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = number;
    let take = |(size, count): (i128, i128)| {
        let taken = count.min(left);
        left -= taken;
        size * taken
    };
    these.into_iter().map(take).sum()
}
