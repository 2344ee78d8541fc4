//! What schedules may take of this machine.

#[cfg(unix)]
use super::watchdog::Watchdog;
use crate::resolve::{Error, Files, Host};
use crate::system::free_memory_bytes;
#[cfg(unix)]
use crate::{dsl::Budget, resolve::Watch};
use std::io;

/// A host that reads files, uses all cores, and ends the process when a schedule file exceeds its budget.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox;

impl Host for Sandbox {
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        Files.read(path, limit)
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
