//! Atomics of shared memory, and how threads wait for them: all that the protocols of this module need of the processor and the system.
//!
//! `tests/interleavings` has another version of this file, which hands every operation to a model checker.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::futex;
use std::time::Duration;

/// Longest time that a thread sleeps in [`park`].
const PARK: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Sleeps until [`wake_all`] is called, if `bell` still has this value; a short time at most, so that the caller can look at
/// something else.
pub fn park(bell: &AtomicU32, value: u32) {
    // Not a private futex: other processes wake it, too.
    let _ = futex::wait(bell, futex::Flags::empty(), value, Some(&PARK));
}

/// Wakes all threads that sleep in [`park`].
pub fn wake_all(bell: &AtomicU32) {
    let _ = futex::wake(bell, futex::Flags::empty(), u32::MAX >> 1);
}

/// Waits a moment without sleeping, for the `number`-th time.
pub fn pause(number: u32) {
    if number < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Calls `is_reached` over and over for this time, until it is true. Returns whether it became true.
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
