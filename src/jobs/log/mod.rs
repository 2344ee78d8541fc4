//! TODO
use crate::{JobError, Measurement, Settings};
use std::io::BufRead;
pub struct Log {
    pub framework: Option<String>,
    pub settings: Settings,
    pub world: Option<u32>,
    pub measurement: Measurement,
}
pub fn is_log(_: &str) -> bool {
    false
}
pub fn read(_: &str, _: &mut dyn BufRead) -> Result<Log, JobError> {
    unimplemented!()
}
