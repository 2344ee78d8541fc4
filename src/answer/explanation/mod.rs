//! Why a step takes as long as it does, and what would shorten it: of a prediction, or of a measured run.
//!
//! A [`StepExplanation`] holds figures and, in `sentences`, what they mean: what costs most, why, and what to try. Names of settings are
//! in backticks: `` `micro` 16 ``.

mod culprit;
mod measured;
mod opening;
mod run;
mod sentences;
mod step;
mod tables;

pub use measured::RunDiagnosis;
pub use run::{ExplainedRun, Unexplained};
pub use step::{BestOrder, NamedBounds, OpSlack, StepExplanation};
