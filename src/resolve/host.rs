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
    /// The text of a file (or a pipe, to its end) of at most `limit` bytes; `None` where it is longer.
    ///
    /// # Errors
    /// It is not there, may not be read, is a folder or no text.
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

    /// Watches the evaluation of the schedule file called `file`, whose schedule may have `ops`, until what is given back is
    /// dropped. The language itself counts calls, loop turns and most of its values' memory; what one built-in function does
    /// before it returns is for the watch to end: comparing lists that hold one another, powers of whole numbers, texts of any
    /// length. Without one, evaluate files of strangers in a process of their own.
    fn watch(&self, file: &str, budget: Budget, ops: u64) -> Watch {
        let _ = (file, budget, ops);
        Box::new(())
    }

    /// Does pieces of work 0 to `count` - 1, side by side where that is possible.
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }
}
