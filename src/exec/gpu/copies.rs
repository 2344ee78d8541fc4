//! Collective calls of GPUs by copies, events and kernels, between GPUs of one machine, slices of a GPU, and processes.
//!
//! Every member has two slots for a piece of data, and an event for each. A member copies the next piece to its slot and records
//! the event; its host then raises a signal. The hosts of the others wait for the signal, and their streams for the event, before
//! they read the slot. A member enqueues its reads of all pieces before q before it records piece q. Once a member has enqueued its
//! waits for piece q of all others, it may therefore overwrite the slot of piece q - 1 with piece q + 1, so two slots are enough.
//!
//! A sum of a large gradient has many pieces, so each makes room in the stream. Without that, hosts would be blocked in the driver, but
//! not for ever: a stream waits only for events that were recorded before its wait was enqueued, on streams that do the same.
//! So what is enqueued ends whatever hosts do, and a host whose stream is full goes on when it has run.
//!
//! This is the protocol of [`TensorGroup`](super::super::TensorGroup) on streams.

use super::super::arena::Region;
use super::super::shared::Shared;
use super::copy::{Handles, Memory, exchange, make_event, open_event};
use anyhow::{Context as _, Result, ensure};
use pipesim_gpu::{Address, Buffer, Event, Gpu};
use pipesim_train::compute::cuda::{DeviceCollective, Fold, Join, Numbers};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a piece.
const PIECE: usize = 4 << 20;

/// Alignment of what is in a slot, in bytes.
const ALIGNMENT: usize = 256;

/// A member's slots.
struct StagingSlots {
    /// Both slots, one after the other.
    memory: Memory,
    /// The content of a slot is complete.
    written: [Event; 2],
}

/// Another member.
struct Peer {
    /// Signal that counts the pieces it has enqueued.
    enqueued: Region,
    slots: Arc<StagingSlots>,
    /// Local memory for its pieces, if kernels here cannot read its slots.
    inbox: Option<Buffer>,
}

/// A member of a group.
pub struct Copies {
    worker: u32,
    gpu: Arc<Gpu>,
    shared: Arc<Shared>,
    rank: usize,
    enqueued: Region,
    slots: Arc<StagingSlots>,
    /// The other members, in order.
    peers: Vec<Peer>,
    /// Number of pieces that it has enqueued.
    pieces: u64,
}

/// Members by worker and number of group.
pub type Ends = BTreeMap<(u32, usize), Copies>;

/// Returns the members of all groups that are on this process's GPUs. All ranks must call this together.
///
/// # Errors
/// The system does not support sharing memory between processes, or has too little.
pub fn ends(gpus: &BTreeMap<u32, Arc<Gpu>>, shared: &Arc<Shared>) -> Result<Ends> {
    let mut own = BTreeMap::new();
    let mut offered = BTreeMap::new();
    let groups = shared.groups.all().iter().enumerate();
    let members =
        || groups.clone().flat_map(|(number, group)| group.members.iter().map(move |&member| (number, member)));
    for (place, (number, member)) in members().enumerate() {
        let Some(gpu) = gpus.get(&member) else { continue };
        let is_alone = shared.groups.all()[number].members.iter().all(|member| gpus.contains_key(member));
        let (slots, handles) = make(gpu, !is_alone)?;
        own.insert((member, number), Arc::new(slots));
        offered.extend(handles.map(|handles| (place, handles)));
    }
    let theirs = if shared.ranks.size() > 1 { exchange(shared, &offered)? } else { BTreeMap::new() };
    let mut ends = Ends::new();
    for (&(worker, number), slots) in &own {
        let (group, gpu) = (&shared.groups.all()[number], &gpus[&worker]);
        let rank = group.members.iter().position(|&member| member == worker).context("a member of its group")?;
        let mut peers = Vec::new();
        for (&member, &enqueued) in group.members.iter().zip(&group.enqueued).filter(|(member, _)| **member != worker) {
            let slots = match own.get(&(member, number)) {
                Some(slots) => slots.clone(),
                None => {
                    let place = members().position(|other| other == (number, member));
                    let handles = place.and_then(|place| theirs.get(&place));
                    let written = [open_event(gpu, handles, 1)?, open_event(gpu, handles, 2)?];
                    Arc::new(StagingSlots { memory: Memory::open(gpu, handles)?, written })
                }
            };
            let is_far = matches!(&slots.memory, Memory::Own { gpu: other, .. } if other.ordinal() != gpu.ordinal());
            let inbox = is_far.then(|| Buffer::new(gpu.context(), PIECE)).transpose()?;
            peers.push(Peer { enqueued, slots, inbox });
        }
        let enqueued = group.enqueued[rank];
        let (gpu, shared, slots) = (gpu.clone(), shared.clone(), slots.clone());
        ends.insert((worker, number), Copies { worker, gpu, shared, rank, enqueued, slots, peers, pieces: 0 });
    }
    Ok(ends)
}

