//! Why devices idle: every idle tick of a simulated timeline with one cause, so that the causes add up to the bubble.
//!
//! The definitions, in the order in which a tick is claimed:
//! - **fill**: before the device's first op. **drain**: after its last.
//! - **communication**: the device is held up by its own host overhead or put.
//! - **order**: an op that stands later in the device's program would have fitted here without delaying anything: its inputs
//!   were there, room in memory too. All moves named so can be made at once: an op is claimed by one idle interval only.
//! - **memory**: the same for an F, but one more activation would have exceeded the cap (the given one, else the device's own
//!   peak). Each interval is judged by itself, so an F may be named by several.
//! - What is left waits for an op elsewhere. The chain of binding waits behind that op says what was going on at each tick:
//!   a transfer or host overhead is **communication**; the last part of an op, by which it is longer than the average op
//!   of its kind (over all stages, by the costs), is **imbalance**; any other running op is **dependence**.

use super::memory::{Held, within};
use super::waits::{Chain, Doing, OpTimes, binding, needs};
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};
use serde::Serialize;

/// Why a device idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Before the device's first op.
    Fill,
    /// After the device's last op.
    Drain,
    /// An op elsewhere runs, and what this device waits for needs it.
    Dependence,
    /// What this device waits for is on its way, or the device is held up by its own host overhead.
    Communication,
    /// An op elsewhere runs longer than the average one of its kind.
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
    /// The op to blame: the one that runs elsewhere, the maker of what is in transit, the one that could have run here; in
    /// the fill the one that the device's first op waits for.
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

/// Explains the idle time of `times`, which are those of a sweep of `graph` under `costs`; `cap` is the most activation units
/// that a device may hold.
pub fn explain(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, cap: Option<f64>) -> Explanation {
    let makespan = times.makespan();
    let averages = Averages::new(graph, costs);
    let mut idle: Vec<Idle> = Vec::new();
    for device in 0..graph.schedule().devices() {
        Device::new(graph, costs, times, device, cap).explain(&averages, makespan, &mut idle);
    }
    let mut devices = vec![Causes::default(); graph.schedule().devices() as usize];
    for Idle { device, start, end, cause, .. } in &idle {
        devices[*device as usize][*cause as usize] += end - start;
    }
    Explanation { makespan, idle, devices }
}

/// What ops of each kind take on average by the costs: (sum, number) by kind.
struct Averages([(u128, u128); 4]);

impl Averages {
    fn new(graph: &TaskGraph, costs: &CostTable) -> Averages {
        let (counts, mut sums) = (graph.schedule().counts(), [(0, 0); 4]);
        for op in graph.schedule().placement.op_kinds() {
            let (sum, number) = &mut sums[op.kind() as usize];
            *sum += u128::from(counts[op.slot()]) * u128::from(costs.of(op).duration);
            *number += u128::from(counts[op.slot()]);
        }
        Averages(sums)
    }

    /// By how much an op that ran for `duration` is longer than the average of its kind; in proportion where it ran slower or
    /// faster than the costs say.
    fn excess(&self, costs: &CostTable, op: Op, duration: u64) -> u64 {
        let (sum, number) = self.0[op.kind() as usize];
        let nominal = u128::from(costs.of(op).duration) * number;
        let over = nominal.saturating_sub(sum);
        u128::from(duration).saturating_mul(over).checked_div(nominal).unwrap_or(0) as u64
    }
}

/// A device on the way through its program, looking for ops that could have run earlier.
struct Device<'a> {
    graph: &'a TaskGraph,
    costs: &'a CostTable,
    times: &'a OpTimes,
    device: u32,
    cap: f64,
    /// Index of its first op.
    first: usize,
    /// By position in its program: what it holds from then on.
    held: Vec<Held>,
    /// By position: the op of the same stage and micro-batch that comes before it here (F of a backward, I of a W).
    own: Vec<Option<usize>>,
    /// By chunk and kind, the positions of its ops; those of overlapped pairs left out.
    queues: Vec<Vec<usize>>,
    /// By chunk and kind, how many of the queue are in the past.
    past: Vec<usize>,
    /// By position: claimed as movable by an earlier interval.
    moved: Vec<bool>,
}

/// An op that could run in an idle interval.
struct Candidate {
    start: u64,
    position: usize,
    queue: usize,
}

