//! What resolving a schedule needs from the machine. The core itself uses no files, threads or clock.

use super::Error;
use crate::dsl::Budget;
use std::any::Any;
use std::fmt::Debug;
use std::io;

/// Watches an evaluation until it is dropped.
pub type Watch = Box<dyn Any>;

/// Services of the machine. The defaults do nothing.
pub trait Host: Debug + Sync {
    /// Returns the text of a file (or a pipe, to its end); `None` if it exceeds `limit` bytes.
    ///
    /// # Errors
    /// The file does not exist, may not be read, is a folder, or is not text.
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        let _ = (path, limit);
        Err(io::Error::new(io::ErrorKind::Unsupported, "files are not read here; give the name of a schedule"))
    }

    /// Rejects a step that does not fit into memory.
    ///
    /// # Errors
    /// The step does not fit.
    fn admit(&self, ops: u64) -> Result<(), Error> {
        let _ = ops;
        Ok(())
    }

    /// Watches the evaluation of the schedule file `file`, whose schedule may have `ops` ops, until the returned value is
    /// dropped. The language itself limits calls, loop iterations and most memory; the watch has to end single built-in calls
    /// that take too long: comparisons of self-referencing lists, powers of integers, operations on long strings. Without a
    /// watch, evaluate untrusted files in a separate process.
    fn watch(&self, file: &str, budget: Budget, ops: u64) -> Watch {
        let _ = (file, budget, ops);
        Box::new(())
    }

    /// Runs tasks 0 to `count` - 1, in parallel if possible.
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }
}
