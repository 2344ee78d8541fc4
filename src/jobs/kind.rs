//! Which kind of file a job is.

use crate::error::JobError;
use crate::job::Job;
use crate::source::Sources;

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A shell script, or a pasted command.
    Shell,
    /// A log, which is read as a stream.
    Log,
    /// YAML: Megatron's test cases, Primus, Megatron-Bridge, NeMo or nanotron.
    Yaml,
    /// TOML of torchtitan.
    Toml,
    /// JSON of DeepSpeed.
    Json,
}

/// Reads a job from the texts of its files; [`crate::log::read`] reads logs.
///
/// # Errors
/// The files are no job, or say too little.
pub fn read(_sources: &Sources) -> Result<Job, JobError> {
    todo!()
}
