//! Jobs of Megatron-LM and of its forks: options, logs of their values, and YAML.

mod assemble;
mod dialect;
mod further;
mod names;
mod options;
mod parser;
mod pattern;
mod primus;
mod reading;
mod shape;
mod texts;
pub mod yaml;

use crate::error::JobError;
use crate::job::Job;
use crate::launch::Launch;
use crate::setting::Settings;
use crate::source::Sources;
use assemble::job;
use dialect::Dialect;

/// Reads a job from the command that starts `pretrain_gpt.py` or a relative.
///
/// # Errors
/// An option that is read has a value that the job does not say, or one that Megatron's parser would not take.
pub fn read(launch: &Launch, sources: &Sources) -> Result<Job, JobError> {
    let dialect = Dialect::of(&launch.program, &launch.settings);
    let world = launch.world.or(sources.gpus);
    let settings = dialect::sized(&launch.settings, sources.model.as_deref());
    job(dialect, &launch.program, &settings, world).map_err(|error| match error {
        JobError::Missing(mut missing) => {
            missing.extend(launch.missing.iter().filter(|_| world.is_none()).cloned());
            JobError::Missing(missing)
        }
        other => other,
    })
}

/// Reads a job from the values of all arguments, which a log prints. Values other than the default are its options.
///
/// # Errors
/// As [`read`].
pub fn of_arguments(settings: &Settings, world: Option<u32>, sources: &Sources) -> Result<Job, JobError> {
    let printed = settings.value("world_size").and_then(|size| size.parse().ok());
    let settings = names::of_values(settings);
    let dialect = Dialect::of("pretrain_gpt.py", &settings);
    job(dialect, "pretrain_gpt.py", &settings, world.or(printed).or(sources.gpus))
}
