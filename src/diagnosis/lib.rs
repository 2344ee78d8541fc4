//! Diagnosis of a measured step, from its timeline alone: why devices idled, what it cost, and what would have shortened it.
//!
//! [`MeasuredStep`] is the step as a task graph with the times of its ops, and what held each of them up. Its own durations, host delays
//! and messages can be replayed with changes ([`Replay`]), its mean costs predict other schedules ([`costs`]), and [`findings`] ranks what
//! was unusual in it.

mod costs;
mod finding;
mod findings;
mod fit;
mod measured_step;
mod replay;
mod slow;

pub use costs::costs;
pub use finding::Finding;
pub use findings::findings;
pub use fit::{DeliveryFit, Fit};
pub use measured_step::{Error, MeasuredStep};
pub use pipesim_schedule::trend::{StepTrend, Trend, trend};
pub use replay::Replay;
pub use slow::{StageTime, stage_times};
