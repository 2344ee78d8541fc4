//! A monotonic number that threads of this and other processes can wait for: they spin briefly, then park.

use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval at which a parked thread checks whether the run was aborted.
const PARK: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The run was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run was aborted")]
pub struct Aborted;

/// How a thread waits.
pub trait WaitPolicy {
    /// How long to spin before parking.
    fn spin(&self) -> Duration;

    /// Whether to give up, because the run was aborted.
    fn is_aborted(&self) -> bool;
}

/// A signal in shared memory. All zeros is a signal of value 0.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Signal {
    value: AtomicU64,
    /// The futex that parked threads sleep on; incremented when the value grows while a thread is parked.
    bell: AtomicU32,
    parked: AtomicU32,
}

impl Signal {
    /// Raises the value to at least `value`, after everything that the caller wrote before.
    pub fn raise(&self, value: u64) {
        self.value.fetch_max(value, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) > 0 {
            self.bell.fetch_add(1, Ordering::SeqCst);
            let _ = futex::wake(&self.bell, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    pub fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Waits until the value is at least `value`.
    pub fn wait(&self, value: u64, watch: &impl WaitPolicy) -> Result<(), Aborted> {
        let reached = || self.value() >= value;
        if reached() {
            return Ok(());
        }
        let spin_end = Instant::now() + watch.spin();
        while Instant::now() < spin_end {
            for _ in 0..64 {
                if reached() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        self.parked.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            let bell = self.bell.load(Ordering::SeqCst);
            if reached() {
                break Ok(());
            }
            if watch.is_aborted() {
                break Err(Aborted);
            }
            // Not a private futex: other processes raise the signal too.
            let _ = futex::wait(&self.bell, futex::Flags::empty(), bell, Some(&PARK));
        };
        self.parked.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// As [`Signal::wait`], without parking, so that all waiting threads continue at the same time.
    pub fn spin(&self, value: u64, watch: &impl WaitPolicy) -> Result<(), Aborted> {
        let mut spins = 0_u32;
        while self.value() < value {
            if watch.is_aborted() {
                return Err(Aborted);
            }
            spins += 1;
            if spins < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        Ok(())
    }
}
