//! TODO
use crate::{Job, JobError, Launch, Settings, Sources};
pub fn read(_: &Launch, _: &Sources) -> Result<Job, JobError> {
    unimplemented!()
}
pub fn of_arguments(_: &Settings, _: Option<u32>, _: &Sources) -> Result<Job, JobError> {
    unimplemented!()
}
pub mod yaml {
    use crate::{Job, JobError, Sources};
    pub fn read(_: &Sources) -> Result<Option<Job>, JobError> {
        Ok(None)
    }
}
