//! Who is where: each device notes what it does, so that a hang can be named and ended.

use super::arena::{Dealer, Region};
use super::heap::Heap;
use super::signal::{Aborted, Patience};
use crate::deadlock::{Awaited, Party, Wait};
use crate::graph::TaskGraph;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// When a session of this process was first called off.
static CALLED_OFF: OnceLock<Instant> = OnceLock::new();

/// For how long there has been a session of this process that was called off; none where there was none.
pub fn called_off_since() -> Option<Duration> {
    CALLED_OFF.get().map(Instant::elapsed)
}

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

/// Why a text is no fault.
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
    spin: Duration,
    heap: Arc<Heap>,
    statuses: Statuses,
}

impl Patience for Watch {
    fn spin(&self) -> Duration {
        self.spin
    }

    fn is_aborted(&self) -> bool {
        self.heap.signal(self.statuses.aborted).value() != 0
    }
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
        CALLED_OFF.get_or_init(Instant::now);
        self.heap.raise_everywhere(self.statuses.aborted, 1);
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

    /// Where each device stands, what it waits for, and on whom.
    pub fn report(&self, graph: &TaskGraph) -> String {
        let schedule = graph.schedule();
        let done =
            |device: u32| self.word(self.statuses.devices[device as usize].done).load(Ordering::Relaxed) as usize;
        let stands = |device: u32| {
            let (number, program) = (done(device), schedule.program(device));
            Party::Device { device, number, op: program.get(number).copied() }
        };
        let has_ended = |op: usize| op - schedule.range(graph.device_of(op)).start < done(graph.device_of(op));
        let wait = |device: u32| {
            let seconds = self.waited(&self.statuses.devices[device as usize]).map(|waited| waited.as_secs());
            let next = Some(schedule.range(device).start + done(device)).filter(|_| seconds.is_some());
            // Of an overlapped pair either input may be what is missing.
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
