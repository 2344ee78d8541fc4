//! What resolving needs of the machine, handed in by the caller; the core itself has no files, threads or clock.

use super::Error;
use crate::dsl::Budget;
use std::any::Any;
use std::fmt::Debug;
use std::io;

/// Watches over an evaluation until it is dropped.
pub type Watch = Box<dyn Any>;

/// What the machine does for whoever resolves. What is left out is done without.
pub trait Host: Debug + Sync {
    /// The text of a plain file of at most `limit` bytes; `None` where it is none, or longer.
    ///
    /// # Errors
    /// It is not there, may not be read, is no text.
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        let _ = (path, limit);
        Err(io::Error::new(io::ErrorKind::Unsupported, "files are not read here; give the name of a schedule"))
    }

    /// Refuses a step of so many ops where they do not fit into memory.
    ///
    /// # Errors
    /// It does not.
    fn admit(&self, ops: u64) -> Result<(), Error> {
        let _ = ops;
        Ok(())
    }

    /// Watches the evaluation of the schedule file called `file`, whose ops may take `bytes` besides the budget, until what is
    /// given back is dropped.
    fn watch(&self, file: &str, budget: Budget, bytes: u64) -> Watch {
        let _ = (file, budget, bytes);
        Box::new(())
    }

    /// Does pieces of work 0 to `count` - 1, side by side where that is possible.
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }
}