/// Creates a member's slots, and handles for other processes if `shared`.
fn make(gpu: &Arc<Gpu>, shared: bool) -> Result<(StagingSlots, Option<Handles>)> {
    let (memory, of_memory) = Memory::new(gpu, 2 * PIECE, shared)?;
    let ((first, of_first), (second, of_second)) = (make_event(gpu, shared)?, make_event(gpu, shared)?);
    let handles = shared.then_some([of_memory, of_first, of_second]);
    Ok((StagingSlots { memory, written: [first, second] }, handles))
}

impl Copies {
    /// Exchanges a piece of `bytes` bytes, which `write` copies to this member's slot. Returns the addresses of all members'
    /// pieces, in order. They are valid until the next piece.
    fn pass(&mut self, bytes: usize, write: impl FnOnce(Address) -> Result<()>) -> Result<Vec<Address>> {
        let (turn, piece) = ((self.pieces % 2) as usize, self.pieces + 1);
        let place = |slots: &StagingSlots| slots.memory.address().offset(turn * PIECE);
        let (gpu, Shared { heap, watch, .. }) = (&self.gpu, &*self.shared);
        write(place(&self.slots))?;
        gpu.compute.record(&self.slots.written[turn])?;
        gpu.make_room()?;
        heap.raise(self.worker, self.enqueued, piece);
        let mut places = Vec::with_capacity(self.peers.len() + 1);
        for peer in &self.peers {
            watch.note_wait(self.worker, true);
            heap.signal(peer.enqueued).wait(piece, watch)?;
            watch.note_wait(self.worker, true);
            gpu.compute.wait(&peer.slots.written[turn])?;
            let from = place(&peer.slots);
            places.push(match (&peer.inbox, &peer.slots.memory) {
                (Some(inbox), Memory::Own { gpu: other, .. }) => {
                    let (to, from) = ((inbox.address(), &**gpu.context()), (from, &**other.context()));
                    gpu.compute.copy_peer(to, from, bytes)?;
                    inbox.address()
                }
                _ => from,
            });
        }
        places.insert(self.rank, place(&self.slots));
        self.pieces = piece;
        Ok(places)
    }

    /// Reduces the arrays at `places`, in order, into `out`.
    fn join(&self, out: Numbers, places: &[Address], fold: &Fold<'_>) -> Result<()> {
        let Some((&first, others)) = places.split_first() else { return Ok(()) };
        self.gpu.compute.copy(out.address, first, out.bytes())?;
        others.iter().try_for_each(|&other| fold(out, other))
    }
}

/// Pieces of `count` numbers, of at most `bytes` bytes: start and length of each, in numbers.
fn pieces(numbers: Numbers, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let most = bytes / numbers.precision.bytes();
    (0..numbers.count).step_by(most).map(move |start| (start, most.min(numbers.count - start)))
}

/// The address of number `index`.
fn at(address: Address, numbers: Numbers, index: usize) -> Address {
    address.offset(index * numbers.precision.bytes())
}

impl DeviceCollective for Copies {
    fn size(&self) -> usize {
        self.peers.len() + 1
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn all_reduce(&mut self, data: &[Numbers], _join: Join, fold: &Fold<'_>) -> Result<()> {
        for &data in data {
            for (start, count) in pieces(data, PIECE) {
                let out = Numbers { address: at(data.address, data, start), count, ..data };
                let gpu = self.gpu.clone();
                let places = self.pass(out.bytes(), |slot| Ok(gpu.compute.copy(slot, out.address, out.bytes())?))?;
                self.join(out, &places, fold)?;
            }
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, data: Numbers, share: Address, fold: &Fold<'_>) -> Result<()> {
        let size = self.size();
        ensure!(data.count.is_multiple_of(size), "expected {size} equal pieces, found {} numbers", data.count);
        let whole = Numbers { count: data.count / size, ..data };
        // A piece contains the same part of every member's share.
        let part = PIECE / size / ALIGNMENT * ALIGNMENT;
        for (start, count) in pieces(whole, part) {
            let (gpu, bytes) = (self.gpu.clone(), count * data.precision.bytes());
            let places = self.pass(size * part, |slot| {
                (0..size).try_for_each(|member| {
                    let from = at(data.address, data, member * whole.count + start);
                    Ok(gpu.compute.copy(slot.offset(member * part), from, bytes)?)
                })
            })?;
            let places: Vec<Address> = places.into_iter().map(|place| place.offset(self.rank * part)).collect();
            self.join(Numbers { address: at(share, data, start), count, ..data }, &places, fold)?;
        }
        Ok(())
    }

    fn all_gather(&mut self, share: Numbers, data: Address) -> Result<()> {
        for (start, count) in pieces(share, PIECE) {
            let (gpu, bytes) = (self.gpu.clone(), count * share.precision.bytes());
            let from = at(share.address, share, start);
            let places = self.pass(bytes, |slot| Ok(gpu.compute.copy(slot, from, bytes)?))?;
            for (member, place) in places.into_iter().enumerate() {
                gpu.compute.copy(at(data, share, member * share.count + start), place, bytes)?;
            }
        }
        Ok(())
    }
}
