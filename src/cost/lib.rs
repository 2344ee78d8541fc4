//! Costs of ops from any source, as one table of ticks by stage and kind.
//!
//! In: numbers that are given ([`GivenCosts`]), a file of measured ones ([`CostFile`]), or a model on hardware under a layout
//! ([`analytic`]). Out: a [`CostTable`], which says how long an op computes and when others may use its output.
//!
//! ```
//! use pipesim_cost::{GivenCosts, Slow};
//! use pipesim_schedule::{op::{Kind, Op}, placement::Placement};
//!
//! let given: GivenCosts = "F=2,B=3,comm=0.5".parse()?;
//! let table = given.table(&Placement::linear(4), 8, &Slow::default())?;
//! let [forward, backward] = [Kind::F, Kind::B].map(|kind| table.of(Op::new(kind, 0, 0)).duration);
//! assert_eq!(3 * forward, 2 * backward);
//! # Ok::<(), pipesim_cost::CostError>(())
//! ```

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
pub mod stage_times;
mod staged;
mod staged_table;
mod unit;
mod written;

pub use contention::Contention;
pub use decimal::Decimal;
pub use depth::{Recut, even, recut};
pub use error::CostError;
pub use given::{GivenCosts, Slow, assumed_in_words, slow_devices, straggler};
pub use layer_cost::{EndCost, LayerCost};
pub use measured::{CostFile, GroupRates, LinkCost, PartCost, SCHEMA_VERSION as MEASURED_SCHEMA_VERSION, StepRates};

pub use measured_slices::slice_bounds;
pub use share::{Per, gcd};
pub use slice_costs::SliceCosts;
pub use speed::{EXTREME, Slowdown, TYPICAL};
pub use staged::{StageCost, StageKindCost};
pub use staged_table::StageTimes;
pub use unit::TimeUnit;

use self::pair::{PairCosts, SubOps};
use pipesim_schedule::activation::Keep;
use pipesim_schedule::epilogue::{StepEpilogue, StepNode};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::placement::Placement;

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
        (CostTable { extras: Extras { pauses, ..costs.extras }, ..costs }, steps)
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

/// What a tick of a table is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TickUnits {
    /// Ticks per time unit.
    pub ticks_per_unit: f64,
    /// Time unit: `unit`, `ns`, `us`, `ms` or `s`.
    pub time_unit: &'static str,
    /// Nanoseconds per time unit in timelines.
    pub unit_ns: u64,
}

impl TickUnits {
    /// Milliseconds in ticks of a nanosecond.
    pub const MILLISECONDS: TickUnits = TickUnits { ticks_per_unit: 1e6, time_unit: "ms", unit_ns: 1_000_000 };
}

/// Durations of every (stage, direction, kind) of one placement, in ticks.
#[derive(Clone, Debug)]
pub struct CostTable {
    /// What a tick is.
    pub units: TickUnits,
    /// Fraction of an activation that is kept from I to W.
    pub keep: Keep,
    /// Costs per device and its whole share of layers, in time units; repeated by `predict --format json`.
    pub summary: Summary,
    /// Assumptions about costs that were not given, such as `I = W = B/2`.
    pub assumed: Vec<&'static str>,
    /// What a measured machine adds to durations.
    pub effects: MachineEffects,
    /// What costs time besides F, I, W and B.
    pub extras: Extras,
    /// Of F, I, W and B, indexed by [`Op::slot`]; for slices one such table after the other.
    times: Vec<OpTime>,
    /// Length of the table of one slice; 0 if all slices are alike.
    stride: usize,
}

/// How durations vary on a measured machine; empty for given and analytic costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineEffects {
    /// Speed over time in each measured step, with ticks in nanoseconds.
    pub speeds: Vec<Slowdown>,
    /// Contention between devices that compute at the same time.
    pub contention: Option<Contention>,
    /// Contention between puts.
    pub puts: Option<SharedPuts>,
}

/// Costs other than the costs of F, I, W and B, in ticks.
#[derive(Clone, Debug, Default)]
pub struct Extras {
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
    /// By stage: copies of a unit's activation to the host and from it; for slices one such list after the other.
    pub copies: Vec<[u64; 2]>,
    /// By stage: computing a unit's forward again; for slices one such list after the other. Empty: as long as `slice_costs` say.
    pub repeats: Vec<u64>,
}

