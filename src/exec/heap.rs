//! One-sided puts with a signal, through shared memory or to another machine, and collective calls.

use super::arena::{Arena, ArenaLayout, Region};
use super::signal::Signal;
use super::spanning::{GroupList, Part, Spanning};
use crate::ranks::{AllGather, Lost, Packet, Ranks};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of a part that one call between ranks passes at most; longer parts take several.
const PASS: usize = 1 << 22;

/// The part of a member on another rank: its index among the parts of all ranks, its region, and the signal to raise with its value.
type Other = (usize, Region, Option<(Region, u64)>);

/// The arena of this process, and a connection to the arenas of other ranks.
#[derive(Debug)]
pub struct Heap {
    arena: Arc<Arena>,
    ranks: Arc<Ranks>,
    /// By worker: the rank that runs it, if that rank has its own arena.
    remote: Vec<Option<u32>>,
    /// By group of workers that make collective calls: how it spans ranks.
    groups: Vec<Option<Spanning>>,
    /// Distinguishes packets of this heap from packets of other heaps.
    number: u64,
}

impl Heap {
    /// Creates the heap of `workers` workers and their `groups` on `arena`, whose layout is the same in every process. All ranks must
    /// call this together.
    ///
    /// # Errors
    /// A rank is gone.
    pub fn new(
        arena: Arc<Arena>,
        ranks: Arc<Ranks>,
        workers: u32,
        groups: GroupList,
        number: u64,
    ) -> Result<Heap, Lost> {
        let of_worker = |worker| Some(ranks.rank_of(worker, workers)).filter(|&rank| !ranks.shares_memory_with(rank));
        let remote = (0..workers).map(of_worker).collect();
        let receiver = arena.clone();
        ranks.deliver(number, move |packet| apply(&receiver, packet));
        let groups = groups.connect(&ranks, workers)?;
        Ok(Heap { arena, ranks, remote, groups, number })
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub fn ranks(&self) -> &Arc<Ranks> {
        &self.ranks
    }

    /// Returns the signal at `region` in this process's memory.
    pub fn signal(&self, region: Region) -> &Signal {
        self.arena.signal(region)
    }

    /// Writes `data` to `region` in the memory of worker `to`, then raises the signal there.
    ///
    /// # Safety
    /// Nobody reads or writes the region until the signal is raised.
    pub unsafe fn put(&self, to: u32, region: Region, data: &[f32], signal: Region, value: u64) {
        match self.remote[to as usize] {
            None => {
                // SAFETY: guaranteed by the caller.
                unsafe { self.arena.data_mut(region) }.copy_from_slice(data);
                self.arena.signal(signal).raise(value);
            }
            Some(rank) => self.send(rank, region, bytemuck::cast_slice(data), signal, value),
        }
    }

    /// Passes a member's part of a call to the other members of group number `group`. `parts` has the parts of all members, in the same
    /// regions in every process. All members make the same calls in the same order, each after it has seen all signals of the last.
    ///
    /// # Safety
    /// Nobody writes the member's part before all others have read it, and nobody reads another's before its signal is raised.
    pub unsafe fn publish(&self, group: usize, member: usize, parts: &[Part], value: u64) {
        self.arena.signal(parts[member].arrived).raise(value);
        let Some(group) = self.groups[group].as_ref().filter(|group| group.note_put()) else { return };
        let bytes = parts[member].data.bytes();
        for start in (0..bytes.max(1)).step_by(PASS) {
            let count = PASS.min(bytes - start);
            let place = |member: usize| parts[member].data.slice(start, count);
            let own = group.own().iter().map(|&member| place(member)).collect();
            let is_last = start + count == bytes;
            let other = |(number, member): (usize, usize)| {
                (number, place(member), is_last.then_some((parts[member].arrived, value)))
            };
            // SAFETY: guaranteed by the caller: no member puts its next part before all parts have arrived, here and elsewhere.
            unsafe { self.all_gather(group, count / size_of::<f32>(), own, group.others().map(other).collect()) };
        }
    }

    /// Begins a call between ranks: reads this rank's `own` parts, writes the parts of the others, and raises their signals.
    ///
    /// # Safety
    /// Nobody writes its own parts, or accesses the others, until the others are there.
    unsafe fn all_gather(&self, group: &Spanning, count: usize, own: Vec<Region>, others: Vec<Other>) {
        let (from, into) = (self.arena.clone(), self.arena.clone());
        let fill = move |numbers: &mut [f32]| {
            for (number, place) in own.into_iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                numbers[number * count..][..count].copy_from_slice(unsafe { from.data(place) });
            }
        };
        let take = move |numbers: &[f32]| {
            for (number, place, signal) in others {
                // SAFETY: guaranteed by the caller.
                unsafe { into.data_mut(place) }.copy_from_slice(&numbers[number * count..][..count]);
                if let Some((signal, value)) = signal {
                    into.signal(signal).raise(value);
                }
            }
        };
        let (communicator, length) = (group.communicator, group.parts() * count);
        self.ranks.all_gather(AllGather { communicator, length, fill: Box::new(fill), take: Box::new(take) });
    }

