//! What is trained and measured, and how far predictions are from it.
//!
//! A [`Recipe`] says what is trained; with devices it becomes a [`Training`], which makes sessions of the executor. An
//! [`Experiment`] resolves its schedules, measures them in one process, warmed and interleaved round-robin ([`measure()`]),
//! calibrates costs on one of them ([`Calibrating`]), predicts the others from those, and holds prediction and measurement
//! against each other ([`compare()`]): an [`Outcome`] a schedule, together a [`Finding`]. An [`Accuracy`] does so over several
//! numbers of micro-batches. Nothing here prints: an [`Observer`] hears what goes on.

mod accuracy;
mod calibrate;
mod compare;
mod contention;
mod error;
mod finding;
mod hardware;
mod interval;
mod machine;
mod measure;
mod observer;
mod outcome;
mod provenance;
mod recipe;
mod recorded;
mod room;
mod seen;
mod steps;
mod survivors;
mod tables;
mod timed;
mod train;
mod training;
mod verdict;

pub use accuracy::{Accuracy, Transfer};
pub use calibrate::{Calibrating, profile};
pub use compare::compare;
pub use error::Error;
pub use finding::{Calibration, Finding};
pub use hardware::measured_hardware;
pub use machine::{cores, free_memory_bytes};
pub use measure::{Extent, Measured, measure};
pub use observer::{Event, Observer, silent};
pub use outcome::{Errors, Iteration, Outcome};
pub use recipe::Recipe;
pub use room::Resident;
pub use seen::Seen;
pub use steps::{Jump, Role, Steps};
pub use training::{Backend, Training};
pub use verdict::{MOST_NOISE, Verdict, noise};

use crate::delivery::Delivery;
use crate::ranks::Ranks;
use crate::resolve::{Costs, Selection};
use std::sync::Arc;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Names or paths of the schedules.
    pub schedules: Vec<String>,
    /// For how many devices and micro-batches, with which options.
    pub selection: Selection,
    /// Leave out, with a remark, the schedules that the link's delivery would stop, as long as one is left; else refuse.
    pub leave_out: bool,
    /// What is trained.
    pub recipe: Recipe,
    /// Where the predictions' costs come from; where they are not measured ones, from what is calibrated on.
    pub costs: Costs,
    /// The schedule to calibrate on.
    pub calibrate_on: String,
    /// Measured steps of each schedule, at most.
    pub steps: u32,
    /// Steps before them that leave no trace.
    pub warmup: u32,
    /// Measure no more once the 95 % interval of a predicted time is as narrow as this on either side, as a share.
    pub until: Option<f64>,
    /// Training steps of a schedule that follow each other at once whenever its turn comes.
    pub in_a_row: u32,
    /// Measure one device too, interleaved with the others.
    pub baseline: bool,
    /// What the link promises.
    pub delivery: Delivery,
    /// The processes that take part.
    pub ranks: Arc<Ranks>,
}

impl Experiment {
    /// Five measured steps of each of `schedules` on `devices` devices with `microbatches` micro-batches, of the smallest
    /// model on a text that comes with the program, calibrated on 1F1B.
    pub fn new<S: Into<String>>(schedules: impl IntoIterator<Item = S>, devices: u32, microbatches: u32) -> Experiment {
        Experiment {
            schedules: schedules.into_iter().map(Into::into).collect(),
            selection: Selection::new(devices, microbatches),
            leave_out: false,
            recipe: Recipe::default(),
            costs: Costs::default(),
            calibrate_on: "1f1b".to_string(),
            steps: 5,
            warmup: 2,
            until: None,
            in_a_row: 1,
            baseline: false,
            delivery: Delivery::OneSided,
            ranks: Ranks::alone(),
        }
    }
    /// How much is measured.
    fn extent(&self) -> Extent {
        Extent { warmup: self.warmup, steps: self.steps, until: self.until, in_a_row: self.in_a_row }
    }
}
