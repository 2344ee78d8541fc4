//! Models, hardware, parallel layouts, and the memory that they take.
//!
//! In: names, or the text of files: [`hardware`] and training software from TOML, models ([`model_spec`]) from the config.json of
//! Hugging Face, and a [`layout`] (degrees of parallelism, precision, recomputation). Out: sizes and numbers of operations by stage,
//! and the bytes of each device ([`memory`]).
//!
//! ```
//! use pipesim_models::hardware::hardware;
//! use pipesim_models::model_spec::transformer_named;
//!
//! let model = transformer_named("llama-3-8b").expect("a model of the table");
//! assert_eq!(model.layers, 32);
//! assert_eq!(hardware("h100-sxm")?.memory_gib, 80.0);
//! # Ok::<(), pipesim_models::hardware::Error>(())
//! ```

pub mod hardware;
pub mod hull;
pub mod layout;
pub mod memory;
pub mod model_spec;
