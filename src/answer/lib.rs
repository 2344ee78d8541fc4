//! What a training step takes, why, and what would make it shorter.
//!
//! In: a [`resolve::Selection`] (devices, micro-batches, options), a schedule by name or file, and [`resolve::Costs`]; or a model, hardware
//! and a number of GPUs. Out: a prediction ([`resolve::Resolved`], [`model_prediction`]), estimates of time and memory
//! ([`step_estimate`]), causes and changes that help ([`advice`], [`explanation`]), and ranked layouts ([`mod@plan`]).
//!
//! ```
//! use pipesim_answer::resolve::{Costs, Selection};
//!
//! let resolved = Selection::new(4, 8).resolve("zb-v", &Costs::default())?; // 4 devices, 8 micro-batches, F = I = W = 1
//! assert_eq!(resolved.predict()?.metrics().makespan, 25.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod advice;
pub mod explanation;
pub mod framework;
pub mod known;
pub mod model_prediction;
pub mod plan;
pub mod question;
pub mod resolve;
pub mod step_estimate;
pub mod suggestion;
