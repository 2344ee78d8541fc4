//! One-sided puts with a signal, whatever lies between two devices: the same memory, or another machine.

use super::arena::{Arena, Region};
use super::signal::Signal;
use crate::ranks::{Packet, Ranks};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The arena of this process, and the way to those of devices that do not share it.
#[derive(Debug)]
pub struct Heap {
    arena: Arc<Arena>,
    ranks: Arc<Ranks>,
    /// By device: the rank that runs it, where that rank has an arena of its own.
    remote: Vec<Option<u32>>,
    /// Tells the packets of this heap from those of others.
    number: u64,
}

impl Heap {
    /// The heap of `devices` devices on `arena`, whose layout is the same in every process; the `number`th of this run.
    pub fn new(arena: Arc<Arena>, ranks: Arc<Ranks>, devices: u32, number: u64) -> Heap {
        let of_device = |device| Some(ranks.rank_of(device, devices)).filter(|&rank| !ranks.shares_memory_with(rank));
        let remote = (0..devices).map(of_device).collect();
        let receiver = arena.clone();
        ranks.deliver(number, move |packet| apply(&receiver, packet));
        Heap { arena, ranks, remote, number }
    }

    /// This process's memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The processes that have it.
    pub fn ranks(&self) -> &Arc<Ranks> {
        &self.ranks
    }

    /// The signal at `region` in this process's memory.
    pub fn signal(&self, region: Region) -> &Signal {
        self.arena.signal(region)
    }

    /// Writes `data` to `region` where device `to` reads it, then raises the signal there.
    ///
    /// # Safety
    /// Nobody reads or writes the region until the signal is raised.
    pub unsafe fn put(&self, to: u32, region: Region, data: &[f32], signal: Region, value: u64) {
        match self.remote[to as usize] {
            None => {
                // SAFETY: the caller's promise.
                unsafe { self.arena.data_mut(region) }.copy_from_slice(data);
                self.arena.signal(signal).raise(value);
            }
            Some(rank) => self.send(rank, region, bytemuck::cast_slice(data), signal, value),
        }
    }

    /// As [`Heap::put`], for data that lies in `region` of this process's memory already.
    ///
    /// # Safety
    /// Nobody writes the region until the signal is raised.
    pub unsafe fn publish(&self, to: u32, region: Region, signal: Region, value: u64) {
        match self.remote[to as usize] {
            None => self.arena.signal(signal).raise(value),
            Some(rank) => {
                // SAFETY: the caller's promise.
                let data = unsafe { self.arena.data(region) };
                self.send(rank, region, bytemuck::cast_slice(data), signal, value);
            }
        }
    }

    /// Raises the signal where device `to` waits for it.
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

    /// Stores a word in every process; whoever waits for a later raise of `signal` sees it.
    pub fn store_everywhere(&self, word: Region, value: u64, signal: Region) {
        self.arena.word(word).store(value, Ordering::SeqCst);
        self.remote_ranks().for_each(|rank| self.send(rank, word, &value.to_ne_bytes(), signal, 0));
    }

    /// The ranks that have an arena of their own.
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

/// What a packet from another machine does here.
fn apply(arena: &Arena, packet: &Packet) {
    let region = Region::new(packet.offset as usize, packet.data.len());
    if !packet.data.is_empty() {
        // SAFETY: the sender's promise, as in `Heap::put`.
        let target = unsafe { arena.data_mut(region) };
        bytemuck::cast_slice_mut(target).copy_from_slice(&packet.data);
    }
    arena.signal(Region::new(packet.signal as usize, size_of::<Signal>())).raise(packet.value);
}
