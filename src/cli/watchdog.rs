//! Limits on evaluating a schedule file: processor time and memory, enforced from outside the language.
//!
//! The language counts calls, loop turns and most of its values itself, but sees what one built-in function takes only after it returns.
//! A thread therefore watches the process, the allocator counts, and either ends the process. In a browser the page does so.

use super::allocator;
use super::terminal::eprint;
use pipesim_language::Budget;
use rustix::time::{ClockId, clock_gettime};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Processor time for evaluating a file. Wall-clock time is not limited: the machine may be busy with something else.
const CPU_TIME: Duration = Duration::from_secs(5);
/// Further time and memory per op of the schedule.
const CPU_TIME_PER_OP: Duration = Duration::from_nanos(500);
const BYTES_PER_OP: u64 = 96;
/// Memory besides the language's values: the text, its syntax tree, the stack.
const EXTRA_BYTES: u64 = 256 << 20;

/// Ends the process with exit code 3 when evaluating `file` takes too much; stops watching when dropped.
pub struct Watchdog {
    done: Arc<AtomicBool>,
}

impl Watchdog {
    pub fn start(file: &str, budget: Budget, ops: u64) -> Watchdog {
        let bytes = (budget.bytes as u64).saturating_add(EXTRA_BYTES).saturating_add(ops.saturating_mul(BYTES_PER_OP));
        let time = CPU_TIME.saturating_add(CPU_TIME_PER_OP.saturating_mul(u32::try_from(ops).unwrap_or(u32::MAX)));
        let (most_bytes, latest) = (resident_bytes().saturating_add(bytes), cpu_time().saturating_add(time));
        let done = Arc::new(AtomicBool::new(false));
        let watched = done.clone();
        let start = format!("error: {file} was stopped: evaluating it took more than its budget of");
        let too_much = format!(
            "{start} {} MiB of memory; make fewer and smaller values: n * word repeats a word without copying it",
            bytes >> 20
        );
        let reason = too_much.clone();
        let watch = move || {
            while !watched.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                let exceeded = if resident_bytes() > most_bytes {
                    too_much.clone()
                } else if cpu_time() > latest {
                    format!(
                        "{start} {:.0} s of computing; make its loops and values smaller: n * word repeats a word without a loop",
                        time.as_secs_f64()
                    )
                } else {
                    continue;
                };
                if !watched.swap(true, Ordering::SeqCst) {
                    allocator::unlimited();
                    eprint(&exceeded);
                    exit(3);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("watchdog".to_string()).spawn(watch) {
            eprint(&format!(
                "error: cannot start the thread that limits the evaluation of a schedule: {error}; raise ulimit -u"
            ));
            exit(5);
        }
        allocator::limit(bytes, reason);
        Watchdog { done }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        allocator::unlimited();
    }
}

/// Returns the processor time that this process has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the resident memory of this process, 0 if the system does not report it.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