impl Extras {
    /// Returns the same costs in other ticks. The costs of pairs are in nanoseconds and do not change.
    fn map(&self, ticks: impl Fn(u64) -> u64 + Copy) -> Extras {
        let all = |times: &[u64]| times.iter().map(|&time| ticks(time)).collect::<Vec<_>>();
        let VocabularyCosts { forward, rest, embed, barrier } = self.vocabulary;
        let [forward, rest, barrier] = [forward, rest, barrier].map(ticks);
        Extras {
            pauses: all(&self.pauses),
            pairs: self.pairs.clone(),
            collectives: self.collectives.as_ref().map(|CollectiveCosts { gathers, reductions }| CollectiveCosts {
                gathers: all(gathers),
                reductions: all(reductions),
            }),
            slice_costs: self.slice_costs,
            vocabulary: VocabularyCosts { forward, rest, embed: embed.map(ticks), barrier },
            copies: self.copies.iter().map(|copy| copy.map(ticks)).collect(),
            repeats: all(&self.repeats),
        }
    }
}

/// Durations of the collectives of each stage, in ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectiveCosts {
    /// Gathering its parameters.
    pub gathers: Vec<u64>,
    /// Reducing and scattering its gradients.
    pub reductions: Vec<u64>,
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

impl Summary {
    /// Returns the costs `of` each kind of [`Kind::COSTED`], in time units.
    pub fn new(of: impl Fn(Kind) -> f64, comm: f64, keep: f64) -> Summary {
        #[allow(non_snake_case)] // the kinds' letters
        let [F, I, W, B] = Kind::COSTED.map(of);
        Summary { F, I, W, B, comm, keep }
    }

    /// Returns the cost of a kind of [`Kind::COSTED`].
    fn of(&self, kind: Kind) -> f64 {
        [self.F, self.I, self.W, self.B][kind as usize]
    }
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
        let (extras, lasting) = (&self.extras, |duration: u64| OpTime { duration, ..OpTime::default() });
        match op.kind() {
            Kind::R if !extras.repeats.is_empty() => lasting(self.of_unit(&extras.repeats, op)),
            Kind::R => {
                let forward = self.of(op.of_kind(Kind::F));
                OpTime { duration: extras.slice_costs.recompute.share_of(forward.duration), arrival: 0, ..forward }
            }
            Kind::O => lasting(self.of_unit(&extras.copies, op)[0]),
            Kind::L => lasting(self.of_unit(&extras.copies, op)[1]),
            Kind::S => lasting(extras.vocabulary.forward + extras.vocabulary.rest),
            Kind::IF => lasting(extras.vocabulary.embed[0]),
            Kind::IB => lasting(extras.vocabulary.embed[1]),
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
        self.extras.pauses.get(index).copied().unwrap_or(0)
    }

    /// Returns a table from a function of the ops of micro-batch 0: one per stage, direction and kind of [`Kind::COSTED`].
    pub fn new(placement: &Placement, units: TickUnits, summary: Summary, cost: impl Fn(Op) -> OpTime) -> CostTable {
        let mut times = vec![OpTime::default(); placement.stages() as usize * Op::SLOTS_PER_STAGE];
        placement.op_kinds().for_each(|op| times[op.slot()] = cost(op));
        CostTable {
            units,
            keep: Keep::new(summary.keep),
            summary,
            assumed: Vec::new(),
            effects: MachineEffects::default(),
            extras: Extras::default(),
            times,
            stride: 0,
        }
    }

