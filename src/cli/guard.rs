//! What evaluating a schedule file may take of this machine: time and memory, watched from outside the language.

use crate::dsl::Budget;
use crate::experiment::free_memory_bytes;
use crate::resolve::{Error, Files, Host, Watch};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest evaluation of a schedule file.
const EVALUATION_LIMIT: Duration = Duration::from_secs(60);

/// A host that reads files, uses all cores, and stops what takes too much of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Guarded;

impl Host for Guarded {
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<String>> {
        Files.read(path, limit)
    }

    /// Refuses what would not fit in this machine's free memory; where that is unknown, everything passes.
    fn admit(&self, ops: u64) -> Result<(), Error> {
        const BYTES_PER_OP: u64 = 40; // op, upstream, order, start, end, and slack
        let needed = ops.saturating_mul(BYTES_PER_OP);
        match free_memory_bytes() {
            Some(free) if needed > free => Err(Error::TooLarge { ops, needed_gib: needed >> 30, free_gib: free >> 30 }),
            _ => Ok(()),
        }
    }

    fn watch(&self, file: &str, budget: Budget, bytes: u64) -> Watch {
        Box::new(Guard::start(file, budget, bytes))
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        Files.each(count, work);
    }
}

/// Ends the process where a schedule file is evaluated beyond its budget within one built-in call, which the language's
/// own limits see only afterwards.
struct Guard {
    done: Arc<AtomicBool>,
}

impl Guard {
    /// Watches from now until the guard is dropped. The schedule itself may take `schedule_bytes` besides.
    fn start(file: &str, budget: Budget, schedule_bytes: u64) -> Guard {
        let done = Arc::new(AtomicBool::new(false));
        let (watched, file) = (done.clone(), file.to_string());
        let (begin, before) = (Instant::now(), resident_bytes());
        std::thread::spawn(move || {
            while !watched.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                let used = resident_bytes().saturating_sub(before);
                let what = if used > (2 * budget.bytes as u64).saturating_add(schedule_bytes) {
                    format!("the budget is {} bytes of memory for the language's values", budget.bytes)
                } else if begin.elapsed() > EVALUATION_LIMIT {
                    format!("the budget is {} s for evaluating it", EVALUATION_LIMIT.as_secs())
                } else {
                    continue;
                };
                if !watched.swap(true, Ordering::SeqCst) {
                    super::output::tell(&format!("error: {file} was stopped: {what}"));
                    std::process::exit(3);
                }
            }
        });
        Guard { done }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
    }
}

/// Memory of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
