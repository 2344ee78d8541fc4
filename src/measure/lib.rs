//! Training steps measured and compared with their prediction, and training to the end.
//!
//! In: names of schedules, a model, devices ([`experiment::TrainingConfig`]). Out: measured and predicted timelines side by side
//! ([`experiment::Results`]), calibrated costs, and the accuracy of predictions; from [`training_loop`], checkpoints, losses and samples.
//!
//! ```no_run
//! let results = pipesim_measure::experiment::Experiment::new(["1f1b", "zb-v"], 2, 4).run()?; // 2 CPU threads, calibrated on 1F1B
//! for outcome in &results.outcomes {
//!     println!("{}: makespan predicted {:+.1} % off", outcome.schedule, 100.0 * outcome.error.makespan);
//! }
//! # Ok::<(), pipesim_measure::experiment::Error>(())
//! ```

pub mod experiment;
pub mod training_loop;
