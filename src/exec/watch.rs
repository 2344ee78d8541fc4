//! Who is where: each device notes what it does, so that a hang can be named and ended.

use super::arena::{Dealer, Region};
use super::heap::Heap;
use crate::graph::TaskGraph;
use std::fmt::Write;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Everything was called off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run was called off")]
pub struct Aborted;

/// A fault to inject, for tests of what happens then: `die@1:5` or `hang@1:5` (device 1, before its op number 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The device.
    pub device: u32,
    /// The op's number in its program.
    pub number: usize,
    /// Hang instead of dying.
    pub hangs: bool,
}

impl Fault {
    /// Strikes if it is meant for op number `number` of `device`: dies, or hangs until everything is called off.
    ///
    /// # Errors
    /// It hung, and everything was called off.
    pub fn strike(&self, device: u32, number: usize, watch: &Watch) -> anyhow::Result<()> {
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

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
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
        parse().ok_or_else(|| format!("expected die@DEVICE:NUMBER or hang@DEVICE:NUMBER, found '{text}'"))
    }
}

/// Where a device's state lies in the arena.
#[derive(Clone, Copy, Debug)]
struct Status {
    /// Ops done in this step.
    done: Region,
    /// Since when it waits, in ns of the ranks' clock plus one; 0 while it does not wait.
    waits_since: Region,
}

/// The places of a watch in an arena.
#[derive(Debug)]
pub struct Statuses {
    aborted: Region,
    devices: Vec<Status>,
}

impl Statuses {
    /// Places for `devices` devices.
    pub fn new(dealer: &mut Dealer, devices: u32) -> Statuses {
        let aborted = dealer.signal();
        let status = |_| Status { done: dealer.word(), waits_since: dealer.word() };
        Statuses { aborted, devices: (0..devices).map(status).collect() }
    }
}

/// Shared by all devices of a session, in whatever process of this machine.
#[derive(Debug)]
pub struct Watch {
    /// How long a waiting thread spins before it parks.
    pub spin: Duration,
    heap: Arc<Heap>,
    statuses: Statuses,
}

impl Watch {
    /// A watch whose state lies in `heap`.
    pub fn new(heap: Arc<Heap>, statuses: Statuses, spin: Duration) -> Watch {
        Watch { spin, heap, statuses }
    }

    fn word(&self, region: Region) -> &AtomicU64 {
        self.heap.arena().word(region)
    }

    /// Nanoseconds on the one clock of all devices.
    pub fn now_ns(&self) -> u64 {
        self.heap.ranks().now_ns()
    }

    /// Calls everything off.
    pub fn abort(&self) {
        self.heap.raise_everywhere(self.statuses.aborted, 1);
    }

    /// Whether everything was called off.
    pub fn is_aborted(&self) -> bool {
        self.heap.signal(self.statuses.aborted).value() != 0
    }

    /// Notes that `device` has done `done` ops of its program.
    pub fn note_done(&self, device: u32, done: usize) {
        self.word(self.statuses.devices[device as usize].done).store(done as u64, Ordering::Relaxed);
    }

    /// Notes that `device` begins or ends to wait.
    pub fn note_wait(&self, device: u32, waits: bool) {
        let since = if waits { self.now_ns() + 1 } else { 0 };
        self.word(self.statuses.devices[device as usize].waits_since).store(since, Ordering::Relaxed);
    }

    /// How long a device has been waiting; zero while it does not.
    fn waited(&self, status: &Status) -> Option<Duration> {
        let since = self.word(status.waits_since).load(Ordering::Relaxed);
        (since > 0).then(|| Duration::from_nanos((self.now_ns() + 1).saturating_sub(since)))
    }

    /// Longest time that a device has been waiting.
    pub fn longest_wait(&self) -> Duration {
        self.statuses.devices.iter().filter_map(|status| self.waited(status)).max().unwrap_or_default()
    }

    /// Each device's last op done, what it waits for, and on whom.
    pub fn report(&self, graph: &TaskGraph) -> String {
        let mut text = String::new();
        for (device, status) in self.statuses.devices.iter().enumerate() {
            let range = graph.schedule().range(device as u32);
            let done = self.word(status.done).load(Ordering::Relaxed) as usize;
            let last = done.checked_sub(1).map_or("nothing".to_string(), |n| graph.op(range.start + n).to_string());
            let _ = write!(text, "  device {device}: last op done {last}");
            let next = Some(range.start + done).filter(|next| range.contains(next));
            let _ = match (next, self.waited(status)) {
                (Some(next), Some(waited)) => {
                    let awaited = awaited(graph, next);
                    writeln!(text, ", {} waits for {awaited} since {} s", graph.op(next), waited.as_secs())
                }
                (Some(next), None) => writeln!(text, ", in or before {}", graph.op(next)),
                (None, _) => writeln!(text, ", its pipeline part is complete"),
            };
        }
        text
    }
}

/// What op number `index` may be waiting for, and on whom; of an overlapped pair either input.
fn awaited(graph: &TaskGraph, index: usize) -> String {
    let (first, last) = graph.pair(index).unwrap_or((index, index));
    let inputs = (first.max(index)..=last).filter_map(|op| graph.transfer(op));
    let names: Vec<String> = inputs.map(|up| format!("{} on device {}", graph.op(up), graph.device_of(up))).collect();
    if names.is_empty() { "its turn".to_string() } else { names.join(" or ") }
}
