//! One-sided puts with a signal, through shared memory or to another machine.

use super::arena::{Arena, ArenaLayout, Region};
use super::atomic::Ordering;
use super::signal::Signal;
use crate::ranks::{Packet, Ranks};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The arena of this process, and a connection to those of other ranks.
#[derive(Debug)]
pub struct Heap {
    arena: Arc<Arena>,
    ranks: Arc<Ranks>,
    /// By worker: the rank that runs it, if that rank has its own arena.
    remote: Vec<Option<u32>>,
    /// Distinguishes packets of this heap from those of others.
    number: u64,
}

impl Heap {
    /// Creates the heap of `workers` workers on `arena`, whose layout is the same in every process.
    pub fn new(arena: Arc<Arena>, ranks: Arc<Ranks>, workers: u32, number: u64) -> Heap {
        let of_worker = |worker| Some(ranks.rank_of(worker, workers)).filter(|&rank| !ranks.shares_memory_with(rank));
        let remote = (0..workers).map(of_worker).collect();
        let receiver = arena.clone();
        ranks.deliver(number, move |packet| apply(&receiver, packet));
        Heap { arena, ranks, remote, number }
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

    /// As [`Heap::put`], to several workers, for data that is already in `region` of this process's memory.
    ///
    /// # Safety
    /// Nobody writes the region until the signal is raised.
    pub unsafe fn publish(&self, to: impl Iterator<Item = u32>, region: Region, signal: Region, value: u64) {
        let ranks: BTreeSet<Option<u32>> = to.map(|worker| self.remote[worker as usize]).collect();
        for rank in ranks {
            match rank {
                None => self.arena.signal(signal).raise(value),
                Some(rank) => {
                    // SAFETY: guaranteed by the caller.
                    let data = unsafe { self.arena.data(region) };
                    self.send(rank, region, bytemuck::cast_slice(data), signal, value);
                }
            }
        }
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

    /// Stores a word in every process, visible to waiters after a later raise of `signal`.
    pub fn store_everywhere(&self, word: Region, value: u64, signal: Region) {
        self.arena.word(word).store(value, Ordering::SeqCst);
        self.remote_ranks().for_each(|rank| self.send(rank, word, &value.to_ne_bytes(), signal, 0));
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
