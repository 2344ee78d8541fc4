//! What evaluating a schedule file may take of this machine: time and memory, watched from outside the language.

use super::memory;
use super::output::tell;
use crate::dsl::Budget;
use crate::experiment::free_memory_bytes;
use crate::resolve::{Error, Files, Host, Watch};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest evaluation of a schedule file, in time of the processor: a machine that is busy with something else counts nothing.
/// In time of the clock it may take twelve times as long.
const LONGEST: Duration = Duration::from_secs(5);

/// What each op of the schedule may take besides.
const OP_TIME: Duration = Duration::from_nanos(500);
const OP_BYTES: u64 = 96;

/// What the program itself may take besides the language's values: their text, the tree that it is read into, the stack.
const BYTES_BESIDE: u64 = 256 << 20;

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

    fn watch(&self, file: &str, budget: Budget, ops: u64) -> Watch {
        Box::new(Guard::start(file, budget, ops))
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
    /// Watches from now until the guard is dropped. The schedule may have `ops`.
    fn start(file: &str, budget: Budget, ops: u64) -> Guard {
        let done = Arc::new(AtomicBool::new(false));
        let bytes = (budget.bytes as u64).saturating_add(BYTES_BESIDE).saturating_add(ops.saturating_mul(OP_BYTES));
        let time = LONGEST.saturating_add(OP_TIME.saturating_mul(u32::try_from(ops).unwrap_or(u32::MAX)));
        let memory = format!(
            "error: {file} was stopped: evaluating it took more than its budget of {} MiB of memory; make fewer and smaller values: \
             n * word repeats a word without copying it",
            bytes >> 20
        );
        let limits =
            Limits { bytes: resident_bytes().saturating_add(bytes), time, cpu: cpu_time(), begin: Instant::now() };
        let (watched, told) = (done.clone(), memory.clone());
        let file = file.to_string();
        let watch = move || {
            while !watched.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                let what = if resident_bytes() > limits.bytes {
                    told.clone()
                } else if limits.late() {
                    format!(
                        "error: {file} was stopped: evaluating it took more than its budget of {:.0} s of computing; make its loops and \
                         values smaller: n * word repeats a word without a loop",
                        limits.time.as_secs_f64()
                    )
                } else {
                    continue;
                };
                if !watched.swap(true, Ordering::SeqCst) {
                    memory::unlimited();
                    tell(&what);
                    exit(3);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("watch".to_string()).spawn(watch) {
            tell(&format!(
                "error: expected a thread that watches a schedule being evaluated, found none: {error}; raise ulimit -u"
            ));
            exit(5);
        }
        memory::limit(bytes, memory);
        Guard { done }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        memory::unlimited();
    }
}

/// How far an evaluation may go.
struct Limits {
    /// Memory of this process.
    bytes: u64,
    /// Time of the processor.
    time: Duration,
    /// That time when it began.
    cpu: Duration,
    /// When it began.
    begin: Instant,
}

impl Limits {
    fn late(&self) -> bool {
        cpu_time().saturating_sub(self.cpu) > self.time || self.begin.elapsed() > self.time.saturating_mul(12)
    }
}

/// How long this process has computed.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Memory of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
