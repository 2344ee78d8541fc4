//! Simulation: when each op runs, from the graph and what ops cost. No clock, no I/O.

mod bound;
mod memory;
mod predict;
mod sweep;
mod waits;

pub use bound::lower_bound;
pub use predict::{Prediction, StepSpan, Times, predict, replay};
pub use sweep::{sweep, sweep_lasting};
