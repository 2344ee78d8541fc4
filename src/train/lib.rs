//! A decoder that trains for real, split by pipeline stage, on CPU threads or NVIDIA GPUs.
//!
//! In: a model's sizes, parameters, tokens, and the ops of a schedule one by one. Out: hidden states and gradients for other stages,
//! losses, updated parameters, and checkpoints. [`compute`] is what a machine offers, [`model`] the trainer over it, [`checkpoint`] its
//! files.
//!
//! ```
//! use pipesim_models::model_spec::transformer_named;
//! use pipesim_train::model::Parameters;
//!
//! let small = transformer_named("tiny").expect("a model of the table");
//! let parameters = Parameters::zeros(&small)?;
//! assert_eq!(parameters.tensors.len(), small.spec().tensors().count());
//! # Ok::<(), anyhow::Error>(())
//! ```

pub mod checkpoint;
pub mod compute;
pub mod model;
