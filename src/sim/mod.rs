//! Simulation: when each op runs, from the graph and what ops cost. No clock, no I/O.

#[cfg(feature = "internals")]
mod beside;
mod bound;
mod critical;
pub mod event;
mod explain;
mod idle;
mod machine;
mod memory;
mod paths;
mod predict;
mod spans;
mod successive;
mod sweep;
mod waits;

#[cfg(feature = "internals")]
pub use beside::sweep_beside;
pub use bound::{Bounds, bounds, bounds_at_own_peaks, bounds_within};
pub use critical::{
    CostShare, CriticalSpan, PERCENT, Sensitivity, critical_path, critical_spans, finer_by, sensitivities, slacks,
};
pub use explain::explain;
pub use idle::{Cause, Explanation, IdleReport, IdleSpan, IdleTime};
pub use memory::{MemoryCurve, memory};
pub use predict::{
    Interval, Predicted, Prediction, Setup, Spread, predict, replay, steady_makespan, typical_step, typical_step_on,
};
pub use spans::StepSpan;
pub use successive::Successive;
pub use sweep::{sweep, sweep_lasting};
pub use waits::{Doing, OpTimes, Piece};
