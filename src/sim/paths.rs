//! Shortest paths through the pipeline: the least time before and after an op in any order.

use pipesim_cost::CostTable;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Chunk;

/// A chunk's share of one micro-batch: all of it, or a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkUnit {
    pub chunk: Chunk,
    /// `None` if micro-batches are whole.
    slice: Option<u32>,
}

impl ChunkUnit {
    pub fn whole(chunk: Chunk) -> ChunkUnit {
        ChunkUnit { chunk, slice: None }
    }

    /// Returns the op of a kind, of micro-batch 0.
    pub fn op(self, kind: Kind) -> Op {
        let op = Op::new(kind, self.chunk.stage, 0).in_direction(self.chunk.direction);
        self.slice.map_or(op, |slice| op.on_slice(slice))
    }

    fn of(op: Op) -> ChunkUnit {
        ChunkUnit { chunk: Chunk { stage: op.stage(), direction: op.direction() }, slice: op.slice() }
    }
}

/// Shortest paths through the pipeline, by (direction, stage, slice).
pub(super) struct Paths<'a> {
    pub graph: &'a TaskGraph,
    pub costs: &'a CostTable,
    /// Number of ops by [`class`](pipesim_schedule::schedule::Schedule::class).
    pub counts: Vec<u64>,
    /// Earliest start of a forward.
    pub head_forward: Vec<u64>,
    /// Earliest start of a backward.
    pub head_backward: Vec<u64>,
    /// From the end of a forward to the end of everything that depends on it.
    tail_forward: Vec<u64>,
    /// The same for I and B.
    tail_backward: Vec<[u64; 2]>,
}

/// The kinds that compute a gradient for the previous stage, in the order of [`Paths::tail_backward`].
const BACKWARDS: [Kind; 2] = [Kind::I, Kind::B];

