//! Ranks: the processes of one run, each with some of its devices.
//!
//! Every rank runs the same program with the same arguments and exchanges what it measures, so all ranks compute the same orders,
//! costs and figures; only rank 0 prints. Collective calls of all ranks ([`Ranks::exchange`], [`Ranks::gather`]) are never made inside
//! a step; collective calls of the workers' groups (`Ranks::all_gather`) are. When a rank dies, the others end with an error that names it.
//!
//! A process runs alone, or [`launch`] starts several and joins them through a socket of this machine, or `mpirun` or Slurm starts
//! them and they join through MPI (feature `mpi`).

mod clock;
mod collective;
#[cfg(feature = "mpi")]
mod gathers;
mod hub;
mod launch;
mod lost;
#[cfg(feature = "mpi")]
mod mpi;
mod role;
mod socket;
mod started;
mod stop;

use pipesim_schedule::mesh::Mesh;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use clock::{Alignment, ROUNDS as CLOCK_ROUNDS};
pub(crate) use collective::AllGather;
pub use collective::Communicators;
pub use launch::{Ended, launch};
pub use lost::{Lost, Patience, RanksError};
pub use role::{Role, refuse_ranks, role};
pub use socket::Frame;
pub use started::started;
pub use stop::{Stop, signal_name};

pub const HAS_MPI: bool = cfg!(feature = "mpi");

/// Practically forever: how long ranks wait for one that is alive and may take any time.
pub const ENDLESS: Duration = Duration::from_secs(1_000_000);

/// A put with signal to a rank on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub heap: u64,
    /// Offset of the data in the heap, in bytes.
    pub offset: u64,
    /// Offset of the signal in the heap, in bytes.
    pub signal: u64,
    /// New value of the signal.
    pub value: u64,
    pub data: Vec<u8>,
}

#[cfg(feature = "mpi")]
impl Packet {
    const HEADER: usize = 4 * size_of::<u64>();

    pub fn to_bytes(&self) -> Vec<u8> {
        let words = [self.heap, self.offset, self.signal, self.value];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(&self.data);
        bytes
    }

    /// Deserializes a packet; `None` if there are too few bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Packet> {
        let (header, data) = bytes.split_at_checked(Packet::HEADER)?;
        let mut words = header.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let mut next = || words.next().unwrap_or_default();
        Some(Packet { heap: next(), offset: next(), signal: next(), value: next(), data: data.to_vec() })
    }
}

type Receiver = Arc<dyn Fn(&Packet) + Send + Sync>;

/// Receivers of packets by heap. Packets for heaps that do not exist yet are kept.
#[derive(Default)]
struct Inbox {
    receivers: BTreeMap<u64, Receiver>,
    early: Vec<Packet>,
}

/// Who receives the bytes of a collective call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// All ranks.
    All,
    /// Rank 0; the others receive nothing from anyone.
    First,
}

/// The connection between ranks.
trait Wire: Send + Sync {
    /// Returns the bytes of every rank, by rank, to the `audience`; all ranks must name the same. Fails when `patience` ends.
    fn exchange(&self, bytes: Vec<u8>, audience: Audience, patience: Patience) -> Result<Vec<Vec<u8>>, Lost>;

    /// Sends a packet. Packets of one sender arrive in order.
    fn send(&self, _rank: u32, _packet: Packet) {
        unreachable!("ranks of one machine share memory");
    }

    /// Creates communicators of these ranks, with the next numbers. All ranks must call this together.
    fn connect(&self, _groups: Vec<Vec<u32>>) {
        unreachable!("ranks of one machine share memory");
    }

    /// Begins a collective call.
    fn all_gather(&self, _call: AllGather) {
        unreachable!("ranks of one machine share memory");
    }

    /// Returns the rank that died or hangs, if any.
    fn lost(&self) -> Option<Lost>;

    /// Tells the others that this rank ends, with an error or without.
    fn leave(&self, error: Option<&str>, code: u8);

    /// Tells the launcher that this rank has measured its first step.
    fn measured(&self) {}

    fn is_mpi(&self) -> bool {
        false
    }

    /// Whether rank 0 says that it is alive, now or soon, after this rank was told to end.
    fn first_lives(&self) -> bool {
        true
    }
}

/// The connection of a process that runs alone.
struct SingleProcess;

impl Wire for SingleProcess {
    fn exchange(&self, bytes: Vec<u8>, _audience: Audience, _patience: Patience) -> Result<Vec<Vec<u8>>, Lost> {
        Ok(vec![bytes])
    }

    fn lost(&self) -> Option<Lost> {
        None
    }

    fn leave(&self, _error: Option<&str>, _code: u8) {}
}

