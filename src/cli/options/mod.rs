//! Options that several verbs share, what they accept, and which go together.

pub mod calibrate;
pub mod costs;
#[cfg(feature = "training")]
pub mod devices;
pub mod engine;
mod foreign;
pub mod fsdp;
pub mod hardware;
pub mod look;
pub mod megatron;
pub mod mixture;
pub mod output;
#[cfg(feature = "training")]
pub mod ranks;
pub mod rules;
pub mod schedules;
pub mod threshold;
pub mod tips;
#[cfg(feature = "training")]
pub mod training;
#[cfg(feature = "training")]
pub mod training_loop;
pub mod values;