impl<'a> Device<'a> {
    fn new(graph: &'a TaskGraph, costs: &'a CostTable, times: &'a OpTimes, device: u32, cap: Option<f64>) -> Device<'a> {
        let schedule = graph.schedule();
        let range = schedule.range(device);
        let chunks = schedule.placement.held_by(device);
        let cell = |op: Op, kind: Kind| {
            let of = |c: &crate::placement::Chunk| (c.stage, c.direction) == (op.stage(), op.direction());
            chunks.iter().position(of).unwrap_or(0) * Kind::ALL.len() + kind as usize
        };
        let m = schedule.microbatches as usize;
        let mut seen = vec![None; chunks.len() * Kind::ALL.len() * m];
        let mut queues = vec![Vec::new(); chunks.len() * Kind::ALL.len()];
        let (mut own, mut held, mut level) = (Vec::new(), Vec::new(), Held::default());
        for index in range.clone() {
            let op = graph.op(index);
            let needed = match op.kind() {
                Kind::F => None,
                Kind::I | Kind::B => Some(Kind::F),
                Kind::W => Some(Kind::I),
            };
            let place = |kind: Kind| cell(op, kind) * m + op.microbatch() as usize;
            own.push(needed.and_then(|kind| seen[place(kind)]));
            seen[place(op.kind())] = Some(index);
            if graph.pair(index).is_none() {
                queues[cell(op, op.kind())].push(index - range.start);
            }
            level = level.after(op.kind());
            held.push(level);
        }
        let cap = cap.unwrap_or_else(|| schedule.peak_activations(device, costs.keep));
        let (past, moved) = (vec![0; queues.len()], vec![false; range.len()]);
        Device { graph, costs, times, device, cap, first: range.start, held, own, queues, past, moved }
    }

    fn explain(mut self, averages: &Averages, makespan: u64, idle: &mut Vec<Idle>) {
        let range = self.graph.schedule().range(self.device);
        let mut free = 0;
        for index in range.clone() {
            let start = self.times.start[index];
            if start > free && index == range.start {
                let need = binding(self.graph, self.costs, self.times, index);
                let op = need.and_then(|need| need.maker);
                self.push(idle, free..start, Cause::Fill, Some(index), op);
            } else if start > free {
                self.gap(averages, index, free, idle);
            }
            free = free.max(self.times.end[index]);
        }
        self.push(idle, free..makespan, Cause::Drain, None, None);
    }

    fn push(
        &self,
        idle: &mut Vec<Idle>,
        span: std::ops::Range<u64>,
        cause: Cause,
        next: Option<usize>,
        op: Option<usize>,
    ) {
        if span.is_empty() {
            return;
        }
        let new = Idle { device: self.device, start: span.start, end: span.end, cause, next, op };
        match idle.last_mut() {
            Some(last) if last.end == new.start && (Idle { start: last.start, ..new }) == (Idle { end: new.end, ..*last }) => {
                last.end = new.end;
            }
            _ => idle.push(new),
        }
    }

    /// The idle interval from `free` to the start of op number `next`.
    fn gap(&mut self, averages: &Averages, next: usize, free: u64, idle: &mut Vec<Idle>) {
        let until = self.times.start[next];
        let own = needs(self.graph, self.costs, next).find(|need| need.maker.is_none());
        let resumed = own.map_or(free, |need| need.met(self.times)).clamp(free, until);
        self.push(idle, free..resumed, Cause::Communication, Some(next), own.map(|need| need.end_of));
        if resumed == until {
            return;
        }
        let mut chain = self.chain(averages, next, resumed);
        let mut at = resumed;
        for (start, end, cause, op) in self.claims(next, resumed) {
            self.waits(&mut chain, at..start, next, idle);
            self.push(idle, start..end, cause, Some(next), Some(op));
            at = end;
        }
        self.waits(&mut chain, at..until, next, idle);
    }

    /// What went on elsewhere from `from` until op number `next` starts, latest first.
    fn chain(&self, averages: &Averages, next: usize, from: u64) -> Vec<(u64, u64, Cause, usize)> {
        let mut list = Vec::new();
        let chain = Chain::before(self.graph, self.costs, self.times, next);
        for piece in chain.take_while(|piece| piece.end > from) {
            let start = piece.start.max(from);
            match piece.doing {
                Doing::Running(op) => {
                    let excess = averages.excess(self.costs, self.graph.op(op), self.times.duration(op));
                    let middle = (piece.end - excess).max(start);
                    list.push((middle, piece.end, Cause::Imbalance, op));
                    list.push((start, middle, Cause::Dependence, op));
                }
                Doing::Transfer { maker: op, .. } | Doing::Overhead(op) => {
                    list.push((start, piece.end, Cause::Communication, op));
                }
            }
        }
        list
    }

    /// Takes the pieces of `chain` within `span`.
    fn waits(
        &self,
        chain: &mut Vec<(u64, u64, Cause, usize)>,
        span: std::ops::Range<u64>,
        next: usize,
        idle: &mut Vec<Idle>,
    ) {
        while let Some(&(start, end, cause, op)) = chain.last().filter(|piece| piece.0 < span.end) {
            self.push(idle, start.max(span.start)..end.min(span.end), cause, Some(next), Some(op));
            if end > span.end {
                return;
            }
            chain.pop();
        }
    }

    /// What could have run from `from` until op number `next` starts, by time.
    fn claims(&mut self, next: usize, from: u64) -> Vec<(u64, u64, Cause, usize)> {
        let (position, until) = (next - self.first, self.times.start[next]);
        for (queue, past) in self.queues.iter().zip(&mut self.past) {
            *past += queue[*past..].iter().take_while(|&&at| at <= position || self.moved[at]).count();
        }
        let (mut heads, mut at, mut claims) = (self.past.clone(), from, Vec::new());
        while let Some(Candidate { start, position: found, queue }) = self.candidate(&heads, at, until) {
            let index = self.first + found;
            let time = self.costs.of(self.graph.op(index));
            heads[queue] += 1;
            let cause = if self.has_room(position, found) { Cause::Order } else { Cause::Memory };
            if cause == Cause::Order {
                self.moved[found] = true;
                self.moves(position, found);
            }
            claims.push((start, start + time.duration, cause, index));
            at = start + time.duration + time.after;
        }
        claims
    }

    /// The first op of a queue that could start from `at` on and leave the device free at `until`.
    fn candidate(&self, heads: &[usize], at: u64, until: u64) -> Option<Candidate> {
        let fits = |(queue, &head): (usize, &usize)| {
            let position = *self.queues[queue][head..].iter().find(|&&position| !self.moved[position])?;
            let (index, time) = (self.first + position, self.costs.of(self.graph.op(self.first + position)));
            let made = needs(self.graph, self.costs, index).filter(|need| need.maker.is_some());
            let ready = made.map(|need| need.met(self.times)).chain(self.own[position].map(|own| self.times.end[own]));
            let start = ready.fold(at, u64::max);
            (start + time.duration + time.after <= until).then_some(Candidate { start, position, queue })
        };
        let candidates = heads.iter().enumerate().filter_map(fits);
        candidates.min_by_key(|candidate| (candidate.start, candidate.position))
    }

    /// Whether the op at `found` may run just before the op at `position` and keep the cap.
    fn has_room(&self, position: usize, found: usize) -> bool {
        if self.graph.op(self.first + found).kind() != Kind::F {
            return true;
        }
        let chunks = self.graph.schedule().placement.chunks();
        let before = position.checked_sub(1).map_or(Held::default(), |before| self.held[before]);
        let with = |held: &Held| Held { whole: held.whole + 1, ..*held }.units(self.costs.keep, chunks);
        [before].iter().chain(&self.held[position..found]).all(|held| within(with(held), self.cap))
    }

    /// Takes note that the op at `found` runs just before the op at `position`.
    fn moves(&mut self, position: usize, found: usize) {
        let change = Held::default().after(self.graph.op(self.first + found).kind());
        for held in &mut self.held[position..found] {
            *held = Held { whole: held.whole + change.whole, kept: held.kept + change.kept };
        }
    }
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
    /// The op to blame, see [`Idle::op`].
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
        let time = |causes: &Causes| IdleTime {
            idle: unit(causes.iter().sum()),
            fill: unit(causes[Cause::Fill as usize]),
            drain: unit(causes[Cause::Drain as usize]),
            dependence: unit(causes[Cause::Dependence as usize]),
            communication: unit(causes[Cause::Communication as usize]),
            imbalance: unit(causes[Cause::Imbalance as usize]),
            memory: unit(causes[Cause::Memory as usize]),
            order: unit(causes[Cause::Order as usize]),
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