/// This process as one of the processes of the run.
pub struct Ranks {
    rank: u32,
    size: u32,
    wire: Box<dyn Wire>,
    machines: Vec<String>,
    /// Process id of each rank, on its machine.
    processes: Vec<u32>,
    /// Treat every rank as if it ran on a machine of its own.
    apart: bool,
    clock: Alignment,
    inbox: Arc<Mutex<Inbox>>,
    heaps: Mutex<u64>,
    communicators: Communicators,
    patience: Patience,
    stop: Arc<Stop>,
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

impl Ranks {
    /// Returns a single process that runs all devices.
    pub fn alone() -> Arc<Ranks> {
        let alone =
            Ranks::new(0, 1, Box::new(SingleProcess), Arc::default(), false, Patience::of(None), Arc::default());
        Arc::new(alone.unwrap_or_else(|_| unreachable!("nobody else")))
    }

    fn new(
        rank: u32,
        size: u32,
        wire: Box<dyn Wire>,
        inbox: Arc<Mutex<Inbox>>,
        apart: bool,
        patience: Patience,
        stop: Arc<Stop>,
    ) -> Result<Ranks, Lost> {
        let machines = wire.exchange(machine().into_bytes(), Audience::All, patience)?;
        let machines: Vec<String> = machines.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let process = std::process::id().to_le_bytes().to_vec();
        let processes = wire.exchange(process, Audience::All, patience)?;
        let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u32::from_le_bytes);
        let processes = processes.iter().map(number).collect();
        let one_machine = machines.iter().all(|machine| *machine == machines[0]);
        let clock = Alignment::align(rank, size, one_machine, |bytes| wire.exchange(bytes, Audience::All, patience))?;
        let (heaps, communicators) = (Mutex::new(0), Communicators::default());
        Ok(Ranks { rank, size, wire, machines, processes, apart, clock, inbox, heaps, communicators, patience, stop })
    }

    /// Number of this process, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Describes the workers of a mesh of `devices` pipeline devices, and the ranks or threads that run them.
    pub fn workers_in_words(&self, mesh: Mesh, devices: u32) -> String {
        let on = if self.size > 1 { format!("{} ranks", self.size) } else { "threads".to_string() };
        format!("{} on {on}", mesh.in_words(devices))
    }

    /// Whether this rank prints and writes reports: rank 0, or rank 1 if rank 0 is dead or, under MPI, hangs.
    pub fn speaks(&self) -> bool {
        let is_first_dead = |lost: Lost| match lost.dead {
            Some(rank) => rank == 0,
            None => self.machines[0] != self.machines[self.rank as usize] && !self.wire.first_lives(),
        };
        self.rank == 0 || (self.rank == 1 && self.lost().is_some_and(is_first_dead))
    }

    /// Returns the devices of `devices` that `rank` runs: consecutive ones; the first ranks run one more if they do not divide evenly.
    pub fn devices_of(&self, rank: u32, devices: u32) -> Range<u32> {
        let (each, more) = (devices / self.size, devices % self.size);
        let start = |rank: u32| rank * each + rank.min(more);
        start(rank)..start(rank + 1)
    }

    /// Returns the devices of `devices` that this rank runs.
    pub fn devices(&self, devices: u32) -> Range<u32> {
        self.devices_of(self.rank, devices)
    }

    /// Returns the devices of `devices` that the ranks of this machine run, in the order of ranks.
    pub fn devices_here(&self, devices: u32) -> Vec<u32> {
        let here = (0..self.size).filter(|&rank| self.machines[rank as usize] == self.machines[self.rank as usize]);
        here.flat_map(|rank| self.devices_of(rank, devices)).collect()
    }

    pub fn rank_of(&self, device: u32, devices: u32) -> u32 {
        (0..self.size).find(|&rank| self.devices_of(rank, devices).contains(&device)).unwrap_or(0)
    }

    pub fn shares_memory_with(&self, rank: u32) -> bool {
        rank == self.rank || self.share_memory()
    }

    /// Whether all ranks run on one machine and share memory; otherwise none do.
    pub fn share_memory(&self) -> bool {
        !self.apart && self.machines.iter().all(|machine| *machine == self.machines[0])
    }

    /// Whether an MPI launcher started the ranks.
    pub fn under_mpi(&self) -> bool {
        self.wire.is_mpi()
    }

