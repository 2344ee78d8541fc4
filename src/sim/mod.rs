//! Simulation: when each op runs, from the graph and what ops cost. No clock, no I/O.

mod bound;
mod predict;
mod sweep;

pub use bound::lower_bound;
pub use predict::{Prediction, StepSpan, predict, replay};
pub use sweep::{Times, sweep, sweep_at_speed};
