//! Costs of ops from any source, as one table of ticks by stage and kind.

pub mod analytic;
mod contention;
mod decimal;
mod depth;
mod error;
mod given;
mod layer_cost;
mod measured;
mod measured_slices;
pub mod pair;
mod per_stage;
mod share;
mod slice_costs;
mod sliced;
mod speed;
mod stage_list;
mod staged;
mod staged_table;
mod stages;
mod unit;

pub use contention::Contention;
pub use decimal::Decimal;
pub use depth::{Recut, even, recut};
pub use error::CostError;
pub use given::{GivenCosts, Slow, assumed_in_words};
pub use layer_cost::{EndCost, LayerCost};
pub use measured::{CostFile, GroupRates, LinkCost, PartCost, SCHEMA_VERSION as MEASURED_SCHEMA_VERSION, StepRates};

pub use measured_slices::slice_bounds;
pub use share::{Per, gcd};
pub use slice_costs::SliceCosts;
pub use speed::{EXTREME, Slowdown, TYPICAL};
pub use staged::{StageCost, StageKindCost};
pub use stages::StageTimes;
pub use unit::TimeUnit;

use self::pair::{PairCosts, SubOps};
use crate::activation::Keep;
use crate::epilogue::{StepEpilogue, StepNode};
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};
use crate::placement::Placement;

/// Cost of an op, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTime {
    /// Time for which the op computes.
    pub duration: u64,
    /// Time from its end until its device may start the next op (host overhead, blocking put).
    pub after: u64,
    /// Time from its end until another device may use its output.
    pub arrival: u64,
}

/// Costs of the end of a step.
#[derive(Clone, Debug, Default)]
pub struct StepCosts {
    /// Step ops; none if a step ends with its last backward.
    pub epilogue: StepEpilogue,
    /// By node, in ticks: its duration, and the time from its end until another device may use its result.
    pub lasts: Vec<(u64, u64)>,
    /// Whether an iteration consists of the pipeline and these step ops alone.
    pub is_whole: bool,
}

/// Start and end of a node of an epilogue, by its number.
pub type NodeTime = (usize, u64, u64);

impl StepCosts {
    /// Returns the costs of an epilogue from a function of its nodes.
    pub fn new(epilogue: StepEpilogue, lasts: impl Fn(&StepNode) -> (u64, u64)) -> StepCosts {
        let lasts = epilogue.nodes().iter().map(lasts).collect();
        StepCosts { epilogue, lasts, is_whole: true }
    }

    /// Starts sums as early as `graph` allows, and adds to `costs` how long they delay their devices between ops.
    pub fn begun_early(self, graph: &TaskGraph, costs: CostTable) -> (CostTable, StepCosts) {
        let (epilogue, order) = self.epilogue.begun_early(graph);
        let lasts = order.iter().map(|&number| self.lasts[number]).collect();
        let steps = StepCosts { epilogue, lasts, ..self };
        let last = steps.epilogue.nodes().iter().filter_map(|node| node.behind).max();
        let pauses = last.map_or(0..0, |last| 0..last + 1).map(|op| steps.behind(op, 0).1).collect();
        (CostTable { pauses, ..costs }, steps)
    }

    /// Returns the times of the nodes after op `index` of the graph on a device that is free at `free`, and when it is free again.
    /// Replicas are assumed to send their parts at the same times; parts put before earlier ops have arrived.
    pub fn behind(&self, index: usize, mut free: u64) -> (Vec<NodeTime>, u64) {
        let mut times: Vec<NodeTime> = Vec::new();
        for number in self.epilogue.behind(index) {
            let needs = &self.epilogue.nodes()[number].needs;
            let arrived = times.iter().filter(|(other, ..)| needs.contains(other));
            let arrived = arrived.map(|&(other, _, end)| end + self.lasts[other].1).max().unwrap_or(0);
            let start = free.max(arrived);
            free = start + self.lasts[number].0;
            times.push((number, start, free));
        }
        (times, free)
    }
}

