//! Threads for devices, as far as the system gives them.

use memmap2::MmapOptions;
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a thread takes at least: its stack, and room for what the system adds.
const STACK_BYTES: usize = 2 << 20;
const ROOM_BYTES: usize = 2 << 20;

/// The system does not give what devices need.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Shortage(pub String);

/// Starts thread number `number` of `count`, which has this name.
///
/// # Errors
/// The system gives no more.
pub fn start(
    name: String,
    number: usize,
    count: usize,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Shortage> {
    // A thread that finds no room for its signal stack aborts the process: there is to be room before it begins.
    let room = MmapOptions::new().len(STACK_BYTES + ROOM_BYTES).map_anon();
    let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
    let started: io::Result<_> = room.map(drop).and_then(|()| thread.spawn(body));
    started.map_err(|error| {
        Shortage(format!(
            "expected {count} threads, one for each device, the system gave {number}: {error}; ask for fewer --stages, for one \
             --schedule at a time, or raise its limits (ulimit -u, ulimit -v, the control group's pids.max)"
        ))
    })
}

/// Waits until the threads have ended, for `limit` at most; those that have not are left behind.
pub fn join_within(threads: impl IntoIterator<Item = JoinHandle<()>>, limit: Duration) {
    let end = Instant::now() + limit;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
        if thread.is_finished() {
            let _ = thread.join(); // its panic was told when it happened
        }
    }
}
