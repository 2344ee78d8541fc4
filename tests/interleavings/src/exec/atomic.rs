//! The model checker's version of `src/exec/atomic.rs`: before every operation on shared memory any other thread may run, and a
//! parked thread sleeps until it is woken, without the limit that hides a lost wake-up from users. Operations are sequentially
//! consistent; ThreadSanitizer (feature `threads`) looks at their orderings.

pub use std::sync::atomic::Ordering;

use shuttle::sync::atomic::AtomicU32 as Point;
use shuttle::sync::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic;
use std::time::Duration;

shuttle::lazy_static! {
    static ref POINT: Point = Point::new(0);
    /// By address of a bell: how often it was rung.
    static ref RUNG: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());
    static ref RING: Condvar = Condvar::new();
}

thread_local! {
    /// Whether parked threads may wake by themselves, as after the limit of a real one. A model runs on a single thread.
    pub static WAKES_BY_ITSELF: Cell<bool> = const { Cell::new(false) };
}

/// Lets any thread run.
pub fn switch() {
    POINT.load(Ordering::SeqCst);
}

macro_rules! atomic {
    ($name:ident, $number:ty) => {
        /// An atomic of the same size as the real one, in the same memory.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        #[allow(dead_code)]
        impl $name {
            pub fn load(&self, order: Ordering) -> $number {
                switch();
                self.0.load(order)
            }

            pub fn store(&self, value: $number, order: Ordering) {
                switch();
                self.0.store(value, order);
            }

            pub fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                switch();
                self.0.fetch_add(value, order)
            }

            pub fn fetch_sub(&self, value: $number, order: Ordering) -> $number {
                switch();
                self.0.fetch_sub(value, order)
            }

            pub fn fetch_max(&self, value: $number, order: Ordering) -> $number {
                switch();
                self.0.fetch_max(value, order)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

fn address(bell: &AtomicU32) -> usize {
    std::ptr::from_ref(bell).addr()
}

/// As the system's futex: looks at the value and goes to sleep in one step.
pub fn park(bell: &AtomicU32, value: u32) {
    switch();
    if WAKES_BY_ITSELF.get() {
        shuttle::thread::yield_now();
        return;
    }
    let mut rung = RUNG.lock().unwrap();
    if bell.0.load(Ordering::SeqCst) != value {
        return;
    }
    let count = |rung: &BTreeMap<usize, u64>| rung.get(&address(bell)).copied().unwrap_or(0);
    let before = count(&rung);
    while count(&rung) == before {
        rung = RING.wait(rung).unwrap();
    }
}

pub fn wake_all(bell: &AtomicU32) {
    *RUNG.lock().unwrap().entry(address(bell)).or_default() += 1;
    RING.notify_all();
}

pub fn pause(_number: u32) {
    shuttle::thread::yield_now();
}

/// Time does not pass in a model.
pub fn spin_for(_time: Duration, is_reached: impl Fn() -> bool) -> bool {
    is_reached()
}
