//! The search problem: costs, caps and dependences of one placement as flat tables by [`Op::slot`], for fast trials; and the effort
//! of a search.

use crate::event::Each;
use pipesim_cost::CostTable;
use pipesim_schedule::activation::{self, UNLIMITED, WHOLE};
use pipesim_schedule::graph::{Cells, SOURCE};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;

/// Search effort. The order found depends on `times` alone.
#[derive(Clone, Copy)]
pub struct Effort<'a> {
    /// Multiplier of the default work.
    pub times: u32,
    /// Runs pieces of work, in parallel if it can.
    pub each: Each<'a>,
}

impl Default for Effort<'_> {
    fn default() -> Self {
        Effort { times: 1, each: &|count, work| (0..count).for_each(work) }
    }
}

/// How the ops of one (stage, direction, kind) run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpRule {
    /// Compute time.
    pub duration: u64,
    /// Time for which it occupies its device: compute time and host overhead.
    pub hold: u64,
    /// From its end until the op that waits for it may start.
    pub lag: u64,
    /// First cell of the row of its inputs.
    pub input: u32,
    /// First cell of the row of its outputs.
    pub output: u32,
    /// The device that waits for its output.
    pub consumer: u32,
    /// Number of its counter; B shares I's counter.
    pub counter: u32,
}

/// Costs, caps and dependences of one placement and number of micro-batches.
#[derive(Clone, Debug)]
pub(super) struct OrderingProblem {
    pub placement: Placement,
    pub microbatches: u32,
    /// By slot.
    pub rules: Vec<OpRule>,
    /// By device.
    pub caps: Vec<i128>,
    pub cells: usize,
    /// What a W releases.
    pub kept: i128,
    /// By kind: what an op adds to what its device holds.
    changes: [i128; Kind::ALL.len()],
}

/// Returns the number of a kind's counter among its stage's counters; B shares I's counter. Other kinds than F, I, W and B are not searched for.
fn counter_of(kind: Kind) -> u32 {
    match kind {
        Kind::I | Kind::B => 1,
        Kind::W => 2,
        _ => 0,
    }
}

/// Bits of the kind in a slot.
const KIND: u32 = Op::SLOTS_PER_STAGE as u32 / 2 - 1;

/// Returns the kind of a slot.
pub(super) fn kind_of(slot: u32) -> Kind {
    Kind::ALL[((slot & KIND) as usize).min(Kind::ALL.len() - 1)]
}

/// Returns the slot of another kind of the same stage.
pub(super) fn slot_of(slot: u32, kind: Kind) -> u32 {
    slot & !KIND | kind as u32
}

impl OrderingProblem {
    /// Creates the problem of `placement` under `costs`; `caps` in activation units by device.
    pub fn new(placement: &Placement, microbatches: u32, costs: &CostTable, caps: &[Option<f64>]) -> OrderingProblem {
        let stages = placement.stages();
        let lane = |stage: u32, direction: u32| (stage + direction * stages) as usize;
        let cells = Cells::new((stages * placement.directions()) as usize, microbatches as usize);
        let changes = costs.keep.changes();
        let mut rules = vec![OpRule::default(); placement.slots()];
        for op in placement.op_kinds() {
            let (stage, direction, time) = (op.stage(), op.direction(), costs.of(op));
            let row = |stage: u32| cells.row(op.kind(), lane(stage, direction)) as u32;
            rules[op.slot()] = OpRule {
                duration: time.duration,
                hold: time.duration + time.after,
                lag: if placement.leaves_device(op) { time.arrival } else { 0 },
                input: op.upstream(stages).map_or(SOURCE as u32, row),
                output: row(stage),
                consumer: placement.receiver(op).unwrap_or(placement.device_of(op)),
                counter: 3 * lane(stage, direction) as u32 + counter_of(op.kind()),
            };
        }
        OrderingProblem {
            placement: placement.clone(),
            microbatches,
            rules,
            caps: caps
                .iter()
                .map(|cap| cap.map_or(UNLIMITED, |cap| activation::cap(cap, placement.chunks())))
                .collect(),
            cells: cells.count(),
            kept: -changes[Kind::W as usize],
            changes,
        }
    }

    /// Returns the problem with another number of micro-batches.
    pub fn with_microbatches(&self, microbatches: u32, costs: &CostTable) -> OrderingProblem {
        let caps = vec![None; self.caps.len()];
        OrderingProblem { caps: self.caps.clone(), ..OrderingProblem::new(&self.placement, microbatches, costs, &caps) }
    }

    /// Returns the problem with ops that take `unit` (B: two), and transfers that take no time.
    pub fn even(&self, unit: u64) -> OrderingProblem {
        let mut even = self.clone();
        for op in self.placement.op_kinds() {
            let rule = &mut even.rules[op.slot()];
            rule.duration = unit * u64::from(op.kind().width());
            (rule.hold, rule.lag) = (rule.duration, 0);
        }
        even
    }

    /// Returns what the op of a slot adds to what its device holds.
    pub fn change(&self, slot: u32) -> i128 {
        self.changes[kind_of(slot) as usize]
    }

    /// Whether `device` may hold `whole` activations and what `pending` W's keep.
    #[inline]
    pub fn admits(&self, device: usize, whole: i64, pending: usize) -> bool {
        i128::from(whole) * WHOLE + pending as i128 * self.kept <= self.caps[device]
    }

    pub fn devices(&self) -> usize {
        self.placement.devices() as usize
    }

    pub fn share(&self, direction: u32) -> u32 {
        self.placement.microbatches_of(direction, self.microbatches).len() as u32
    }

    /// Returns the number of ops, with or without W's.
    pub fn ops(&self, weights: bool) -> u64 {
        u64::from(self.microbatches) * u64::from(self.placement.stages()) * if weights { 3 } else { 2 }
    }

    /// Returns the compute time of `device`, with I and W or B for each F.
    pub fn work(&self, device: usize, split: bool) -> u64 {
        let kinds = Kind::of_microbatch(split);
        let chunks = self.placement.held_by(device as u32).iter();
        let of = |kind, stage, direction| self.rules[Op::new(kind, stage, 0).in_direction(direction).slot()].duration;
        chunks
            .map(|chunk| {
                let one: u64 = kinds.iter().map(|&kind| of(kind, chunk.stage, chunk.direction)).sum();
                one * u64::from(self.share(chunk.direction))
            })
            .sum()
    }

    /// Returns a lower bound of the makespan: each device's work, which cannot begin before its first input arrives.
    pub fn makespan_bound(&self, split: bool) -> u64 {
        (0..self.devices()).map(|device| self.head(device) + self.work(device, split)).max().unwrap_or(0)
    }

    /// Returns a lower bound of the span: the busiest device's work.
    pub fn span_bound(&self, split: bool) -> u64 {
        (0..self.devices()).map(|device| self.work(device, split)).max().unwrap_or(0)
    }

    /// Returns the earliest start of the first op of `device`.
    fn head(&self, device: usize) -> u64 {
        let arrives = |stage: u32, direction: u32| -> u64 {
            let before = (0..stage).map(|s| self.rules[Op::new(Kind::F, s, 0).in_direction(direction).slot()]);
            before.map(|rule| rule.duration + rule.lag).sum()
        };
        let chunks = self.placement.held_by(device as u32).iter();
        chunks.map(|chunk| arrives(chunk.stage, chunk.direction)).min().unwrap_or(0)
    }
}
