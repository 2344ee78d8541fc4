//! TODO
use crate::{Job, JobError, Launch, Sources};
pub fn read(_: &Sources) -> Result<Option<Job>, JobError> {
    Ok(None)
}
pub fn of_launch(_: &Launch, _: &Sources) -> Result<Option<Job>, JobError> {
    Ok(None)
}