impl<'a> Paths<'a> {
    pub fn new(graph: &'a TaskGraph, costs: &'a CostTable) -> Paths<'a> {
        Paths::with_counts(graph, costs, graph.schedule().counts())
    }

    /// Computes paths for `counts` ops of each class instead of the counts of `graph`.
    pub fn with_counts(graph: &'a TaskGraph, costs: &'a CostTable, counts: Vec<u64>) -> Paths<'a> {
        let placement = &graph.schedule().placement;
        let places = (placement.stages() * placement.directions() * graph.slices()) as usize;
        let zero = || vec![0; places];
        let mut paths = Paths {
            graph,
            costs,
            counts,
            head_forward: zero(),
            head_backward: zero(),
            tail_forward: zero(),
            tail_backward: vec![[0; 2]; places],
        };
        // The first and the last S are halves of one.
        if graph.schedule().shares_vocabulary() {
            graph.schedule().op_classes().filter(|op| op.kind() == Kind::S).for_each(|op| {
                let count = &mut paths.counts[graph.schedule().class(op)];
                *count = count.saturating_sub(1);
            });
        }
        (0..placement.directions()).for_each(|direction| paths.follow(direction));
        paths
    }

    /// Returns the units of a chunk, by slice.
    pub fn units(&self, chunk: Chunk) -> impl Iterator<Item = ChunkUnit> + use<> {
        let n = self.graph.slices();
        (0..n).map(move |slice| ChunkUnit { chunk, slice: (n > 1).then_some(slice) })
    }

    pub fn place(&self, unit: ChunkUnit) -> usize {
        let Chunk { stage, direction } = unit.chunk;
        let chunk = direction * self.graph.schedule().placement.stages() + stage;
        (chunk * self.graph.slices() + unit.slice.unwrap_or(0)) as usize
    }

    fn on_stage(unit: ChunkUnit, stage: u32) -> ChunkUnit {
        ChunkUnit { chunk: Chunk { stage, ..unit.chunk }, ..unit }
    }

    /// Returns the same chunk's unit of the slice before, and of the slice after.
    fn neighbors(&self, unit: ChunkUnit) -> [Option<ChunkUnit>; 2] {
        let at = |slice: Option<u32>| slice.map(|slice| ChunkUnit { slice: Some(slice), ..unit });
        let Some(slice) = unit.slice else { return [None; 2] };
        [at(slice.checked_sub(1)), at(Some(slice + 1).filter(|&next| next < self.graph.slices()))]
    }

    pub fn count(&self, kind: Kind, unit: ChunkUnit) -> u64 {
        self.graph.schedule().count_of(&self.counts, unit.op(kind))
    }

    pub fn duration(&self, kind: Kind, unit: ChunkUnit) -> u64 {
        self.costs.of(unit.op(kind)).duration
    }

    /// Returns for how long such an op occupies its device; copies do not.
    pub fn occupancy(&self, kind: Kind, unit: ChunkUnit) -> u64 {
        let time = self.costs.of(unit.op(kind));
        if kind.is_compute() { time.duration + time.after } else { 0 }
    }

    fn transfer(&self, kind: Kind, unit: ChunkUnit) -> u64 {
        let op = unit.op(kind);
        if self.graph.schedule().placement.leaves_device(op) { self.costs.of(op).arrival } else { 0 }
    }

    /// Returns the least of `f` over the backward kinds of `unit`.
    fn least(&self, unit: ChunkUnit, f: impl Fn(usize, Kind) -> u64) -> u64 {
        let kinds = BACKWARDS.into_iter().enumerate().filter(|&(_, kind)| self.count(kind, unit) > 0);
        kinds.map(|(number, kind)| f(number, kind)).min().unwrap_or(0)
    }

    /// Returns how long R takes if every unit is recomputed.
    fn recompute(&self, unit: ChunkUnit) -> u64 {
        let all = self.count(Kind::R, unit) > 0 && self.count(Kind::R, unit) == self.count(Kind::F, unit);
        if all { self.duration(Kind::R, unit) } else { 0 }
    }

    fn follow(&mut self, direction: u32) {
        let stages = self.graph.schedule().placement.stages();
        let units: Vec<ChunkUnit> = (0..stages).flat_map(|stage| self.units(Chunk { stage, direction })).collect();
        let below = |unit: ChunkUnit| unit.chunk.stage.checked_sub(1).map(|stage| Paths::on_stage(unit, stage));
        let above = |unit: ChunkUnit| {
            Some(unit.chunk.stage + 1).filter(|&next| next < stages).map(|stage| Paths::on_stage(unit, stage))
        };
        for &unit in &units {
            let ends = |from: ChunkUnit| self.head_forward[self.place(from)] + self.duration(Kind::F, from);
            let arrives = below(unit).map_or(0, |from| ends(from) + self.transfer(Kind::F, from));
            let [before, _] = self.neighbors(unit);
            let (place, head) = (self.place(unit), arrives.max(before.map_or(0, ends)));
            self.head_forward[place] = head;
        }
        for &unit in units.iter().rev() {
            let ends = |from: ChunkUnit, transfers: bool| {
                let lasts = |kind| self.duration(kind, from) + if transfers { self.transfer(kind, from) } else { 0 };
                self.head_backward[self.place(from)] + self.least(from, |_, kind| lasts(kind))
            };
            let own = self.head_forward[self.place(unit)] + self.duration(Kind::F, unit) + self.recompute(unit);
            let [_, after] = self.neighbors(unit);
            let others = [above(unit).map(|from| ends(from, true)), after.map(|from| ends(from, false))];
            let (place, head) = (self.place(unit), others.into_iter().flatten().fold(own, u64::max));
            self.head_backward[place] = head;
        }
        units.iter().for_each(|&unit| self.follow_back(unit));
        for &unit in units.iter().rev() {
            let starts = |next: ChunkUnit| self.duration(Kind::F, next) + self.tail_forward[self.place(next)];
            let onward = above(unit).map(|next| self.transfer(Kind::F, unit) + starts(next));
            let own = self.recompute(unit) + self.tail(Kind::R, unit);
            let [_, after] = self.neighbors(unit);
            let tail = [onward, after.map(starts)].into_iter().flatten().fold(own, u64::max);
            let place = self.place(unit);
            self.tail_forward[place] = tail;
        }
    }

    /// Computes what follows the backwards of a unit, from what follows the backwards of the stage below and of the slice before.
    fn follow_back(&mut self, unit: ChunkUnit) {
        let below = unit.chunk.stage.checked_sub(1).map(|stage| Paths::on_stage(unit, stage));
        let [before, _] = self.neighbors(unit);
        let starts = |next: ChunkUnit| {
            let tails = self.tail_backward[self.place(next)];
            self.least(next, |number, kind| self.duration(kind, next) + tails[number])
        };
        let before = before.map_or(0, starts);
        let onward = |kind| below.map_or(0, |below| self.transfer(kind, unit) + starts(below)).max(before);
        let tails = [onward(Kind::I).max(self.duration(Kind::W, unit)), onward(Kind::B)];
        let place = self.place(unit);
        self.tail_backward[place] = tails;
    }

    /// Returns the least time before such an op starts.
    pub fn head(&self, kind: Kind, unit: ChunkUnit) -> u64 {
        let place = self.place(unit);
        match kind {
            Kind::F => self.head_forward[place],
            kind if kind.is_vocabulary() => 0,
            Kind::I | Kind::B => self.head_backward[place],
            Kind::W => self.head_backward[place] + self.duration(Kind::I, unit),
            _ => self.head_forward[place] + self.duration(Kind::F, unit),
        }
    }

    /// Returns the least time after such an op ends.
    pub fn tail(&self, kind: Kind, unit: ChunkUnit) -> u64 {
        let place = self.place(unit);
        let tails = self.tail_backward[place];
        match kind {
            Kind::F => self.tail_forward[place],
            Kind::I => tails[0],
            Kind::B => tails[1],
            Kind::R => self.least(unit, |number, kind| self.duration(kind, unit) + tails[number]),
            _ => 0,
        }
    }

    /// Returns the longest path through any op.
    pub fn longest(&self) -> u64 {
        let schedule = self.graph.schedule();
        let through = |op: Op| {
            let unit = ChunkUnit::of(op);
            self.head(op.kind(), unit) + self.duration(op.kind(), unit) + self.tail(op.kind(), unit)
        };
        let used = schedule.op_classes().filter(|&op| self.counts[schedule.class(op)] > 0);
        used.map(through).max().unwrap_or(0)
    }
}
