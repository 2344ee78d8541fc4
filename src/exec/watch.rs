//! Progress of devices, recorded so that a hang can be reported and ended; and the threads that they run on.

use super::arena::{ArenaLayout, Region};
use super::atomic::{AtomicU64, Ordering};
use super::heap::Heap;
use super::signal::{Aborted, WaitPolicy};
use memmap2::MmapOptions;
use pipesim_schedule::deadlock::{Awaited, Party, Wait};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When a session of this process was first aborted.
static CALLED_OFF: OnceLock<Instant> = OnceLock::new();

/// Returns the time since a session of this process was first aborted, if one was.
pub fn called_off_since() -> Option<Duration> {
    CALLED_OFF.get().map(Instant::elapsed)
}

/// A fault to inject for tests: `die@1:5` or `hang@1:5` (device 1, before its op number 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub device: u32,
    /// Number of the op in the device's program.
    pub number: usize,
    /// Hang instead of panicking.
    pub hangs: bool,
}

impl Fault {
    /// Panics, or hangs until the run is aborted, if the fault is for this op of this device.
    pub(super) fn strike(&self, device: u32, number: usize, watch: &Watch) -> anyhow::Result<()> {
        if (self.device, self.number) != (device, number) {
            return Ok(());
        }
        if !self.hangs {
            panic!("injected fault at op number {number}");
        }
        while !watch.is_aborted() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(Aborted.into())
    }
}

/// A text that is no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected die@DEVICE:NUMBER or hang@DEVICE:NUMBER, found '{0}'")]
pub struct NoFault(String);

impl FromStr for Fault {
    type Err = NoFault;

    fn from_str(text: &str) -> Result<Fault, NoFault> {
        let parse = || {
            let (what, place) = text.split_once('@')?;
            let (device, number) = place.split_once(':')?;
            let hangs = match what {
                "die" => false,
                "hang" => true,
                _ => return None,
            };
            Some(Fault { device: device.parse().ok()?, number: number.parse().ok()?, hangs })
        };
        parse().ok_or_else(|| NoFault(text.to_string()))
    }
}

/// Regions of a worker's progress.
#[derive(Clone, Copy, Debug)]
struct WatchStatus {
    /// Number of ops done in this step.
    done: Region,
    /// Start of its wait in ns of the ranks' clock, plus one; 0 while it does not wait.
    waits_since: Region,
}

/// Regions of a watch in an arena.
#[derive(Debug)]
pub struct Statuses {
    aborted: Region,
    workers: Vec<WatchStatus>,
}

impl Statuses {
    /// Reserves memory for `workers` workers.
    pub fn new(layout: &mut ArenaLayout, workers: u32) -> Statuses {
        let aborted = layout.signal();
        let status = |_| WatchStatus { done: layout.word(), waits_since: layout.word() };
        Statuses { aborted, workers: (0..workers).map(status).collect() }
    }
}

/// Progress of all workers of a session, across processes.
#[derive(Debug)]
pub struct Watch {
    spin: Duration,
    heap: Arc<Heap>,
    statuses: Statuses,
}

impl WaitPolicy for Watch {
    fn spin(&self) -> Duration {
        self.spin
    }

    fn is_aborted(&self) -> bool {
        self.heap.signal(self.statuses.aborted).value() != 0
    }
}

impl Watch {
    /// Creates a watch with its state in `heap`.
    pub fn new(heap: Arc<Heap>, statuses: Statuses, spin: Duration) -> Watch {
        Watch { spin, heap, statuses }
    }

    fn word(&self, region: Region) -> &AtomicU64 {
        self.heap.arena().word(region)
    }

    /// Returns the time in nanoseconds on the clock that all devices share.
    pub fn now_ns(&self) -> u64 {
        self.heap.ranks().now_ns()
    }

    /// Aborts the run: all waits end.
    pub fn abort(&self) {
        CALLED_OFF.get_or_init(Instant::now);
        self.heap.raise_everywhere(self.statuses.aborted, 1);
    }

    /// Records that `worker` has done `done` ops of its program.
    pub fn note_done(&self, worker: u32, done: usize) {
        self.word(self.statuses.workers[worker as usize].done).store(done as u64, Ordering::Relaxed);
    }