    /// Returns the costs of slices. `tables` has one table per slice, in order; costs that do not belong to ops come from `whole`.
    fn of_slices(whole: CostTable, tables: Vec<CostTable>, placement: &Placement) -> CostTable {
        let sum = |kind: Kind| tables.iter().map(|table| table.summary.of(kind)).sum();
        let summary = Summary::new(sum, whole.summary.comm, whole.summary.keep);
        let extras = Extras { copies: Vec::new(), repeats: Vec::new(), ..whole.extras };
        let stride = placement.slots();
        let mut joined = CostTable { summary, times: Vec::new(), extras, stride, ..whole };
        for table in tables {
            joined.times.extend(table.times);
            joined.extras.copies.extend(table.extras.copies);
            joined.extras.repeats.extend(table.extras.repeats);
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

    /// Returns the costs with pairs that take as long as their sub-ops on two streams. Ticks are nanoseconds; `sub_ops` has the
    /// sub-ops of every stage.
    pub fn with_sub_ops(self, placement: &Placement, sub_ops: &[SubOps]) -> CostTable {
        let pairs = PairCosts::new(placement, sub_ops, |op| self.of(op).duration);
        CostTable { extras: Extras { pairs: Some(pairs), ..self.extras }, ..self }
    }

    /// Returns the costs in other ticks, without the effects of a measured machine.
    fn map(&self, units: TickUnits, ticks: impl Fn(u64) -> u64 + Copy) -> CostTable {
        let time =
            |t: &OpTime| OpTime { duration: ticks(t.duration), after: ticks(t.after), arrival: ticks(t.arrival) };
        CostTable {
            units,
            effects: MachineEffects::default(),
            times: self.times.iter().map(time).collect(),
            extras: self.extras.map(ticks),
            assumed: self.assumed.clone(),
            ..*self
        }
    }

    /// Returns the costs with ticks divided by `n`.
    pub fn finer(&self, n: u32) -> CostTable {
        let ticks = |ticks: u64| ticks.saturating_mul(u64::from(n));
        let units = TickUnits { ticks_per_unit: self.units.ticks_per_unit * f64::from(n), ..self.units };
        let MachineEffects { speeds, contention, puts } = &self.effects;
        let effects = MachineEffects {
            speeds: speeds.iter().map(|speed| speed.finer(n)).collect(),
            contention: contention.clone(),
            puts: puts.clone().map(|puts| SharedPuts { duration: ticks(puts.duration), ..puts }),
        };
        let mut finer = CostTable { effects, ..self.map(units, ticks) };
        finer.extras.pairs = self.extras.pairs.as_ref().map(|pairs| pairs.finer(n));
        finer
    }

    /// Returns the costs with only the measured speeds of these indices.
    ///
    /// # Panics
    /// An index is out of range.
    pub fn at_speeds(&self, numbers: &[usize]) -> CostTable {
        let speeds = numbers.iter().map(|&number| self.effects.speeds[number].clone()).collect();
        CostTable { effects: MachineEffects { speeds, ..self.effects.clone() }, ..self.clone() }
    }

    /// Checks that all ops of `microbatches` on `placement`, in sequence and at the lowest speed, do not overflow the clock.
    pub fn check_clock(&self, placement: &Placement, microbatches: u32) -> Result<(), CostError> {
        const SLOWEST: u128 = EXTREME as u128;
        let Extras { collectives, copies, repeats, .. } = &self.extras;
        let gathers = collectives.iter().flat_map(|times| times.gathers.iter().chain(&times.reductions));
        let others = copies.iter().flatten().chain(repeats).chain(gathers).copied().max().unwrap_or(0);
        let longest = self.longest().max(others.into());
        let ops = 4 * u128::from(placement.stages()) * u128::from(placement.directions()) * u128::from(microbatches);
        if longest * ops * SLOWEST >= 1 << 63 {
            let why = "the costs times the number of ops overflow the clock; use fewer micro-batches";
            return Err(CostError::Overflow(why.to_string()));
        }
        Ok(())
    }

    /// Returns the costs in milliseconds, with nanoseconds as ticks; `unit_ms` is the old unit in milliseconds.
    pub fn in_milliseconds(&self, unit_ms: f64) -> CostTable {
        let ns = |ticks: u64| (self.in_units(ticks) * unit_ms * 1e6).round() as u64;
        let Summary { comm, keep, .. } = self.summary;
        let summary = Summary::new(|kind| self.summary.of(kind) * unit_ms, comm * unit_ms, keep);
        let costs = self.map(TickUnits::MILLISECONDS, ns);
        CostTable { summary, extras: Extras { pauses: Vec::new(), pairs: None, ..costs.extras }, ..costs }
    }

    /// Converts ticks to time units.
    pub fn in_units(&self, ticks: u64) -> f64 {
        ticks as f64 / self.units.ticks_per_unit
    }

    /// Converts ticks to nanoseconds of a timeline.
    pub fn to_ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * (self.units.unit_ns as f64 / self.units.ticks_per_unit)).round() as u64
    }
}
