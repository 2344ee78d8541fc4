//! NCCL's communicators, created and connected once per process and reused by every session.
//!
//! NCCL connects two ranks at their first message or collective call, and blocks the host until the other host does the same. Hosts
//! whose first messages form a cycle would wait forever. Therefore each communicator is connected when it is created, in the order of
//! names on every device, so that no two devices wait for each other at different communicators.

use super::super::shared::Shared;
use super::super::signal::{Aborted, WaitPolicy as _};
use anyhow::{Context as _, Result};
use pipesim_gpu::nccl::{self, Join, Numbers, UniqueId};
use pipesim_gpu::{Buffer, Communicator, Gpu, Precision};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a communicator is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Messages between all devices of a pipeline, or between two.
    Messages,
    /// Messages of one direction between two devices.
    OneWay,
    /// Exchanges of gradients between two devices.
    Exchange,
    /// Collective calls.
    Sums,
}

/// Identifies a communicator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub purpose: Purpose,
    /// Its workers, in the order of their ranks.
    pub members: Vec<u32>,
    /// Number of workers of the run; in another run, workers may be on other GPUs.
    pub world: u32,
}

impl Name {
    /// Returns the rank of `worker`, if it is a member.
    pub fn rank(&self, worker: u32) -> Option<u32> {
        self.members.iter().position(|&member| member == worker).map(|rank| rank as u32)
    }
}

/// A device's rank of a communicator. Sessions take turns, because only one executes a step at a time.
pub type SharedCommunicator = Arc<Mutex<Communicator>>;

/// Locks a communicator for a few calls.
pub fn lock(channel: &SharedCommunicator) -> MutexGuard<'_, Communicator> {
    channel.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a device with a failed communicator waits for a report that a rank has ended, which explains the failure.
const NEWS_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks whether enqueued messages and calls have failed.
///
/// # Errors
/// NCCL's error; [`Aborted`] if a rank has ended, since that is reported by name.
pub fn check(shared: &Shared, channel: &SharedCommunicator) -> Result<()> {
    let Err(error) = lock(channel).check() else { return Ok(()) };
    let begin = Instant::now();
    while shared.ranks.size() > 1 && begin.elapsed() < NEWS_TIMEOUT {
        if shared.ranks.lost().is_some() || shared.watch.is_aborted() {
            return Err(Aborted.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(error.into())
}

/// Ids of all communicators so far, the same at all ranks.
static IDS: Mutex<BTreeMap<Name, UniqueId>> = Mutex::new(BTreeMap::new());

/// Communicators by worker, kept until the process ends.
static ENDS: Mutex<BTreeMap<(u32, Name), SharedCommunicator>> = Mutex::new(BTreeMap::new());

/// Returns the id of each communicator; rank 0 creates new ones. All ranks must call this together.
pub fn ids(library: &nccl::Nccl, shared: &Shared, names: BTreeSet<Name>) -> Result<BTreeMap<Name, UniqueId>> {
    let mut known = IDS.lock().unwrap_or_else(PoisonError::into_inner);
    let new: Vec<Name> = names.iter().filter(|&name| !known.contains_key(name)).cloned().collect();
    let mut bytes = Vec::new();
    if shared.ranks.rank() == 0 {
        for _ in &new {
            bytes.extend(library.unique_id()?);
        }
    }
    let all = shared.ranks.exchange(bytes)?;
    let mut made = all[0].chunks_exact(128);
    for name in new {
        let bytes = made.next().and_then(|bytes| bytes.try_into().ok()).context("rank 0 made too few NCCL ids")?;
        known.insert(name, bytes);
    }
    let id = |name: Name| known.get(&name).copied().map(|id| (name, id)).context("an id of every communicator");
    names.into_iter().map(id).collect()
}

/// Returns the communicator of `worker`. A new one is created and connected together with the other members.
pub fn join(
    library: &nccl::Nccl,
    shared: &Shared,
    worker: u32,
    gpu: &Arc<Gpu>,
    name: &Name,
    id: UniqueId,
) -> Result<SharedCommunicator> {
    let end = (worker, name.clone());
    let kept = ENDS.lock().unwrap_or_else(PoisonError::into_inner).get(&end).cloned();
    if let Some(kept) = kept {
        return Ok(kept);
    }
    let rank = name.rank(worker).context("a communicator of other workers")?;
    let ranks = name.members.len() as u32;
    shared.watch.note_wait(worker, true);
    let channel = Communicator::join(library, gpu.context(), rank, ranks, id)?;
    shared.watch.note_wait(worker, true);
    let _greetings = match name.purpose {
        Purpose::Sums => greet_all(gpu, &channel)?,
        _ => greet(library, gpu, &channel, (0..ranks).filter(|&peer| peer != rank))?,
    };
    while !channel.stream().is_done()? {
        channel.check()?;
        if shared.watch.is_aborted() {
            channel.abort(); // otherwise its memory could not be freed
            return Err(Aborted.into());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    channel.check()?;
    let channel = Arc::new(Mutex::new(channel));
    ENDS.lock().unwrap_or_else(PoisonError::into_inner).insert(end, channel.clone());
    Ok(channel)
}

/// Size of the message that connects two ranks.
const GREETING: usize = 16;

/// Enqueues the exchange of a small message with these ranks. Returns its memory.
fn greet(
    library: &nccl::Nccl,
    gpu: &Arc<Gpu>,
    channel: &Communicator,
    peers: impl Iterator<Item = u32>,
) -> Result<Vec<Buffer>> {
    let greeting = Buffer::new(gpu.context(), GREETING)?;
    let met = |peer| -> Result<(u32, Buffer)> { Ok((peer, Buffer::new(gpu.context(), GREETING)?)) };
    let met = peers.map(met).collect::<Result<Vec<_>>>()?;
    channel.stream().clear(greeting.address(), GREETING)?;
    library.group(|| {
        met.iter().try_for_each(|(peer, receive_buffer)| {
            channel.send(greeting.address(), GREETING, *peer)?;
            channel.receive(receive_buffer.address(), GREETING, *peer)
        })
    })?;
    Ok(met.into_iter().map(|(_, buffer)| buffer).chain([greeting]).collect())
}

/// Enqueues a small collective call. Returns its memory.
fn greet_all(gpu: &Arc<Gpu>, channel: &Communicator) -> Result<Vec<Buffer>> {
    let greeting = Buffer::new(gpu.context(), GREETING)?;
    let (address, precision) = (greeting.address(), Precision::F32);
    channel.stream().clear(address, GREETING)?;
    channel.all_reduce(
        Numbers { address, count: GREETING / precision.bytes(), precision },
        Join::Sum,
        channel.stream(),
    )?;
    Ok(vec![greeting])
}
