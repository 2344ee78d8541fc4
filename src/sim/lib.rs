//! Simulation: when each op runs, from a graph and costs. It uses no clock and no I/O.
//!
//! In: a task graph, a cost table, and what is contended on the machine ([`Setup`]). Out: a [`Prediction`] with the times of all ops,
//! idle time and its causes, the critical path, bounds. [`ordering`] finds orders for given costs, [`exact`] proves how good they are,
//! [`balance`] divides layers.
//!
//! ```
//! use pipesim_cost::{GivenCosts, Slow};
//! use pipesim_schedule::graph::TaskGraph;
//! use pipesim_schedule::op::{Kind, Op};
//! use pipesim_schedule::placement::Placement;
//! use pipesim_schedule::schedule::{Programs, Schedule};
//! use pipesim_sim::{Setup, predict};
//!
//! // GPipe on two devices: all forwards, then all backwards
//! let device = |stage| [Kind::F, Kind::B].into_iter().flat_map(move |kind| (0..4).map(move |m| Op::new(kind, stage, m)));
//! let placement = Placement::linear(2);
//! let programs = Programs::from_iter((0..2).map(|stage| device(stage).collect()));
//! let costs = "F=1,B=2".parse::<GivenCosts>()?.table(&placement, 4, &Slow::default())?;
//! let graph = TaskGraph::new(Schedule::new("gpipe", placement, 4, programs))?;
//! let prediction = predict(&graph, &costs, &Setup::default())?;
//! assert_eq!(prediction.metrics().makespan, (4.0 + 1.0) * 3.0); // (m + p - 1) (F + B)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod balance;
mod bound;
mod critical;
pub mod event;
pub mod exact;
mod explain;
mod gates;
mod idle;
mod machine;
mod memory;
mod offload;
pub mod ordering;
mod paths;
mod predict;
mod prediction;
mod rules;
mod spans;
mod step;
mod streams;
mod successive;
mod sweep;
mod waits;

pub use bound::{Bounds, bounds, bounds_at_own_peaks, bounds_within};
pub use critical::{
    CostShare, CriticalSpan, PERCENT, Sensitivity, critical_path, critical_spans, finer_by, sensitivities, slacks,
};
pub use explain::explain;
pub use gates::CollectiveSpan;
pub use idle::{Cause, Explanation, Idle, IdleReport, IdleSpan, IdleTime, SlowOps};
pub use memory::{MemoryCurve, MemoryLevel, memory};
pub(crate) use offload::planned_offload;
pub use offload::{OffloadPlan, OffloadRefused, PlannedCopy, plan_offload};
pub use predict::{Prediction, Setup, predict, replay};
pub use prediction::{Interval, PredictionFigures, ShardingFigures, Spread};
pub use spans::StepSpan;
pub use step::{Step, steady_makespan, typical_step_on};
pub use streams::StreamSpan;
pub use successive::Successive;
pub use sweep::{sweep, sweep_lasting};
pub use waits::{Delay, Doing, Held, OpTimes, WaitPiece};