    /// Returns the bytes of every rank, by rank. All ranks must call this together, in the same order.
    pub fn exchange(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Lost> {
        self.exchange_within(bytes, self.patience.most)
    }

    /// Returns the bytes of every rank, by rank, on rank 0, and empty ones on the others. All ranks must call this together; they
    /// wait for each other as long as they are alive.
    pub fn gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Lost> {
        let patience = Patience { most: ENDLESS, ..self.patience };
        self.wire.exchange(bytes, Audience::First, patience).map_err(|lost| self.name(lost))
    }

    /// Returns the bytes of rank 0. All ranks must call this together; they wait for rank 0 as long as it is alive, whatever it does
    /// before.
    pub fn follow(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Lost> {
        let bytes = if self.rank == 0 { bytes } else { Vec::new() };
        Ok(self.exchange_within(bytes, ENDLESS)?.swap_remove(0))
    }

    /// As [`Ranks::exchange`], but waits at most `most` for ranks that are alive.
    pub fn exchange_within(&self, bytes: Vec<u8>, most: Duration) -> Result<Vec<Vec<u8>>, Lost> {
        let patience = Patience { most, ..self.patience };
        self.wire.exchange(bytes, Audience::All, patience).map_err(|lost| self.name(lost))
    }

    /// The request to end the run early.
    pub fn stop(&self) -> &Arc<Stop> {
        &self.stop
    }

    pub fn note_measured(&self) {
        if self.stop.note_measured() {
            self.wire.measured();
        }
    }

    /// Returns the rank that died or hangs, if any.
    pub fn lost(&self) -> Option<Lost> {
        self.wire.lost().map(|lost| self.name(lost))
    }

    /// Names the rank that died or is stopped where `lost` does not.
    fn name(&self, lost: Lost) -> Lost {
        if lost.dead.is_some() || !self.under_mpi() {
            return lost;
        }
        // MPI tells nobody which rank died, or which one it waits for; the ranks of this machine can be seen.
        let here =
            |&rank: &usize| rank != self.rank as usize && self.machines[rank] == self.machines[self.rank as usize];
        let find = |is_so: fn(char) -> bool| {
            (0..self.processes.len()).filter(here).find(|&rank| is_so(state(self.processes[rank])))
        };
        let dead = |rank: usize| Lost::dead(rank as u32, &format!("(process {}) died", self.processes[rank]));
        let stopped = |rank: usize| Lost {
            dead: Some(rank as u32),
            ..Lost::silent(&format!("rank {rank}"), self.patience.silence)
        };
        let seen =
            find(|state| matches!(state, 'Z' | 'X')).map(dead).or_else(|| find(|state| state == 'T').map(stopped));
        seen.unwrap_or(lost)
    }

    /// Tells the others that this rank ends, with the text and exit code of its error, if any.
    pub fn leave(&self, error: Option<&str>, code: u8) {
        self.wire.leave(error, code);
    }

    /// Nanoseconds on rank 0's clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// The alignment of this rank's clock with rank 0's.
    pub fn alignment(&self) -> &Alignment {
        &self.clock
    }

    /// Returns the number of the next heap: the same in all ranks, as they create heaps in the same order.
    pub(crate) fn next_heap(&self) -> u64 {
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        *heaps += 1;
        *heaps
    }

    /// Sends a packet to a rank on another machine.
    pub(crate) fn send(&self, rank: u32, packet: Packet) {
        self.wire.send(rank, packet);
    }

    /// Delivers packets for `heap` to `receiver` from now on.
    pub(crate) fn deliver(&self, heap: u64, receiver: impl Fn(&Packet) + Send + Sync + 'static) {
        let mut inbox = lock(&self.inbox);
        let (here, others) = std::mem::take(&mut inbox.early).into_iter().partition(|packet| packet.heap == heap);
        let here: Vec<Packet> = here;
        inbox.early = others;
        here.iter().for_each(&receiver);
        inbox.receivers.insert(heap, Arc::new(receiver));
    }

    /// Ends the delivery of packets for `heap`.
    pub(crate) fn forget(&self, heap: u64) {
        lock(&self.inbox).receivers.remove(&heap);
    }

    /// Returns a communicator for each of `groups` of ranks; equal groups have different ones. Later calls return the same ones again.
    /// All ranks must call this together, with the same groups.
    pub(crate) fn communicators(&self, groups: &[Vec<u32>]) -> Result<Vec<usize>, Lost> {
        let (numbers, new) = self.communicators.number(groups);
        if !new.is_empty() {
            // MPI blocks until all ranks of a communicator create it, so they meet first, where one that is gone is noticed.
            self.exchange_within(Vec::new(), ENDLESS)?;
            self.wire.connect(new);
        }
        Ok(numbers)
    }

    /// Begins a collective call of the ranks of a communicator.
    pub(crate) fn all_gather(&self, call: AllGather) {
        self.wire.all_gather(call);
    }
}

fn lock(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Delivers a packet, or keeps it until its heap exists.
#[cfg(feature = "mpi")]
fn take_in(inbox: &Mutex<Inbox>, packet: Packet) {
    let mut inbox = lock(inbox);
    match inbox.receivers.get(&packet.heap) {
        Some(receiver) => receiver(&packet),
        None => inbox.early.push(packet),
    }
}

/// Returns the state of a process of this machine, as in `/proc/PID/stat`: `T` if it is stopped, `Z` or `X` if it has ended, even if
/// nobody has asked for its exit code yet.
fn state(process: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok();
    stat.map_or('X', |stat| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('X'))
}

/// Returns a name that all processes of one running machine have in common, and no others. Containers on one machine do not share
/// memory, and their host names differ.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    format!("{} {}", read("/proc/sys/kernel/random/boot_id"), read("/proc/sys/kernel/hostname"))
}
