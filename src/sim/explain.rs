//! Why devices idle: every idle tick of a simulated timeline has one cause, so that the causes add up to the bubble.
//!
//! Definitions, in order of precedence:
//! - **fill**: before the device's first op. **drain**: after its last.
//! - **communication**: the device is busy with its own host overhead or put.
//!
//! In any other idle interval the device waits for an op elsewhere. The interval is the difference of two chains of binding waits back
//! to time 0: the chain that ends when the next op starts, and the chain that ends when the device is free.
//! - **imbalance**: by how much more the ops of the first chain exceed the average of their kind (over all stages, by the costs). It
//!   would vanish, on the same chains, with equal stages.
//! - **order**: a later op of the device's program would have fitted without delaying anything: its inputs and memory were
//!   available. All such moves can be made at once, since each op is assigned to one idle interval only.
//! - **communication**: by how much more time the first chain spends in transfers and host overheads. It would vanish with free links.
//! - **memory**: of the rest, what a later F could have filled that was ready and would have fitted, but would have exceeded the cap
//!   (the given one, or the device's own peak). Intervals are independent, so several may name the same F.
//! - **dependence**: everything else.
//!
//! Measured times have two more causes:
//! - **host delay**: the end of an interval in which all that the next op needs is there, and by how much later than that the ops of
//!   the first chain start.
//! - **stragglers**: by how much more the ops of the first chain exceed their costs, which are the averages of their stage and kind.

use super::idle::{Cause, Causes, Explanation, Idle};
use super::waits::{Awaited, OpTimes, TimedGraph, Way, Ways};
use pipesim_cost::CostTable;
use pipesim_schedule::activation::{self, Holding, WHOLE};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use std::ops::Range;

/// Explains the idle time of `times`, the result of a simulation of `graph` under `costs`; `cap` is the maximum number of activation
/// units per device.
pub fn explain(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, cap: Option<f64>) -> Explanation {
    let (makespan, timed) = (times.makespan(), TimedGraph { graph, costs, times });
    let ways = Ways::new(timed);
    let (mut idle, mut of_slices): (Vec<Idle>, f64) = (Vec::new(), 0.0);
    for device in 0..graph.schedule().devices() {
        of_slices += DeviceProgram::new(timed, device, cap).explain(&ways, makespan, &mut idle);
    }
    let mut devices = vec![Causes::default(); graph.schedule().devices() as usize];
    for Idle { device, start, end, cause, .. } in &idle {
        devices[*device as usize][*cause as usize] += end - start;
    }
    Explanation { makespan, idle, devices, imbalance_of_slices: of_slices.round() as u64 }
}

/// Progress of a device through its program, with the ops that could have run earlier.
struct DeviceProgram<'a> {
    timed: TimedGraph<'a>,
    device: u32,
    cap: i128,
    /// By position: by how much it changes what the device holds.
    changes: Vec<i128>,
    first: usize,
    /// By position in its program: what it holds from there on.
    held: Vec<i128>,
    /// By position: the op of the same stage and micro-batch that must run first (F of a backward, I of a W).
    own: Vec<Option<usize>>,
    /// By chunk and kind: the positions of its ops except overlapped pairs.
    queues: Vec<Vec<usize>>,
    /// By chunk and kind: number of ops of the queue that have run.
    past: Vec<usize>,
    /// By position: whether an earlier interval claims the op.
    moved: Vec<bool>,
    /// Ticks of imbalance that slow slices make.
    of_slices: f64,
}

/// An op that could run in an idle interval.
struct Filler {
    start: u64,
    position: usize,
    queue: usize,
    /// Its number in that queue.
    number: usize,
}

