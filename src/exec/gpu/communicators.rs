//! NCCL's communicators, created and connected once per process and reused by every session.
//!
//! NCCL connects two ranks at their first message, and blocks the host until the other host does the same. Hosts whose first messages
//! form a cycle would wait forever. Therefore each communicator is connected in both directions when it is created, in the order of
//! keys on every device, so that no two devices wait for each other at different communicators.

use super::super::shared::Shared;
use super::super::signal::{Aborted, WaitPolicy as _};
use crate::lowering::Holds;
use anyhow::{Context as _, Result};
use pipesim_cuda::nccl::{self, UniqueId};
use pipesim_cuda::{Buffer, Communicator, Gpu};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Identifies a communicator: of all devices, of two devices, of one direction between two, or of exchanges between two.
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

    /// Returns the rank of `device` and the number of ranks.
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

/// A device's rank of a communicator. Sessions take turns, because only one executes a step at a time.
pub type SharedCommunicator = Arc<Mutex<Communicator>>;

/// Locks a communicator for a few calls.
pub fn lock(channel: &SharedCommunicator) -> MutexGuard<'_, Communicator> {
    channel.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator and the number of devices.
type Name = (Key, u32);

/// Ids of all communicators so far, the same at all ranks.
static IDS: Mutex<BTreeMap<Name, UniqueId>> = Mutex::new(BTreeMap::new());

/// Communicators by device, kept until the process ends.
static ENDS: Mutex<BTreeMap<(u32, Name), SharedCommunicator>> = Mutex::new(BTreeMap::new());

/// Returns the id of each communicator; rank 0 creates new ones. All ranks must call this together.
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

/// Returns the communicator of `device`. A new one is created and connected together with the other devices that it concerns.
pub fn join(
    library: &nccl::Nccl,
    shared: &Shared,
    (device, gpu): (u32, &Arc<Gpu>),
    (key, id): (Key, UniqueId),
) -> Result<SharedCommunicator> {
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

/// Size of the message that connects two ranks.
const GREETING: usize = 16;

/// Exchanges a small message with every other rank, and waits for it.
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
        met.iter().try_for_each(|(peer, receive_buffer)| {
            channel.send((greeting.address(), GREETING), *peer)?;
            channel.receive((receive_buffer.address(), GREETING), *peer)
        })
    })?;
    while !channel.stream().is_done()? {
        channel.check()?;
        if shared.watch.is_aborted() {
            channel.abort(); // otherwise its memory could not be freed
            return Err(Aborted.into());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(channel.check()?)
}
