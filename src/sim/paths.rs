//! Shortest paths through the pipeline: the least time before and after an op in any order.

use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};
use crate::placement::Chunk;

/// Shortest paths through the pipeline, by (direction, stage).
pub(super) struct Paths<'a> {
    pub graph: &'a TaskGraph,
    pub costs: &'a CostTable,
    /// Number of ops by [`Op::slot`].
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

    /// Computes paths for `counts` ops of each slot instead of those of `graph`.
    pub fn with_counts(graph: &'a TaskGraph, costs: &'a CostTable, counts: Vec<u64>) -> Paths<'a> {
        let placement = &graph.schedule().placement;
        let places = (placement.stages() * placement.directions()) as usize;
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
        (0..placement.directions()).for_each(|direction| paths.follow(direction));
        paths
    }

    pub fn place(&self, chunk: Chunk) -> usize {
        (chunk.direction * self.graph.schedule().placement.stages() + chunk.stage) as usize
    }

    pub fn op(kind: Kind, chunk: Chunk) -> Op {
        Op::new(kind, chunk.stage, 0).in_direction(chunk.direction)
    }

    pub fn count(&self, kind: Kind, chunk: Chunk) -> u64 {
        self.counts[Paths::op(kind, chunk).slot()]
    }

    pub fn duration(&self, kind: Kind, chunk: Chunk) -> u64 {
        self.costs.of(Paths::op(kind, chunk)).duration
    }

    /// Returns for how long such an op occupies its device.
    pub fn occupancy(&self, kind: Kind, chunk: Chunk) -> u64 {
        let time = self.costs.of(Paths::op(kind, chunk));
        time.duration + time.after
    }

    fn transfer(&self, kind: Kind, chunk: Chunk) -> u64 {
        let op = Paths::op(kind, chunk);
        if self.graph.schedule().placement.leaves_device(op) { self.costs.of(op).arrival } else { 0 }
    }

    /// Returns the least of `f` over the backward kinds of `chunk`.
    fn least(&self, chunk: Chunk, f: impl Fn(usize, Kind) -> u64) -> u64 {
        let kinds = BACKWARDS.into_iter().enumerate().filter(|&(_, kind)| self.count(kind, chunk) > 0);
        kinds.map(|(number, kind)| f(number, kind)).min().unwrap_or(0)
    }

    fn follow(&mut self, direction: u32) {
        let stages = self.graph.schedule().placement.stages();
        let chunk = |stage| Chunk { stage, direction };
        for stage in 1..stages {
            let (from, to) = (chunk(stage - 1), self.place(chunk(stage)));
            let head = self.head_forward[self.place(from)];
            self.head_forward[to] = head + self.duration(Kind::F, from) + self.transfer(Kind::F, from);
        }
        let last = chunk(stages - 1);
        let place = self.place(last);
        self.head_backward[place] = self.head_forward[place] + self.duration(Kind::F, last);
        for stage in (1..stages).rev() {
            let (from, to) = (chunk(stage), self.place(chunk(stage - 1)));
            let step = self.least(from, |_, kind| self.duration(kind, from) + self.transfer(kind, from));
            self.head_backward[to] = self.head_backward[self.place(from)] + step;
        }
        for stage in 0..stages {
            let here = chunk(stage);
            let onward = |kind: Kind| {
                let Some(below) = stage.checked_sub(1).map(chunk) else { return 0 };
                let tails = self.tail_backward[self.place(below)];
                self.transfer(kind, here) + self.least(below, |number, kind| self.duration(kind, below) + tails[number])
            };
            let tails = [onward(Kind::I).max(self.duration(Kind::W, here)), onward(Kind::B)];
            let place = self.place(here);
            self.tail_backward[place] = tails;
        }
        for stage in (0..stages).rev() {
            let here = chunk(stage);
            let tail = if stage == stages - 1 {
                let tails = self.tail_backward[self.place(here)];
                self.least(here, |number, kind| self.duration(kind, here) + tails[number])
            } else {
                let next = chunk(stage + 1);
                self.transfer(Kind::F, here) + self.duration(Kind::F, next) + self.tail_forward[self.place(next)]
            };
            let place = self.place(here);
            self.tail_forward[place] = tail;
        }
    }

    /// Returns the least time before such an op starts.
    pub fn head(&self, kind: Kind, chunk: Chunk) -> u64 {
        let place = self.place(chunk);
        match kind {
            Kind::F => self.head_forward[place],
            Kind::I | Kind::B => self.head_backward[place],
            Kind::W => self.head_backward[place] + self.duration(Kind::I, chunk),
            _ => self.head_forward[place] + self.duration(Kind::F, chunk),
        }
    }

    /// Returns the least time after such an op ends.
    pub fn tail(&self, kind: Kind, chunk: Chunk) -> u64 {
        let place = self.place(chunk);
        match kind {
            Kind::F => self.tail_forward[place],
            Kind::I => self.tail_backward[place][0],
            Kind::B => self.tail_backward[place][1],
            _ => 0,
        }
    }

    /// Returns the longest path through any op.
    pub fn longest(&self) -> u64 {
        let placement = &self.graph.schedule().placement;
        let through = |op: Op| {
            let chunk = Chunk { stage: op.stage(), direction: op.direction() };
            self.head(op.kind(), chunk) + self.duration(op.kind(), chunk) + self.tail(op.kind(), chunk)
        };
        placement.op_kinds().filter(|op| self.counts[op.slot()] > 0).map(through).max().unwrap_or(0)
    }
}