    /// Whether `worker` runs on a rank with memory of its own.
    pub fn is_remote(&self, worker: u32) -> bool {
        self.remote[worker as usize].is_some()
    }

    /// Raises the signal in the memory of worker `to`.
    pub fn raise(&self, to: u32, signal: Region, value: u64) {
        match self.remote[to as usize] {
            None => self.arena.signal(signal).raise(value),
            Some(rank) => self.send(rank, signal.first(0), &[], signal, value),
        }
    }

    /// Raises the signal in every process.
    pub fn raise_everywhere(&self, signal: Region, value: u64) {
        self.arena.signal(signal).raise(value);
        self.remote_ranks().for_each(|rank| self.send(rank, signal.first(0), &[], signal, value));
    }

    /// Returns the ranks that have their own arena.
    fn remote_ranks(&self) -> impl Iterator<Item = u32> {
        self.remote.iter().flatten().copied().collect::<BTreeSet<u32>>().into_iter()
    }

    fn send(&self, rank: u32, region: Region, data: &[u8], signal: Region, value: u64) {
        let packet = Packet {
            heap: self.number,
            offset: region.offset() as u64,
            signal: signal.offset() as u64,
            value,
            data: data.to_vec(),
        };
        self.ranks.send(rank, packet);
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        self.ranks.forget(self.number);
    }
}

/// Applies a packet from another machine.
fn apply(arena: &Arena, packet: &Packet) {
    let region = Region::new(packet.offset as usize, packet.data.len());
    if !packet.data.is_empty() {
        // SAFETY: guaranteed by the sender, as in `Heap::put`.
        let target = unsafe { arena.data_mut(region) };
        bytemuck::cast_slice_mut(target).copy_from_slice(&packet.data);
    }
    arena.signal(Region::new(packet.signal as usize, size_of::<Signal>())).raise(packet.value);
}

/// A buffer in the heap that one device fills and another reads repeatedly.
#[derive(Clone, Copy, Debug)]
pub struct HostBuffer {
    pub data: Region,
    /// Signal: number of messages that have arrived.
    pub arrived: Region,
    /// Signal: number of messages that were read.
    pub read: Region,
}

impl HostBuffer {
    /// Reserves a buffer for messages of `len` float32 numbers.
    pub fn new(layout: &mut ArenaLayout, len: usize) -> HostBuffer {
        HostBuffer { data: layout.region(len * size_of::<f32>()), arrived: layout.signal(), read: layout.signal() }
    }

    /// Puts a message to device `to` and raises its signal to `value`. The caller must have seen that the previous message was read.
    pub fn put(&self, heap: &Heap, to: u32, data: &[f32], value: u64) {
        // SAFETY: the previous message was read, and this one has not arrived.
        unsafe { heap.put(to, self.data.first(size_of_val(data)), data, self.arrived, value) };
    }

    /// Calls `use_it` with the message. The caller must have seen that it arrived, and must not have released it.
    pub fn take(&self, heap: &Heap, use_it: impl FnOnce(&[f32])) {
        // SAFETY: it has arrived, and the next one waits for its release.
        use_it(unsafe { heap.arena().data(self.data) });
    }
}
