//! The job that options say.

use super::dialect::Dialect;
use super::options::{Options, unresolved};
use super::{further, parser, reading, shape};
use crate::error::JobError;
use crate::job::Job;
use crate::setting::Settings;
use crate::vocabulary::{Meaning, Vocabulary};

/// Reads a job from options with the names of a dialect.
pub(super) fn job(dialect: Dialect, program: &str, given: &Settings, world: Option<u32>) -> Result<Job, JobError> {
    let vocabulary = Vocabulary::of_all(dialect.vocabularies());
    let missing = unresolved(given, |setting| vocabulary.meaning(&setting.name, &setting.values) == Meaning::Read);
    if !missing.is_empty() {
        return Err(JobError::Missing(missing));
    }
    let settings = dialect.in_megatrons_names(given);
    let options = Options(&settings);
    let mut job = Job { reading: reading::read(&options, world)?, ..Job::default() };
    job.shape = shape::keys(&options, &job.reading, program)?;
    job.further = further::settings(&options, &job.reading);
    job.sort(&vocabulary, given, "--");
    job.not_modelled.extend(further::groups(&options, &job.reading));
    if job.reading.dp > Some(1) && !options.flag("overlap-grad-reduce") && job.reading.zero < Some(2) {
        let why = "gradients are exchanged next to the backward, which takes --overlap-grad-reduce; the job does not have it, so more of \
                   the exchange is exposed";
        job.assumed.push(why.to_string());
    }
    job.share(options.number("num-distributed-optimizer-instances")?);
    dialect.complete(&options, &mut job)?;
    if dialect.is_megatrons() {
        job.refused.extend(parser::refused(&vocabulary, given));
        job.refused.extend(parser::invalid(given, &job.reading));
    }
    Ok(job)
}
