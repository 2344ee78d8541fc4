//! What schedules may take of this machine.

#[cfg(unix)]
use super::watchdog::Watchdog;
#[cfg(unix)]
use pipesim_answer::resolve::Watch;
use pipesim_answer::resolve::{Error, Files, Host};
#[cfg(unix)]
use pipesim_language::Budget;
use pipesim_system::free_memory_bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Texts of the files that were read. A command compiles a schedule many times and must see one text of it, even if someone saves the
/// file meanwhile, or if it is a pipe.
static READ: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// A host that reads files, uses all cores, and ends the process when a schedule file exceeds its budget.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox;

impl Host for Sandbox {
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match read.get(path) {
            Some(text) => Some(text.clone()),
            None => Files.read(path, limit)?,
        };
        if let Some(text) = &text {
            read.entry(path.to_string()).or_insert_with(|| text.clone());
        }
        Ok(text.filter(|text| text.len() as u64 <= limit))
    }

    /// Rejects a step that does not fit in this machine's free memory; where that is unknown, everything passes.
    fn admit(&self, ops: u64) -> Result<(), Error> {
        const BYTES_PER_OP: u64 = 40; // op, upstream, order, start, end, and slack
        let needed = ops.saturating_mul(BYTES_PER_OP);
        match free_memory_bytes() {
            Some(free) if needed > free => Err(Error::TooLarge { ops, needed_gib: needed >> 30, free_gib: free >> 30 }),
            _ => Ok(()),
        }
    }

    #[cfg(unix)]
    fn watch(&self, file: &str, budget: Budget, ops: u64) -> Watch {
        Box::new(Watchdog::start(file, budget, ops))
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        Files.each(count, work);
    }
}