    /// Records that `worker` starts or stops waiting.
    pub fn note_wait(&self, worker: u32, waits: bool) {
        let since = if waits { self.now_ns() + 1 } else { 0 };
        self.word(self.statuses.workers[worker as usize].waits_since).store(since, Ordering::Relaxed);
    }

    /// Returns how long a worker has been waiting, if it waits.
    fn waited(&self, status: &WatchStatus) -> Option<Duration> {
        let since = self.word(status.waits_since).load(Ordering::Relaxed);
        (since > 0).then(|| Duration::from_nanos((self.now_ns() + 1).saturating_sub(since)))
    }

    /// Returns the longest time that a worker has been waiting.
    pub fn longest_wait(&self) -> Duration {
        self.statuses.workers.iter().filter_map(|status| self.waited(status)).max().unwrap_or_default()
    }

    /// Describes for each worker its next op, what it waits for, and on which device of its copy of the pipeline.
    pub fn report(&self, graph: &TaskGraph, mesh: Mesh) -> String {
        let of_copy = |copy: u32| {
            let report = self.report_of(graph, |device| mesh.worker_of(device, copy));
            if mesh.is_single() { report } else { format!("  {}:\n{report}", mesh.copy_name(copy)) }
        };
        (0..mesh.copies()).map(of_copy).collect()
    }

    /// Describes the workers of one copy of the pipeline.
    fn report_of(&self, graph: &TaskGraph, worker: impl Fn(u32) -> u32) -> String {
        let schedule = graph.schedule();
        let status = |device: u32| &self.statuses.workers[worker(device) as usize];
        let done = |device: u32| self.word(status(device).done).load(Ordering::Relaxed) as usize;
        let stands = |device: u32| {
            let (number, program) = (done(device), schedule.program(device));
            Party::Device { device, number, op: program.get(number).copied() }
        };
        let has_ended = |op: usize| op - schedule.range(graph.device_of(op)).start < done(graph.device_of(op));
        let wait = |device: u32| {
            let seconds = self.waited(status(device)).map(|waited| waited.as_secs());
            let next = Some(schedule.range(device).start + done(device)).filter(|_| seconds.is_some());
            // In an overlapped pair either input may be missing.
            let pair = next.filter(|&next| next < schedule.range(device).end).map(|next| (next, graph.pair(next)));
            let ops = pair.map_or(0..0, |(next, pair)| next..pair.map_or(next, |(_, last)| last) + 1);
            let makers: Vec<usize> = ops.filter_map(|op| graph.transfer(op)).collect();
            let (awaited, on) = match makers.iter().find(|&&maker| !has_ended(maker)).or(makers.first()) {
                Some(&maker) if has_ended(maker) => (Awaited::Transfer(graph.op(maker)), graph.device_of(maker)),
                Some(&maker) => (Awaited::Op(graph.op(maker)), graph.device_of(maker)),
                None => (Awaited::Nothing, device),
            };
            Wait { party: stands(device), awaited, on: stands(on), seconds }
        };
        (0..schedule.devices()).map(|device| format!("  {}\n", wait(device))).collect()
    }
}

/// Memory of a thread: its stack, and what the system adds.
const STACK_BYTES: usize = 2 << 20;
const ROOM_BYTES: usize = 2 << 20;

/// The system has too few resources for the devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Shortage(pub String);

/// Starts thread number `number` of `count`.
///
/// # Errors
/// The system does not allow more threads.
pub fn start_thread(
    name: String,
    number: usize,
    count: usize,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Shortage> {
    // A thread without memory for its signal stack aborts the process, so check for memory first.
    let room = MmapOptions::new().len(STACK_BYTES + ROOM_BYTES).map_anon();
    let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
    let started: io::Result<_> = room.map(drop).and_then(|()| thread.spawn(body));
    started.map_err(|error| {
        Shortage(format!(
            "expected {count} threads, one per device, found {number}: {error}; use fewer `stages`, one `schedule` at a time, or \
             raise the limits (ulimit -u, ulimit -v, the control group's pids.max)"
        ))
    })
}

/// Joins the threads within `limit`; threads that have not ended by then are detached.
pub fn join_within(threads: impl IntoIterator<Item = JoinHandle<()>>, limit: Duration) {
    let end = Instant::now() + limit;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
        if thread.is_finished() {
            let _ = thread.join(); // its panic was already reported
        }
    }
}
