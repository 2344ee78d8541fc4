//! A [`Host`] that has files and threads, where the feature `pictures` brings them; the core alone has neither.

use super::Host;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files are read, work is done on all cores, nothing is watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files;

impl Host for Files {
    #[cfg(feature = "pictures")]
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        let metadata = std::fs::metadata(path)?;
        let fits = metadata.is_file() && metadata.len() <= limit;
        if fits { std::fs::read_to_string(path).map(Some) } else { Ok(None) }
    }

    #[cfg(feature = "pictures")]
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let some = || {
            while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&number| number < count) {
                work(number);
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            (1..cores.min(count)).for_each(|_| drop(scope.spawn(some)));
            some();
        });
    }
}
