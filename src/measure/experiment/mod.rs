//! Measured training runs, and the accuracy of predictions.
//!
//! A [`TrainingConfig`] describes a training; with devices it becomes a [`Training`], which opens sessions of the executor. An
//! [`Experiment`] resolves its schedules, measures them in one process, warmed up and interleaved round-robin ([`measure()`]),
//! calibrates costs on one of them ([`Calibrating`]), predicts the others from those costs, and compares prediction and
//! measurement (`compare`): one [`Outcome`] per schedule, together a [`Results`]. An [`Accuracy`] does so for several numbers
//! of micro-batches. Nothing here prints: an [`Observer`] receives the progress.

mod accuracy;
mod backend;
mod calibrate;
mod calibration_graphs;
mod config;
mod contention;
mod error;
mod graphs;
mod hardware;
mod measure;
mod model_source;
mod outcome;
mod recorded;
mod requirements;
mod results;
mod saved_activations;
mod sessions;
mod steps;
mod timed;
mod train;
mod training;
mod verdict;
mod weights;

pub use accuracy::{Accuracy, Transfer};
pub use backend::{Backend, Devices};
pub use calibrate::{Calibrating, profile};
pub use config::TrainingConfig;
pub use contention::Neighbours;
pub use error::Error;
pub use graphs::{fixed_graph, graph_of};
pub use hardware::measured_hardware;
pub use measure::{Event, Extent, Observer, ScheduleRun, measure, silent};
pub use outcome::{Iteration, Outcome, Work};
pub use requirements::{require_session, state_bytes};
pub use results::{Calibration, Results, report_of};
pub use saved_activations::{most_saved, saved_changes};
pub use steps::{Role, Steps};
pub use training::Training;
pub use verdict::{Finding, Judged, MOST_NOISE, ScheduleVerdict, Verdict, judge, noise};

use pipesim_answer::resolve::{Costs, Selection};
use pipesim_exec::ranks::Ranks;
use std::sync::Arc;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Names or paths of the schedules.
    pub schedules: Vec<String>,
    /// Numbers of devices and micro-batches, and options of the schedules.
    pub selection: Selection,
    /// Leave out schedules that deadlock under the link's delivery, with a remark, as long as one is left; otherwise they are errors.
    pub leave_out: bool,
    /// What is trained.
    pub training_config: TrainingConfig,
    /// Costs of the predictions; unless they are measured ones, the schedule to calibrate on gives the costs.
    pub costs: Costs,
    /// The schedule to calibrate on.
    pub calibrate_on: String,
    /// Measured steps of each schedule, at most.
    pub steps: u32,
    /// Unmeasured steps of each schedule before the measured ones.
    pub warmup: u32,
    /// Stop once half the 95 % interval of every schedule's median makespan is at most this share of the median.
    pub until: Option<f64>,
    /// Measured steps of each schedule before that counts.
    pub least: u32,
    /// Training steps that a schedule runs without a barrier between them whenever its turn comes.
    pub back_to_back: u32,
    /// Also measure one device, interleaved with the others.
    pub baseline: bool,
    /// The processes of the run.
    pub ranks: Arc<Ranks>,
}

impl Experiment {
    /// Returns an experiment of five measured steps of each of `schedules` on `devices` devices with `microbatches` micro-batches: the
    /// smallest model, trained on the built-in text, calibrated on 1F1B.
    pub fn new<S: Into<String>>(schedules: impl IntoIterator<Item = S>, devices: u32, microbatches: u32) -> Experiment {
        Experiment {
            schedules: schedules.into_iter().map(Into::into).collect(),
            selection: Selection::new(devices, microbatches),
            leave_out: false,
            training_config: TrainingConfig::default(),
            costs: Costs::default(),
            calibrate_on: "1f1b".to_string(),
            steps: 5,
            warmup: 2,
            until: None,
            least: 1,
            back_to_back: 1,
            baseline: false,
            ranks: Ranks::alone(),
        }
    }
    /// How much to measure.
    fn extent(&self) -> Extent {
        let Experiment { warmup, steps, until, least, back_to_back, .. } = *self;
        Extent { warmup, steps, until, least, back_to_back }
    }
}
