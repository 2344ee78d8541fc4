//! A number that only grows and that a thread can wait for: spin briefly, then park.

use super::watch::{Aborted, Watch};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a parked thread looks whether everything was called off.
const PARK: Duration = Duration::from_millis(20);

/// The signal.
#[derive(Debug, Default)]
pub struct Signal {
    value: AtomicU64,
    parked: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    /// Raises the value to `value`, after everything that the caller wrote before.
    pub fn raise(&self, value: u64) {
        self.value.fetch_max(value, Ordering::SeqCst);
        self.wake();
    }

    /// Adds one.
    pub fn increment(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.changed.notify_all();
        }
    }

    /// Waits until the value is `value` or more.
    ///
    /// # Errors
    /// The watch called everything off.
    pub fn wait(&self, value: u64, watch: &Watch) -> Result<(), Aborted> {
        let reached = || self.value.load(Ordering::SeqCst) >= value;
        if reached() {
            return Ok(());
        }
        let spin_end = Instant::now() + watch.spin;
        while Instant::now() < spin_end {
            for _ in 0..64 {
                if reached() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            if reached() {
                break Ok(());
            }
            if watch.is_aborted() {
                break Err(Aborted);
            }
            guard = self.changed.wait_timeout(guard, PARK).unwrap_or_else(PoisonError::into_inner).0;
        };
        self.parked.fetch_sub(1, Ordering::SeqCst);
        result
    }
}
