//! TODO
use crate::{JobError, Launch, Sources};
pub fn launch(_: &Sources) -> Result<Launch, JobError> {
    unimplemented!()
}
pub fn words(_: &str) -> Result<Vec<String>, JobError> {
    unimplemented!()
}
