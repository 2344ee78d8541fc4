//! The program's own `atomic.rs` for ThreadSanitizer, which does not see `fetch_max`: here it is a loop of `compare_exchange`, as
//! x86-64 has it.

#[path = "../../../../src/exec/atomic.rs"]
mod real;

pub use real::{AtomicU32, Ordering, park, pause, spin_for, wake_all};

#[derive(Debug, Default)]
#[repr(transparent)]
pub struct AtomicU64(real::AtomicU64);

impl AtomicU64 {
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        let raise = |old: u64| Some(old.max(value));
        self.0.fetch_update(order, Ordering::SeqCst, raise).unwrap_or_else(|old| old)
    }
}
