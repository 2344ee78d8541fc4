//! Training jobs as their files state them: launch scripts, configurations and logs of Megatron-LM, torchtitan, DeepSpeed and others.
//!
//! Nothing is executed: a script is data. In: [`Sources`], the texts of a job with what it was started with. Out: a [`Job`]: what the
//! framework's own parser would read ([`Reading`]), and every option by what it means for a step. A log is read as a stream
//! ([`log::read`]), and is a job together with its [`Measurement`].

pub mod config;
mod error;
mod given;
mod job;
mod kind;
mod launch;
pub mod log;
mod measurement;
pub mod megatron;
mod model;
mod reading;
mod setting;
pub mod shell;
mod source;
mod summary;
mod vocabulary;
pub mod yaml;

pub use error::{JobError, Missing};
pub use given::GivenJob;
pub use job::{Job, NotModelled, Unknown};
pub use kind::{FileKind, read, read_log};
pub use launch::Launch;
pub use measurement::{Dropped, Measurement, Timer};
pub use model::JobModel;
pub use reading::Reading;
pub use setting::{Setting, Settings};
pub use source::{SourceFile, Sources};
pub use vocabulary::{Meaning, Vocabulary};
