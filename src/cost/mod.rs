//! What ops cost, from whichever source, as one table of ticks by stage and kind.

pub mod analytic;
mod contention;
mod decimal;
mod given;
mod measured;
mod share;
mod speed;
mod stages;
mod unit;

pub use contention::Contention;
pub use decimal::Decimal;
pub use given::{GivenCosts, Slow, assumed_in_words};
pub use measured::{CostFile, LinkCost, PartCost, SCHEMA_VERSION as MEASURED_SCHEMA_VERSION, StepRates};

pub use share::Per;
pub use speed::{EXTREME, Speed, TYPICAL};
pub use stages::StageTimes;
pub use unit::TimeUnit;

use crate::activation::Keep;
use crate::ending::{Ending, StepNode};
use crate::op::Op;
use crate::placement::Placement;

/// Why there are no such costs; what is displayed says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CostError(pub(crate) String);

/// What an op costs, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTime {
    /// How long it computes.
    pub duration: u64,
    /// How long its device is held up between its end and the start of the next op (host overhead, its put).
    pub after: u64,
    /// From its end until another device may use its output.
    pub arrival: u64,
}

/// What ends a step, and what that costs.
#[derive(Clone, Debug, Default)]
pub struct StepCosts {
    /// The step ops; none where a step ends with its last backward.
    pub ending: Ending,
    /// By node of it, in ticks: how long it lasts, and from its end until another device may use what it made.
    pub lasts: Vec<(u64, u64)>,
    /// Whether these are all there is to an iteration besides the pipeline.
    pub is_whole: bool,
}

impl StepCosts {
    /// Those of an ending whose nodes last so long.
    pub fn new(ending: Ending, lasts: impl Fn(&StepNode) -> (u64, u64)) -> StepCosts {
        let lasts = ending.nodes().iter().map(lasts).collect();
        StepCosts { ending, lasts, is_whole: true }
    }
}

/// Durations of every (stage, direction, kind) of one placement, in ticks.
#[derive(Clone, Debug)]
pub struct CostTable {
    /// How many ticks one time unit has.
    pub ticks_per_unit: f64,
    /// `unit`, or `ns`, `us`, `ms` or `s`.
    pub time_unit: &'static str,
    /// Nanoseconds that stand for one time unit in a timeline.
    pub unit_ns: u64,
    /// Share of an activation that lives from I to W.
    pub keep: Keep,
    /// Per device: its whole share of layers, in time units; what `predict --format json` repeats.
    pub summary: Summary,
    /// How the machine's speed went in measured steps; empty where costs are given. Ticks are nanoseconds then.
    pub speeds: Vec<Speed>,
    /// What devices that compute beside each other cost each other, where that was measured.
    pub contention: Option<Contention>,
    /// What puts cost each other, where that was measured.
    pub puts: Option<SharedPuts>,
    /// Assumptions about costs that were not given: `I = W = B/2`.
    pub assumed: Vec<&'static str>,
    /// By [`Op::slot`].
    times: Vec<OpTime>,
}

/// Puts that slow each other down while they are under way at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPuts {
    /// How long one takes alone, in ticks: the first part of [`OpTime::arrival`].
    pub duration: u64,
    /// Whether its sender computes on meanwhile; else it is the first part of [`OpTime::after`], too.
    pub beside_compute: bool,
    /// With 1, 2, .. of them under way, per mille of alone; the last holds for more.
    pub per_mille: Vec<u32>,
}

/// Costs as users give them: per device, a chunk's op costs 1/v of it.
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
    /// Latency of an edge between devices.
    pub comm: f64,
    /// Share of an activation that lives from I to W.
    pub keep: f64,
}

impl CostTable {
    /// The time of `op`.
    pub fn of(&self, op: Op) -> OpTime {
        self.times[op.slot()]
    }

    /// A table from a function of each stage's, direction's and kind's op of micro-batch 0.
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
            times,
        }
    }

    /// The same costs, each op's time another.
    pub fn with_times(&self, placement: &Placement, time: impl Fn(Op, OpTime) -> OpTime) -> CostTable {
        let mut times = self.times.clone();
        placement.op_kinds().for_each(|op| times[op.slot()] = time(op, times[op.slot()]));
        CostTable { times, ..self.clone() }
    }

    /// The same costs in ticks that are `n` times finer.
    pub fn finer(&self, n: u32) -> CostTable {
        let ticks = |ticks: u64| ticks.saturating_mul(u64::from(n));
        let time =
            |t: &OpTime| OpTime { duration: ticks(t.duration), after: ticks(t.after), arrival: ticks(t.arrival) };
        let ticks_per_unit = self.ticks_per_unit * f64::from(n);
        let speeds = self.speeds.iter().map(|speed| speed.finer(n)).collect();
        let puts = self.puts.clone().map(|puts| SharedPuts { duration: ticks(puts.duration), ..puts });
        CostTable { ticks_per_unit, times: self.times.iter().map(time).collect(), speeds, puts, ..self.clone() }
    }

    /// The same costs with those of the measured speeds that have these numbers.
    ///
    /// # Panics
    /// A number is too large.
    pub fn at_speeds(&self, numbers: &[usize]) -> CostTable {
        CostTable { speeds: numbers.iter().map(|&number| self.speeds[number].clone()).collect(), ..self.clone() }
    }

    /// That the ops of `microbatches` on `placement`, one after the other at the lowest speed, do not outlast the clock.
    pub fn check_clock(&self, placement: &Placement, microbatches: u32) -> Result<(), CostError> {
        const SLOWEST: u128 = EXTREME as u128;
        let lasts = |time: &OpTime| [time.duration, time.after, time.arrival].map(u128::from).iter().sum::<u128>();
        let longest = self.times.iter().map(lasts).max().unwrap_or(0);
        let ops = 4 * u128::from(placement.stages()) * u128::from(placement.directions()) * u128::from(microbatches);
        if longest * ops * SLOWEST >= 1 << 63 {
            return Err(CostError(
                "the measured costs times so many ops overflow the clock; take fewer micro-batches".to_string(),
            ));
        }
        Ok(())
    }

    #[allow(non_snake_case)] // the kinds' letters
    /// The same costs in milliseconds, one unit of these being `unit_ms`; ticks become nanoseconds.
    pub fn in_milliseconds(&self, unit_ms: f64) -> CostTable {
        let ns = |ticks: u64| (ticks as f64 / self.ticks_per_unit * unit_ms * 1e6).round() as u64;
        let time = |t: &OpTime| OpTime { duration: ns(t.duration), after: ns(t.after), arrival: ns(t.arrival) };
        let Summary { F, I, W, B, comm, keep } = self.summary;
        let [F, I, W, B, comm] = [F, I, W, B, comm].map(|cost| cost * unit_ms);
        let summary = Summary { F, I, W, B, comm, keep };
        let times = self.times.iter().map(time).collect();
        let (ticks_per_unit, time_unit, unit_ns) = (1e6, "ms", 1_000_000);
        CostTable {
            ticks_per_unit,
            time_unit,
            unit_ns,
            keep: self.keep,
            summary,
            speeds: Vec::new(),
            contention: None,
            puts: None,
            assumed: self.assumed.clone(),
            times,
        }
    }

    /// Ticks as nanoseconds of a timeline.
    pub fn to_ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * (self.unit_ns as f64 / self.ticks_per_unit)).round() as u64
    }
}
