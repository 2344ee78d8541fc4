//! A number that only grows and that a thread, of this process or another, can wait for: spin briefly, then park.

use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a parked thread looks whether everything was called off.
const PARK: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Everything was called off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run was called off")]
pub struct Aborted;

/// What whoever waits goes by.
pub trait Patience {
    /// How long to spin before parking.
    fn spin(&self) -> Duration;

    /// Whether everything was called off.
    fn is_aborted(&self) -> bool;
}

/// The signal, as it lies in an arena. All zeros is a signal of value 0.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Signal {
    value: AtomicU64,
    /// Grows whenever the value did while somebody was parked: what the parked ones sleep on.
    bell: AtomicU32,
    parked: AtomicU32,
}

impl Signal {
    /// Raises the value to `value`, after everything that the caller wrote before.
    pub fn raise(&self, value: u64) {
        self.value.fetch_max(value, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) > 0 {
            self.bell.fetch_add(1, Ordering::SeqCst);
            let _ = futex::wake(&self.bell, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// The value.
    pub fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Waits until the value is `value` or more.
    pub fn wait(&self, value: u64, watch: &impl Patience) -> Result<(), Aborted> {
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
            // Not a private futex: other processes ring the bell too.
            let _ = futex::wait(&self.bell, futex::Flags::empty(), bell, Some(&PARK));
        };
        self.parked.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Waits until the value is `value` or more without ever parking: for moments when all are to go on at once.
    pub fn spin(&self, value: u64, watch: &impl Patience) -> Result<(), Aborted> {
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
