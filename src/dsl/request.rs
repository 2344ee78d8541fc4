//! What is asked: a schedule file's text, the numbers that it is wanted for, and what evaluating it may use up.

use crate::legible::legible;
use std::collections::BTreeMap;

/// A schedule file, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleFile {
    /// The stem: what tables call it.
    pub name: String,
    /// What error messages call it.
    pub file: String,
    /// Its text.
    pub text: String,
}

impl ScheduleFile {
    /// A file that is no file: `text` under a name.
    pub fn from_text(name: &str, text: &str) -> ScheduleFile {
        ScheduleFile { name: name.to_string(), file: name.to_string(), text: text.to_string() }
    }
}

/// How much a schedule file may use up.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Calls and loop turns of the language. What happens within one built-in function is one.
    pub ticks: u64,
    /// Memory of the language's values, as the language itself counts it: whole numbers of any size are not in it, nor what a
    /// built-in function takes before it returns.
    pub bytes: usize,
    /// Ops of the whole schedule.
    pub ops: u64,
}

impl Budget {
    /// More ops than this cannot be numbered.
    pub const MAX_OPS: u64 = (1 << 31) - 1;
}

impl Default for Budget {
    /// 50 million ticks, 1 GiB, 2^31 - 1 ops.
    fn default() -> Budget {
        Budget { ticks: 50_000_000, bytes: 1 << 30, ops: Budget::MAX_OPS }
    }
}

/// What is asked of a schedule file.
#[derive(Clone, Debug)]
pub struct Request {
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// v, where the schedule leaves it open.
    pub chunks: Option<u32>,
    /// The schedule's own options, as `--set` gives them.
    pub options: BTreeMap<String, String>,
    /// What evaluating it may use up.
    pub budget: Budget,
}

/// Most virtual stages per device that can be asked for.
pub const MAX_CHUNKS: u32 = 1 << 20;

/// The virtual stages per device that the option v of a schedule asks for.
///
/// # Errors
/// No whole number from 1 to [`MAX_CHUNKS`].
pub fn chunks_asked(text: &str) -> Result<u32, Error> {
    let found = text.trim().parse().ok().filter(|v| (1..=MAX_CHUNKS).contains(v));
    found.ok_or_else(|| {
        Error::Usage(format!(
            "expected v, the virtual stages per device, to be a whole number from 1 to {MAX_CHUNKS}, found {text}; leave it out, or \
             write v=2"
        ))
    })
}

/// What of a request a schedule file has a use for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Names of its options.
    pub options: Vec<String>,
    /// Whether it leaves open how many stages a device has.
    pub chunks: bool,
}

/// Why there is no schedule.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request does not fit the file: an unknown option, chunks that the schedule does not leave open.
    #[error("{}", legible(.0))]
    Usage(String),
    /// The file is wrong, or exceeds a budget.
    #[error("{}", legible(.0))]
    Invalid(String),
    /// The file refuses these numbers; it may exist for others.
    #[error("{}", legible(.0))]
    Unfit(String),
    /// The machine grants no thread to evaluate a file on.
    #[error("{}", legible(.0))]
    Machine(String),
}

/// A file and what is asked of it.
pub(super) struct Asked<'a> {
    pub path: &'a ScheduleFile,
    pub request: &'a Request,
}

impl Asked<'_> {
    /// The numbers, for messages.
    pub fn numbers(&self) -> String {
        format!("p = {}, m = {}", self.request.devices, self.request.microbatches)
    }
}
