//! Simulation: when each op runs, from a graph and costs. It uses no clock and no I/O.

mod beside;
mod bound;
mod critical;
pub mod event;
mod explain;
mod gates;
mod idle;
mod machine;
mod memory;
mod offload;
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
pub use step::{steady_makespan, typical_step_on};
pub use streams::StreamSpan;
pub use successive::Successive;
pub use sweep::{sweep, sweep_lasting};
pub use waits::{Delay, Doing, Held, OpTimes, Piece};
