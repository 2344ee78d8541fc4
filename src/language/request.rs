//! Requests: the text of a schedule file, the numbers to compile it for, and the budget of its evaluation.

use pipesim_schedule::sanitize::sanitize;
use std::collections::BTreeMap;

/// A schedule file: its name, its path for messages, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleFile {
    /// The stem: its name in tables.
    pub name: String,
    /// Its name in error messages.
    pub file: String,
    /// In the schedule language.
    pub text: String,
}

impl ScheduleFile {
    /// Creates one from `text` under a name.
    pub fn from_text(name: &str, text: &str) -> ScheduleFile {
        ScheduleFile { name: name.to_string(), file: name.to_string(), text: text.to_string() }
    }
}

/// Limits of evaluating a schedule file.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Maximum number of calls and loop iterations; a built-in function counts as one.
    pub ticks: u64,
    /// Maximum memory of the language's values, as Starlark counts it: without big integers and the temporary memory of built-in
    /// functions.
    pub bytes: usize,
    /// Maximum number of ops of the schedule.
    pub ops: u64,
}

impl Budget {
    /// Largest number of ops that can be numbered.
    pub const MAX_OPS: u64 = (1 << 31) - 1;
}

impl Default for Budget {
    /// 50 million ticks, 1 GiB, 2^31 - 1 ops.
    fn default() -> Budget {
        Budget { ticks: 50_000_000, bytes: 1 << 30, ops: Budget::MAX_OPS }
    }
}

/// What to compile a schedule file for.
#[derive(Clone, Debug)]
pub struct Request {
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// v, if the schedule leaves it open.
    pub chunks: Option<u32>,
    /// The schedule's own options, as `--set` gives them.
    pub options: BTreeMap<String, String>,
    /// What evaluating it may take.
    pub budget: Budget,
}

/// Maximum number of virtual stages per device.
pub const MAX_CHUNKS: u32 = 1 << 20;

/// Parses the option v of a schedule: the virtual stages per device.
///
/// # Errors
/// Not a whole number from 1 to [`MAX_CHUNKS`].
pub fn chunks_asked(text: &str) -> Result<u32, Error> {
    let found = text.trim().parse().ok().filter(|v| (1..=MAX_CHUNKS).contains(v));
    found.ok_or_else(|| {
        Error::Usage(format!(
            "expected v, the virtual stages per device, to be a whole number from 1 to {MAX_CHUNKS}, found {text}; leave it out, or \
             write v=2"
        ))
    })
}

/// The parts of a request that a schedule file uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Names of its own options.
    pub options: Vec<String>,
    /// Whether it leaves the stages per device open.
    pub chunks: bool,
}

/// Why a schedule cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request that does not fit the file: an unknown option, or chunks that the schedule does not leave open.
    #[error("{}", sanitize(.0))]
    Usage(String),
    /// A wrong file, or one that exceeds its budget.
    #[error("{}", sanitize(.0))]
    Invalid(String),
    /// A file that rejects these numbers; the schedule may exist for others.
    #[error("{}", sanitize(.0))]
    Unsupported(String),
    /// No thread to evaluate a file on.
    #[error("{}", sanitize(.0))]
    Machine(String),
}

pub(super) struct Asked<'a> {
    pub path: &'a ScheduleFile,
    pub request: &'a Request,
}

impl Asked<'_> {
    pub fn numbers(&self) -> String {
        format!("p = {}, m = {}", self.request.devices, self.request.microbatches)
    }
}