impl<'a> DeviceProgram<'a> {
    fn new(timed: TimedGraph<'a>, device: u32, cap: Option<f64>) -> DeviceProgram<'a> {
        let TimedGraph { graph, costs, .. } = timed;
        let schedule = graph.schedule();
        let range = schedule.range(device);
        let chunks = schedule.placement.held_by(device);
        let cell = |op: Op, kind: Kind| {
            let of = |c: &pipesim_schedule::placement::Chunk| (c.stage, c.direction) == (op.stage(), op.direction());
            chunks.iter().position(of).unwrap_or(0) * Kind::ALL.len() + kind as usize
        };
        let m = schedule.units() as usize + 1; // S runs once more
        let mut seen = vec![None; chunks.len() * Kind::ALL.len() * m];
        let mut queues = vec![Vec::new(); chunks.len() * Kind::ALL.len()];
        let (holding, mut level) = (Holding::new(costs.keep, schedule.slices()), 0);
        let (mut own, mut held, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for index in range.clone() {
            let op = graph.op(index);
            let place = |kind: Kind| cell(op, kind) * m + op.unit(graph.slices());
            // A backward of a recomputed unit needs its R; of a slice, the op of another slice.
            let before = op
                .earlier_slice(graph.slices())
                .and_then(|before| seen[cell(op, op.kind()) * m + before.unit(graph.slices())]);
            let recomputed = seen[place(Kind::R)].filter(|_| op.kind().is_backward());
            let need = op.kind().needs().and_then(|kind| seen[place(kind)]);
            own.push([need, recomputed, before].into_iter().flatten().max());
            seen[place(op.kind())] = Some(index);
            if graph.pair(index).is_none() && op.kind().is_compute() {
                queues[cell(op, op.kind())].push(index - range.start);
            }
            let (start, end) = schedule.change(&holding, index);
            level += start + end;
            changes.push(start + end);
            held.push(level);
        }
        let own_peak = || schedule.most_held(device, costs.keep);
        let cap = cap.map_or_else(own_peak, |cap| activation::cap(cap, schedule.whole()));
        let (past, moved) = (vec![0; queues.len()], vec![false; range.len()]);
        let (first, of_slices) = (range.start, 0.0);
        DeviceProgram { timed, device, cap, changes, first, held, own, queues, past, moved, of_slices }
    }

    /// Adds the device's idle intervals to `idle`, and returns the ticks of imbalance that slow slices make.
    fn explain(mut self, ways: &Ways, makespan: u64, idle: &mut Vec<Idle>) -> f64 {
        let range = self.timed.graph.schedule().range(self.device);
        let mut free = 0;
        let computes = |index: &usize| self.timed.graph.op(*index).kind().is_compute();
        for index in range.clone().filter(computes).collect::<Vec<_>>() {
            let start = self.timed.times.start[index];
            if start > free && index == range.start {
                let need = self.timed.binding(index);
                let op = need.and_then(|need| need.maker);
                self.push(idle, free..start, Cause::Fill, Some(index), op);
            } else if start > free {
                self.gap(ways, index, free, idle);
            }
            free = free.max(self.timed.times.end[index]);
        }
        self.push(idle, free..makespan, Cause::Drain, None, None);
        self.of_slices
    }

    fn push(&self, idle: &mut Vec<Idle>, span: Range<u64>, cause: Cause, next: Option<usize>, op: Option<usize>) {
        if span.is_empty() {
            return;
        }
        let new = Idle { device: self.device, start: span.start, end: span.end, cause, next, op };
        match idle.last_mut() {
            Some(last)
                if last.end == new.start && (Idle { start: last.start, ..new }) == (Idle { end: new.end, ..*last }) =>
            {
                last.end = new.end;
            }
            _ => idle.push(new),
        }
    }

    /// The idle interval from `free` to the start of op number `next`.
    fn gap(&mut self, ways: &Ways, next: usize, free: u64, idle: &mut Vec<Idle>) {
        let held = self.timed.times.held(next);
        let until = self.timed.times.start[next].saturating_sub(held.ticks).max(free);
        self.wait(ways, next, free, until, idle);
        self.push(idle, until..self.timed.times.start[next], Cause::Host, Some(next), held.after);
    }

    /// The part of an idle interval in which something that op number `next` needs is not there.
    fn wait(&mut self, ways: &Ways, next: usize, free: u64, until: u64, idle: &mut Vec<Idle>) {
        if free == until {
            return;
        }
        let own = self.timed.needs(next).find(|need| need.maker.is_none());
        let resumed = own.map_or(free, |need| need.met(self.timed.times)).clamp(free, until);
        self.push(idle, free..resumed, Cause::Communication, Some(next), own.map(|need| need.end_of));
        if resumed == until {
            return;
        }
        let within_pair = self.timed.graph.pair(next).is_some_and(|(_, last)| last == next);
        let mut wait = IdleWait::new(self, ways, next, own, until - resumed);
        let claims = if within_pair { Vec::new() } else { self.claims(next, resumed..until, &mut wait) };
        // In order of time, the wait is memory and dependence, then imbalance, then communication.
        let (mut at, mut waited) = (resumed, 0);
        for (start, end, cause, op) in claims {
            wait.push(self, at..start, &mut waited, (Cause::Dependence, wait.maker), idle);
            match cause {
                Cause::Order => self.push(idle, start..end, cause, Some(next), Some(op)),
                _ => wait.push(self, start..end, &mut waited, (cause, Some(op)), idle),
            }
            at = end;
        }
        wait.push(self, at..until, &mut waited, (Cause::Dependence, wait.maker), idle);
        self.of_slices += wait.share_of_slices * wait.limited()[0].0 as f64;
    }

    /// Returns the ops that could have run in `span`, before op number `next`, by time; those that had room shorten `wait`.
    fn claims(&mut self, next: usize, span: Range<u64>, wait: &mut IdleWait) -> Vec<(u64, u64, Cause, usize)> {
        let (position, from, until) = (next - self.first, span.start, span.end);
        for (queue, past) in self.queues.iter().zip(&mut self.past) {
            *past += queue[*past..].iter().take_while(|&&at| at <= position || self.moved[at]).count();
        }
        let (mut heads, mut at, mut claims) = (self.past.clone(), from, Vec::new());
        let mut level = position.checked_sub(1).map_or(0, |before| self.held[before]);
        while let Some(Filler { start, position: found, queue, number }) = self.candidate(&heads, at, until) {
            let index = self.first + found;
            let time = self.timed.costs.of(self.timed.graph.op(index));
            heads[queue] = number + 1;
            let cause = if self.has_room(level, position, found) { Cause::Order } else { Cause::Memory };
            if cause == Cause::Order {
                if !wait.shorten(time.duration) {
                    continue;
                }
                self.moved[found] = true;
                level += self.changes[found];
                self.moves(position, found);
            }
            claims.push((start, start + time.duration, cause, index));
            at = start + time.duration + time.after;
        }
        claims
    }

    /// Returns the first op of a queue that could run between `at` and `until`.
    fn candidate(&self, heads: &[usize], at: u64, until: u64) -> Option<Filler> {
        let fits = |(queue, &head): (usize, &usize)| {
            let number = head + self.queues[queue][head..].iter().position(|&position| !self.moved[position])?;
            let position = self.queues[queue][number];
            let (index, time) =
                (self.first + position, self.timed.costs.of(self.timed.graph.op(self.first + position)));
            let made = self.timed.needs(index).filter(|need| need.maker.is_some());
            let ready = made
                .map(|need| need.met(self.timed.times))
                .chain(self.own[position].map(|own| self.timed.times.end[own]));
            let start = ready.fold(at, u64::max);
            (start + time.duration + time.after <= until).then_some(Filler { start, position, queue, number })
        };
        let candidates = heads.iter().enumerate().filter_map(fits);
        candidates.min_by_key(|candidate| (candidate.start, candidate.position))
    }

    /// Whether the op at `found` could run just before the op at `position`, where the device holds `level`, within the cap.
    fn has_room(&self, level: i128, position: usize, found: usize) -> bool {
        if self.timed.graph.op(self.first + found).kind() != Kind::F {
            return true;
        }
        [level].iter().chain(&self.held[position..found]).all(|held| held + WHOLE <= self.cap)
    }

    /// Records that the op at `found` runs just before the op at `position`.
    fn moves(&mut self, position: usize, found: usize) {
        let change = self.changes[found];
        self.held[position..found].iter_mut().for_each(|held| *held += change);
    }
}

/// The parts of a wait for an op elsewhere.
struct IdleWait {
    next: usize,
    /// The op whose output is awaited.
    maker: Option<usize>,
    ticks: u64,
    /// Imbalance, stragglers, hosts and communication in order of precedence: ticks, limited to what those before leave, and the
    /// responsible op.
    parts: [(Cause, u64, Option<usize>); 4],
    /// The share of imbalance that slow slices make.
    share_of_slices: f64,
}

impl IdleWait {
    /// Creates the wait of `ticks` for op number `next`; `own` is its need for the device itself.
    fn new(device: &DeviceProgram, ways: &Ways, next: usize, own: Option<Awaited>, ticks: u64) -> IdleWait {
        let free = own.map_or(Way::default(), |need| ways.end(device.timed, need.end_of).and(need.lag));
        let way = ways.starts[next];
        let maker = device.timed.binding(next).and_then(|need| need.maker);
        let underway = (way.underway - free.underway).max(0) as u64;
        let parts = [
            (Cause::Imbalance, way.excess_over(free), way.slow),
            (Cause::Straggler, way.overrun_over(free), way.straggler),
            (Cause::Host, way.held_over(free), way.late),
            (Cause::Communication, underway, maker),
        ];
        IdleWait { next, maker, ticks, parts, share_of_slices: way.share_of_slices_over(free) }
    }

    /// Returns the parts other than the first, dependence, from the end of the wait back: (ticks, cause, op).
    fn limited(&self) -> [(u64, Cause, Option<usize>); 4] {
        let mut left = self.ticks;
        self.parts.map(|(cause, ticks, op)| {
            let ticks = ticks.min(left);
            left -= ticks;
            (ticks, cause, op)
        })
    }

    /// Shortens the wait by `ticks` if imbalance leaves as many; returns whether it did.
    fn shorten(&mut self, ticks: u64) -> bool {
        let enough = self.ticks - self.limited()[0].0 >= ticks;
        self.ticks -= if enough { ticks } else { 0 };
        enough
    }

    /// Adds a piece of the wait, after `waited` ticks of it; `early` is the cause of its first part.
    fn push(
        &self,
        device: &DeviceProgram,
        span: Range<u64>,
        waited: &mut u64,
        early: (Cause, Option<usize>),
        idle: &mut Vec<Idle>,
    ) {
        let limited = self.limited();
        let mut until = self.ticks - limited.iter().map(|(ticks, ..)| ticks).sum::<u64>();
        let mut parts = vec![(until, early)];
        for (ticks, cause, op) in limited {
            until += ticks;
            parts.push((until, (cause, op)));
        }
        // What rounding leaves is communication.
        parts.last_mut().into_iter().for_each(|last| last.0 = u64::MAX);
        let mut at = span.start;
        for (until, (cause, op)) in parts {
            let length = until.saturating_sub(*waited).min(span.end - at);
            device.push(idle, at..at + length, cause, Some(self.next), op);
            (at, *waited) = (at + length, *waited + length);
        }
    }
}
