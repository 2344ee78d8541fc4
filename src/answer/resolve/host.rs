//! What resolving a schedule needs from the machine. The core itself uses no files, threads or clock.

use super::Error;
use pipesim_language::Budget;
use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

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

/// Returns what tasks 0 to `count` - 1 return, in their order; they run in parallel if possible.
pub fn results<T: Send>(host: &dyn Host, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let found: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    host.each(count, &|number| {
        let one = work(number);
        found.lock().unwrap_or_else(PoisonError::into_inner).push((number, one));
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, one)| one).collect()
}

/// Decodes UTF-8 and strips a byte order mark.
fn text(bytes: Vec<u8>) -> io::Result<String> {
    let other = if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) { " (UTF-16?)" } else { "" };
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let row = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let what = format!("found invalid UTF-8 on line {row}{other}; save it as UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, what)
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
}

/// Returns whether it is a device other than a terminal, such as `/dev/zero` or a disk.
#[cfg(unix)]
fn is_device(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    const TERMINALS: std::ops::RangeInclusive<u64> = 136..=143; // major numbers of Unix98 terminals on Linux
    let kind = metadata.file_type();
    kind.is_block_device() || (kind.is_char_device() && !TERMINALS.contains(&(metadata.rdev() >> 8 & 0xfff)))
}

#[cfg(not(unix))]
fn is_device(_: &std::fs::Metadata) -> bool {
    false
}

/// A [`Host`] that reads files and uses all cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files;

impl Host for Files {
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        let metadata = std::fs::metadata(path)?;
        if metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "found a folder; name a file in it"));
        }
        if is_device(&metadata) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "found a device, which may never end; name a file",
            ));
        }
        if metadata.is_file() && metadata.len() > limit {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?; // a pipe has no length
        if bytes.len() as u64 > limit { Ok(None) } else { text(bytes).map(Some) }
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let some = || {
            while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&number| number < count) {
                work(number);
            }
        };
        // asking the system takes longer than some tasks
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
        std::thread::scope(|scope| {
            // If the system refuses threads, the existing ones do all the work.
            (1..cores.min(count)).for_each(|_| drop(std::thread::Builder::new().spawn_scoped(scope, some)));
            some();
        });
    }
}
