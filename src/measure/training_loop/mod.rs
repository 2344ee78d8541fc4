//! A training that goes on until it is done: validation, samples, checkpoints, and resuming after an interruption.
//!
//! A [`TrainingLoop`] runs the steps of one schedule. Its [`LoopConfig`] determines every loss, to the bit; the [`Pipeline`] does not,
//! so a checkpoint may be resumed with another. Nothing here prints: a [`Watcher`] receives the progress.

mod config;
mod curve;
mod generation;
mod held_out;
mod learning_rate;
mod log;
mod run;
mod sampling;
mod trend;
mod weights;

pub use config::{DataSource, LoopConfig, Optimizer, Pipeline, Samples, SavedRun, Validation};
pub use curve::{LossPage, loss_curve};
pub use generation::TextModel;
pub use learning_rate::{Decay, LearningRate};
pub use log::{LOG, LogLine};
pub use run::{Ended, LoopEvent, TrainingLoop, Watcher};
pub use sampling::Sampling;
pub use trend::Trend;
