//! NCCL's communicators: made once in a process, connected at once, and used by every session from then on.
//!
//! NCCL makes a connection when the first message passes it, and holds the host up until the other side's host has come to the
//! same. Two hosts whose first messages are to others, in a circle, would wait for ever. So each communicator is connected in both
//! directions when it is made, in the order of keys on every device: then no two wait for each other at different ones.

use super::super::shared::Shared;
use super::super::signal::{Aborted, Patience as _};
use crate::cuda::nccl::{self, UniqueId};
use crate::cuda::{Buffer, Communicator, Gpu};
use crate::lowering::Holds;
use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Which communicator: all devices', that of two devices, of one direction between two, or for exchanges between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    All,
    Pair(u32, u32),
    OneWay(u32, u32),
    Exchange(u32, u32),
}

impl Key {
    pub fn of(device: u32, holds: Holds) -> Key {
        match holds {
            Holds::All | Holds::Channel(..) => Key::All,
            Holds::Peer(peer) => Key::Pair(device.min(peer), device.max(peer)),
            Holds::SendsTo(peer) => Key::OneWay(device, peer),
            Holds::ReceivesFrom(peer) => Key::OneWay(peer, device),
        }
    }

    /// The rank of `device` and how many ranks there are.
    pub fn rank(self, device: u32, devices: u32) -> (u32, u32) {
        match self {
            Key::All => (device, devices),
            Key::Pair(first, _) | Key::OneWay(first, _) | Key::Exchange(first, _) => (u32::from(device != first), 2),
        }
    }

    pub fn concerns(self, device: u32) -> bool {
        match self {
            Key::All => true,
            Key::Pair(a, b) | Key::OneWay(a, b) | Key::Exchange(a, b) => device == a || device == b,
        }
    }
}

/// A device's end of a communicator. Sessions take turns: one of them is in a step.
pub type Shareable = Arc<Mutex<Communicator>>;

/// For the time of a few calls.
pub fn lock(channel: &Shareable) -> MutexGuard<'_, Communicator> {
    channel.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator among so many devices.
type Name = (Key, u32);

/// What every rank knows of those that were ever asked for; the same at all ranks, which ask for the same.
static IDS: Mutex<BTreeMap<Name, UniqueId>> = Mutex::new(BTreeMap::new());

/// By device: its ends. They are kept until the process ends.
static ENDS: Mutex<BTreeMap<(u32, Name), Shareable>> = Mutex::new(BTreeMap::new());

/// An id for each communicator, where there is none yet made by rank 0; all ranks must call this together.
pub fn ids(library: &nccl::Nccl, shared: &Shared, keys: BTreeSet<Key>) -> Result<BTreeMap<Key, UniqueId>> {
    let devices = shared.plan.graph.schedule().devices();
    let mut known = IDS.lock().unwrap_or_else(PoisonError::into_inner);
    let new: Vec<Key> = keys.iter().copied().filter(|&key| !known.contains_key(&(key, devices))).collect();
    let mut bytes = Vec::new();
    if shared.ranks.rank() == 0 {
        for _ in &new {
            bytes.extend(library.unique_id()?);
        }
    }
    let all = shared.ranks.exchange(bytes)?;
    let mut made = all[0].chunks_exact(128);
    for key in new {
        let bytes = made.next().and_then(|bytes| bytes.try_into().ok()).context("rank 0 made too few NCCL ids")?;
        known.insert((key, devices), bytes);
    }
    let id = |key: Key| Some((key, *known.get(&(key, devices))?));
    keys.into_iter().map(|key| id(key).context("an id of every communicator")).collect()
}

/// The end of `device`, made and connected if it is not there yet: then with the other devices that it concerns, at the same time.
pub fn join(
    library: &nccl::Nccl,
    shared: &Shared,
    (device, gpu): (u32, &Arc<Gpu>),
    (key, id): (Key, UniqueId),
) -> Result<Shareable> {
    let devices = shared.plan.graph.schedule().devices();
    let name = (device, (key, devices));
    let kept = ENDS.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
    if let Some(kept) = kept {
        return Ok(kept);
    }
    let (rank, ranks) = key.rank(device, devices);
    shared.watch.note_wait(device, true);
    let channel = Communicator::join(library, gpu.context(), rank, ranks, id)?;
    shared.watch.note_wait(device, true);
    connect(library, shared, gpu, &channel, (rank, ranks))?;
    let channel = Arc::new(Mutex::new(channel));
    ENDS.lock().unwrap_or_else(PoisonError::into_inner).insert(name, channel.clone());
    Ok(channel)
}

/// Bytes that make a connection.
const GREETING: usize = 16;

/// Passes a few bytes to and from every other rank, and waits until they have come.
fn connect(
    library: &nccl::Nccl,
    shared: &Shared,
    gpu: &Arc<Gpu>,
    channel: &Communicator,
    (rank, ranks): (u32, u32),
) -> Result<()> {
    let greeting = Buffer::new(gpu.context(), GREETING)?;
    let peers = (0..ranks).filter(|&peer| peer != rank);
    let met = |peer| -> Result<(u32, Buffer)> { Ok((peer, Buffer::new(gpu.context(), GREETING)?)) };
    let met = peers.map(met).collect::<Result<Vec<_>>>()?;
    channel.stream().clear(greeting.address(), GREETING)?;
    library.group(|| {
        met.iter().try_for_each(|(peer, inbox)| {
            channel.send((greeting.address(), GREETING), *peer)?;
            channel.receive((inbox.address(), GREETING), *peer)
        })
    })?;
    while !channel.stream().is_done()? {
        channel.check()?;
        if shared.watch.is_aborted() {
            channel.abort(); // else its memory could not be given back
            return Err(Aborted.into());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(channel.check()?)
}
