//! The program's own files of shared-memory communication, compiled with another `atomic.rs`: a model checker (shuttle) tries
//! interleavings of their operations. With the feature `threads` they run on threads as they are, for ThreadSanitizer.
//!
//! `ranks`, `exec::watch` and `exec::shared` are small versions of the program's, without processes, graph and progress reports.

#![allow(dead_code, reason = "the program uses more of these files")]

// The program's files name these crates; here their modules are the ones below.
extern crate self as pipesim_schedule;
extern crate self as pipesim_train;

/// The program's module, as far as it communicates.
pub mod exec {
    #[path = "../../../../src/exec/arena.rs"]
    pub mod arena;
    #[cfg(not(feature = "threads"))]
    pub mod atomic;
    #[cfg(feature = "threads")]
    #[path = "seen.rs"]
    pub mod atomic;
    #[path = "../../../../src/exec/collective.rs"]
    pub mod collective;
    #[path = "../../../../src/exec/heap.rs"]
    pub mod heap;
    #[path = "../../../../src/exec/piece.rs"]
    pub mod piece;
    #[path = "../../../../src/exec/reductions.rs"]
    pub mod reductions;
    pub mod shared;
    #[path = "../../../../src/exec/signal.rs"]
    pub mod signal;
    #[path = "../../../../src/exec/spanning.rs"]
    pub mod spanning;
    pub mod watch;
}

#[path = "../../../src/train/compute/collective.rs"]
pub mod compute;
#[path = "../../../src/schedule/mesh.rs"]
pub mod mesh;
pub mod ranks;

/// Threads and channels: the model checker's, or the system's.
#[cfg(not(feature = "threads"))]
pub mod sync {
    pub use shuttle::sync::mpsc;
    pub use shuttle::thread;
}
#[cfg(feature = "threads")]
pub mod sync {
    pub use std::thread;

    /// A channel whose order ThreadSanitizer sees: it does not see the locks of the standard library, which is not instrumented.
    pub mod mpsc {
        use std::collections::VecDeque;
        use std::sync::atomic::{AtomicU64, Ordering};
        use std::sync::{Arc, Mutex};

        struct Queue<T> {
            /// Changed at the begin and end of every access.
            order: AtomicU64,
            values: Mutex<VecDeque<T>>,
        }

        pub struct Sender<T>(Arc<Queue<T>>);
        pub struct Receiver<T>(Arc<Queue<T>>);

        pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
            let queue = Arc::new(Queue { order: AtomicU64::new(0), values: Mutex::new(VecDeque::new()) });
            (Sender(queue.clone()), Receiver(queue))
        }

        impl<T> Queue<T> {
            fn access<R>(&self, access: impl FnOnce(&mut VecDeque<T>) -> R) -> Result<R, ()> {
                let mut values = self.values.lock().map_err(drop)?;
                self.order.fetch_add(1, Ordering::SeqCst);
                let result = access(&mut values);
                self.order.fetch_add(1, Ordering::SeqCst);
                Ok(result)
            }
        }

        impl<T> Clone for Sender<T> {
            fn clone(&self) -> Sender<T> {
                Sender(self.0.clone())
            }
        }

        impl<T> Sender<T> {
            pub fn send(&self, value: T) -> Result<(), ()> {
                self.0.access(|values| values.push_back(value))
            }
        }

        impl<T> Receiver<T> {
            pub fn recv(&self) -> Result<T, ()> {
                loop {
                    if let Some(value) = self.0.access(VecDeque::pop_front)? {
                        return Ok(value);
                    }
                    std::thread::yield_now();
                }
            }
        }
    }
}