/// Durations of every (stage, direction, kind) of one placement, in ticks.
#[derive(Clone, Debug)]
pub struct CostTable {
    pub ticks_per_unit: f64,
    /// Time unit: `unit`, `ns`, `us`, `ms` or `s`.
    pub time_unit: &'static str,
    /// Nanoseconds per time unit in timelines.
    pub unit_ns: u64,
    /// Fraction of an activation that is kept from I to W.
    pub keep: Keep,
    /// Costs per device and its whole share of layers, in time units; repeated by `predict --format json`.
    pub summary: Summary,
    /// Speed of the machine over time in measured steps, with ticks in nanoseconds; empty for given costs.
    pub speeds: Vec<Slowdown>,
    /// Contention between devices that compute at the same time, if measured.
    pub contention: Option<Contention>,
    /// Contention between puts, if measured.
    pub puts: Option<SharedPuts>,
    /// Assumptions about costs that were not given, such as `I = W = B/2`.
    pub assumed: Vec<&'static str>,
    /// By op of one graph: ticks that its device sums gradients before the next op; missing entries are 0.
    pub pauses: Vec<u64>,
    /// Durations of overlapped pairs from sub-ops, if known.
    pub pairs: Option<PairCosts>,
    /// Durations of collectives between ops, if any takes time.
    pub collectives: Option<CollectiveCosts>,
    /// How whole micro-batches' costs are shared by slices.
    pub slice_costs: SliceCosts,
    /// Costs of a vocabulary that all devices share.
    pub vocabulary: VocabularyCosts,
    /// By stage: copies of a unit's activation to the host and from it, in ticks; for slices one such list after the other.
    copies: Vec<[u64; 2]>,
    /// By stage: computing a unit's forward again, in ticks; for slices one such list after the other. Empty: as long as `slice_costs` say.
    repeats: Vec<u64>,
    /// Of F, I, W and B, indexed by [`Op::slot`]; for slices one such table after the other.
    times: Vec<OpTime>,
    /// Length of the table of one slice; 0 if all slices are alike.
    stride: usize,
}

/// Durations of the collectives of each stage, in ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectiveCosts {
    /// Gathering its parameters.
    pub gathers: Vec<u64>,
    /// Reducing and scattering its gradients.
    pub reductions: Vec<u64>,
}

impl CollectiveCosts {
    fn map(&self, ticks: impl Fn(u64) -> u64) -> CollectiveCosts {
        let [gathers, reductions] =
            [&self.gathers, &self.reductions].map(|all| all.iter().map(|&one| ticks(one)).collect());
        CollectiveCosts { gathers, reductions }
    }
}

/// Costs of a vocabulary that all devices share, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VocabularyCosts {
    /// The forward part of an S: what the first S takes.
    pub forward: u64,
    /// The rest: what the last S takes. Others take both.
    pub rest: u64,
    /// An IF, and an IB.
    pub embed: [u64; 2],
    /// From the end of an op until its result has gone to all devices.
    pub barrier: u64,
}

impl VocabularyCosts {
    /// Returns the duration of `op` of `microbatches`, from the one of its kind.
    #[inline]
    pub fn duration(&self, op: Op, microbatches: u32, of_kind: u64) -> u64 {
        match op.kind() {
            Kind::S if op.microbatch() == 0 => self.forward,
            Kind::S if op.microbatch() == microbatches => self.rest,
            _ => of_kind,
        }
    }

    /// Returns it in ticks of another length.
    fn scaled(self, ticks: impl Fn(u64) -> u64) -> VocabularyCosts {
        let [forward, rest, barrier] = [self.forward, self.rest, self.barrier].map(&ticks);
        VocabularyCosts { forward, rest, embed: self.embed.map(ticks), barrier }
    }
}

/// Puts that slow each other down while in progress at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPuts {
    /// Duration of a single put, in ticks: the first part of [`OpTime::arrival`].
    pub duration: u64,
    /// Whether the sender continues to compute; otherwise a put is also the first part of [`OpTime::after`].
    pub beside_compute: bool,
    /// Duration with 1, 2, .. puts in progress, in per mille of a single one; the last entry holds for more.
    pub per_mille: Vec<u32>,
}

/// Costs as users give them: per device; an op of a chunk costs 1/v of them.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[allow(non_snake_case)] // the kinds' letters are the contract's field names
pub struct Summary {
    /// Forward.
    pub F: f64,
    /// Backward for the input.
    pub I: f64,
    /// Backward for the weights.
    pub W: f64,
    /// Full backward.
    pub B: f64,
    /// Latency between devices.
    pub comm: f64,
    /// Fraction of an activation that is kept from I to W.
    pub keep: f64,
}

impl CostTable {
    /// Returns the time of `op`.
    pub fn of(&self, op: Op) -> OpTime {
        if op.plane() > 0 {
            return self.derived(op);
        }
        self.times[op.slot() + op.slice_number() * self.stride]
    }

