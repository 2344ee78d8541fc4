//! Who is where: each device notes what it does, so that a hang can be named and ended.

use crate::graph::TaskGraph;
use std::fmt::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

/// What one device does.
#[derive(Debug, Default)]
struct Status {
    /// Ops done in this step.
    done: AtomicU64,
    /// Since when it waits, in ns of the watch's clock plus one; 0 while it does not wait.
    waits_since: AtomicU64,
}

/// Shared by all threads of a session.
#[derive(Debug)]
pub struct Watch {
    /// How long a waiting thread spins before it parks.
    pub spin: Duration,
    epoch: Instant,
    aborted: AtomicBool,
    devices: Vec<Status>,
}

impl Watch {
    /// A watch over `devices` devices.
    pub fn new(devices: u32, spin: Duration) -> Watch {
        let devices = (0..devices).map(|_| Status::default()).collect();
        Watch { spin, epoch: Instant::now(), aborted: AtomicBool::new(false), devices }
    }

    /// Nanoseconds on the one clock of all devices.
    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Calls everything off.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
    }

    /// Whether everything was called off.
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Notes that `device` has done `done` ops of its program.
    pub fn note_done(&self, device: u32, done: usize) {
        self.devices[device as usize].done.store(done as u64, Ordering::Relaxed);
    }

    /// Notes that `device` begins or ends to wait.
    pub fn note_wait(&self, device: u32, waits: bool) {
        let since = if waits { self.now_ns() + 1 } else { 0 };
        self.devices[device as usize].waits_since.store(since, Ordering::Relaxed);
    }

    /// Longest time that a device has been waiting.
    pub fn longest_wait(&self) -> Duration {
        let now = self.now_ns();
        let waits = self.devices.iter().map(|d| d.waits_since.load(Ordering::Relaxed));
        let longest = waits.filter(|&since| since > 0).map(|since| (now + 1).saturating_sub(since)).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    /// Each device's last op done, what it waits for, and on whom.
    pub fn report(&self, graph: &TaskGraph) -> String {
        let mut text = String::new();
        for (device, status) in self.devices.iter().enumerate() {
            let range = graph.schedule().range(device as u32);
            let done = status.done.load(Ordering::Relaxed) as usize;
            let last = done.checked_sub(1).map_or("nothing".to_string(), |n| graph.op(range.start + n).to_string());
            let _ = write!(text, "  device {device}: last op done {last}");
            let waits = status.waits_since.load(Ordering::Relaxed) > 0;
            let next = Some(range.start + done).filter(|next| range.contains(next));
            let _ = match next {
                Some(next) if waits => {
                    let waited = self.now_ns().saturating_sub(status.waits_since.load(Ordering::Relaxed));
                    let awaited = awaited(graph, next);
                    writeln!(text, ", {} waits for {awaited} since {} s", graph.op(next), waited / 1_000_000_000)
                }
                Some(next) => writeln!(text, ", in or before {}", graph.op(next)),
                None => writeln!(text, ", its pipeline part is complete"),
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
