//! A monotonic number that threads of this and other processes can wait for: they spin briefly, then park.

use super::atomic::{AtomicU32, AtomicU64, Ordering, park, pause, spin_for, wake_all};
use std::time::Duration;

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
            wake_all(&self.bell);
        }
    }

    pub fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Waits until the value is at least `value`.
    pub fn wait(&self, value: u64, watch: &impl WaitPolicy) -> Result<(), Aborted> {
        let reached = || self.value() >= value;
        if reached() || spin_for(watch.spin(), reached) {
            return Ok(());
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
            park(&self.bell, bell);
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
            spins = spins.saturating_add(1);
            pause(spins);
        }
        Ok(())
    }
}