    /// Returns the time of an op of another kind than F, I, W and B: R takes its share of F and sends nothing.
    #[cold]
    fn derived(&self, op: Op) -> OpTime {
        let lasting = |duration: u64| OpTime { duration, ..OpTime::default() };
        match op.kind() {
            Kind::R if !self.repeats.is_empty() => lasting(self.of_unit(&self.repeats, op)),
            Kind::R => {
                let forward = self.of(op.of_kind(Kind::F));
                OpTime { duration: self.slice_costs.recompute.share_of(forward.duration), arrival: 0, ..forward }
            }
            Kind::O => lasting(self.of_unit(&self.copies, op)[0]),
            Kind::L => lasting(self.of_unit(&self.copies, op)[1]),
            Kind::S => lasting(self.vocabulary.forward + self.vocabulary.rest),
            Kind::IF => lasting(self.vocabulary.embed[0]),
            Kind::IB => lasting(self.vocabulary.embed[1]),
            _ => OpTime::default(),
        }
    }

    /// Returns the entry of a list by stage and slice for the unit of `op`.
    fn of_unit<T: Copy + Default>(&self, ticks: &[T], op: Op) -> T {
        let stages = if self.stride > 0 { self.stride / Op::SLOTS_PER_STAGE } else { 0 };
        ticks.get(op.stage() as usize + stages * op.slice_number()).copied().unwrap_or_default()
    }

    /// Returns how long the device of op number `index` sums gradients before its next op.
    pub fn pause(&self, index: usize) -> u64 {
        self.pauses.get(index).copied().unwrap_or(0)
    }

