//! Atomics in shared memory, and waiting for them. The protocols of this module need nothing else from the processor and the system.
//!
//! `tests/interleavings` replaces this file with one that passes every operation to a model checker.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::futex;
use std::time::Duration;

/// Longest time that a thread sleeps in [`park`].
const PARK: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Sleeps until [`wake_all`] is called, if `bell` still has this value; only for a short time, so that the caller can check other
/// conditions.
pub fn park(bell: &AtomicU32, value: u32) {
    // Not a private futex: other processes wake it, too.
    let _ = futex::wait(bell, futex::Flags::empty(), value, Some(&PARK));
}

/// Wakes all threads that sleep in [`park`].
pub fn wake_all(bell: &AtomicU32) {
    let _ = futex::wake(bell, futex::Flags::empty(), u32::MAX >> 1);
}

/// Waits briefly without sleeping, for the `number`-th time in a row.
pub fn pause(number: u32) {
    if number < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Calls `is_reached` repeatedly for this time, until it is true. Returns whether it became true.
pub fn spin_for(time: Duration, is_reached: impl Fn() -> bool) -> bool {
    let begin = std::time::Instant::now();
    while begin.elapsed() < time {
        for _ in 0..64 {
            if is_reached() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    false
}