    /// Returns a table from a function of the ops of micro-batch 0: one per stage, direction and kind of [`Kind::COSTED`].
    pub fn new(
        placement: &Placement,
        units: (f64, &'static str, u64),
        summary: Summary,
        cost: impl Fn(Op) -> OpTime,
    ) -> CostTable {
        let (ticks_per_unit, time_unit, unit_ns) = units;
        let mut times = vec![OpTime::default(); placement.stages() as usize * Op::SLOTS_PER_STAGE];
        placement.op_kinds().for_each(|op| times[op.slot()] = cost(op));
        CostTable {
            ticks_per_unit,
            time_unit,
            unit_ns,
            keep: Keep::new(summary.keep),
            summary,
            speeds: Vec::new(),
            contention: None,
            puts: None,
            assumed: Vec::new(),
            pauses: Vec::new(),
            pairs: None,
            slice_costs: SliceCosts::default(),
            collectives: None,
            vocabulary: VocabularyCosts::default(),
            copies: Vec::new(),
            repeats: Vec::new(),
            times,
            stride: 0,
        }
    }

    /// Returns the costs with these times of copies: by stage, ticks to the host and from it.
    pub fn with_copies(self, copies: Vec<[u64; 2]>) -> CostTable {
        CostTable { copies, ..self }
    }

    /// Returns the costs with forwards that are computed again in `ticks`, by stage.
    pub fn with_repeats(self, repeats: Vec<u64>) -> CostTable {
        CostTable { repeats, ..self }
    }

    /// Returns the costs of slices, of which `tables` has one after the other; what is not of ops is that of `whole`.
    pub(crate) fn joined(whole: CostTable, tables: Vec<CostTable>, stride: usize) -> CostTable {
        let mut joined = CostTable { times: Vec::new(), copies: Vec::new(), repeats: Vec::new(), stride, ..whole };
        for table in tables {
            joined.times.extend(table.times);
            joined.copies.extend(table.copies);
            joined.repeats.extend(table.repeats);
        }
        joined
    }

    /// Returns the costs with the time of each op replaced.
    pub fn with_times(&self, placement: &Placement, time: impl Fn(Op, OpTime) -> OpTime) -> CostTable {
        let mut times = self.times.clone();
        let slices = (times.len() / placement.slots().max(1)) as u32;
        for (number, table) in times.chunks_mut(placement.slots().max(1)).enumerate() {
            let of = |op: Op| if slices > 1 { op.on_slice(number as u32) } else { op };
            placement.op_kinds().for_each(|op| table[op.slot()] = time(of(op), table[op.slot()]));
        }
        CostTable { times, ..self.clone() }
    }

    /// Returns the costs with pairs that take as long as their sub-ops on two streams. Ticks are nanoseconds; `sub_ops` has those of
    /// every stage.
    pub fn with_sub_ops(self, placement: &Placement, sub_ops: &[SubOps]) -> CostTable {
        let pairs = PairCosts::new(placement, sub_ops, |op| self.of(op).duration);
        CostTable { pairs: Some(pairs), ..self }
    }

    /// Returns the costs with ticks divided by `n`.
    pub fn finer(&self, n: u32) -> CostTable {
        let ticks = |ticks: u64| ticks.saturating_mul(u64::from(n));
        let time =
            |t: &OpTime| OpTime { duration: ticks(t.duration), after: ticks(t.after), arrival: ticks(t.arrival) };
        let ticks_per_unit = self.ticks_per_unit * f64::from(n);
        let speeds = self.speeds.iter().map(|speed| speed.finer(n)).collect();
        let puts = self.puts.clone().map(|puts| SharedPuts { duration: ticks(puts.duration), ..puts });
        let pauses = self.pauses.iter().map(|&pause| ticks(pause)).collect();
        let pairs = self.pairs.as_ref().map(|pairs| pairs.finer(n));
        let collectives = self.collectives.as_ref().map(|times| times.map(ticks));
        CostTable {
            ticks_per_unit,
            times: self.times.iter().map(time).collect(),
            vocabulary: self.vocabulary.scaled(ticks),
            copies: self.copies.iter().map(|copy| copy.map(ticks)).collect(),
            repeats: self.repeats.iter().map(|&repeat| ticks(repeat)).collect(),
            speeds,
            puts,
            pauses,
            pairs,
            collectives,
            ..self.clone()
        }
    }

    /// Returns the costs with only the measured speeds of these indices.
    ///
    /// # Panics
    /// An index is out of range.
    pub fn at_speeds(&self, numbers: &[usize]) -> CostTable {
        CostTable { speeds: numbers.iter().map(|&number| self.speeds[number].clone()).collect(), ..self.clone() }
    }

    /// Checks that all ops of `microbatches` on `placement`, in sequence and at the lowest speed, do not overflow the clock.
    pub fn check_clock(&self, placement: &Placement, microbatches: u32) -> Result<(), CostError> {
        const SLOWEST: u128 = EXTREME as u128;
        let gathers = self.collectives.iter().flat_map(|times| times.gathers.iter().chain(&times.reductions));
        let others = self.copies.iter().flatten().chain(&self.repeats).chain(gathers).copied().max().unwrap_or(0);
        let longest = self.longest().max(others.into());
        let ops = 4 * u128::from(placement.stages()) * u128::from(placement.directions()) * u128::from(microbatches);
        if longest * ops * SLOWEST >= 1 << 63 {
            return Err(CostError(
                "the costs times the number of ops overflow the clock; use fewer micro-batches".to_string(),
            ));
        }
        Ok(())
    }

    #[allow(non_snake_case)] // the kinds' letters
    /// Returns the costs in milliseconds, with nanoseconds as ticks; `unit_ms` is the old unit in milliseconds.
    pub fn in_milliseconds(&self, unit_ms: f64) -> CostTable {
        let ns = |ticks: u64| (ticks as f64 / self.ticks_per_unit * unit_ms * 1e6).round() as u64;
        let time = |t: &OpTime| OpTime { duration: ns(t.duration), after: ns(t.after), arrival: ns(t.arrival) };
        let Summary { F, I, W, B, comm, keep } = self.summary;
        let [F, I, W, B, comm] = [F, I, W, B, comm].map(|cost| cost * unit_ms);
        let summary = Summary { F, I, W, B, comm, keep };
        let times = self.times.iter().map(time).collect();
        let (ticks_per_unit, time_unit, unit_ns) = (1e6, "ms", 1_000_000);
        let collectives = self.collectives.as_ref().map(|times| times.map(ns));
        let copies = self.copies.iter().map(|copy| copy.map(ns)).collect();
        let repeats = self.repeats.iter().map(|&ticks| ns(ticks)).collect();
        let vocabulary = self.vocabulary.scaled(ns);
        let costs = CostTable {
            ticks_per_unit,
            time_unit,
            unit_ns,
            summary,
            times,
            vocabulary,
            copies,
            repeats,
            collectives,
            ..self.clone()
        };
        CostTable { speeds: Vec::new(), contention: None, puts: None, pauses: Vec::new(), pairs: None, ..costs }
    }

    /// Converts ticks to nanoseconds of a timeline.
    pub fn to_ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * (self.unit_ns as f64 / self.ticks_per_unit)).round() as u64
    }
}
