//! The link by NVSHMEM: one-sided puts with signal on a stream; the receiver's stream waits for the signal word. One rank per device.
//!
//! Both ends of a message are in symmetric memory, because a network reaches no other memory. One allocation, used by the sessions in
//! turn, holds the received messages and then the sent ones; each part is as large as the device with the most needs, so that an
//! offset means the same buffer everywhere. A second allocation per session holds two words per buffer: how often it was filled,
//! on the reader, and how often it was read, on the writer. Streams wait with the driver's `cuStreamWaitValue64`, which also works
//! if ranks share a GPU, unlike NVSHMEM's own wait.

use super::super::link::{Link, Refusal, Setting};
use super::super::message::{Message, MessageBuffer, MessageBuffers};
use super::super::shared::Shared;
use super::endpoint::{self, Endpoint, GpuLink};
use anyhow::{Context as _, Result, anyhow, ensure};
use pipesim_gpu::library::{self, NVSHMEM};
use pipesim_gpu::symmetric::{Symmetric, Word, World};
use pipesim_gpu::{Address, Event, Stream};
use pipesim_schedule::delivery::Delivery;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const WORD: usize = size_of::<u64>();
const ALIGNMENT: usize = 256;

/// A device's end of the link.
pub struct Nvshmem {
    endpoint: Endpoint,
    messages: Arc<Symmetric>,
    words: Symmetric,
    layout: HeapLayout,
    /// By buffer: event behind this device's read of it.
    read: BTreeMap<usize, Event>,
    waits: Waits,
}

/// How a stream waits for a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// The driver's wait, which also flushes everything that arrived before the word.
    Flushed,
    /// The driver's wait, between GPUs with peer access.
    Plain,
    /// NVSHMEM's wait.
    Library,
}

/// Offsets of message buffers in symmetric memory.
struct HeapLayout {
    /// By buffer: offset on the receiver, offset on the sender.
    places: Vec<[usize; 2]>,
    bytes: usize,
}

impl HeapLayout {
    fn new(buffers: &MessageBuffers) -> HeapLayout {
        let mut filled: [BTreeMap<u32, usize>; 2] = Default::default();
        let mut place = |side: usize, device: u32, bytes: usize| {
            let end = filled[side].entry(device).or_default();
            let start = *end;
            *end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        let both =
            |buffer: &MessageBuffer| [place(0, buffer.consumer, buffer.bytes), place(1, buffer.producer, buffer.bytes)];
        let mut places: Vec<[usize; 2]> = buffers.all().iter().map(both).collect();
        let [received, sent] = filled.map(|filled| filled.into_values().max().unwrap_or(0));
        places.iter_mut().for_each(|[_, from]| *from += received);
        HeapLayout { places, bytes: received + sent }
    }

    fn words(&self) -> usize {
        2 * WORD * self.places.len()
    }

    fn arrived(buffer: usize) -> usize {
        2 * buffer * WORD
    }

    fn read(buffer: usize) -> usize {
        HeapLayout::arrived(buffer) + WORD
    }
}

/// Returns memory for messages, reused between sessions while it is large enough. All ranks must call this together.
fn messages(world: &Arc<World>, bytes: usize) -> Result<Arc<Symmetric>> {
    static KEPT: Mutex<Option<Arc<Symmetric>>> = Mutex::new(None);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = kept.as_ref().filter(|kept| kept.bytes() >= bytes) {
        return Ok(kept.clone());
    }
    let made = Arc::new(Symmetric::new(world, bytes)?);
    *kept = Some(made.clone());
    Ok(made)
}

/// Initialises NVSHMEM once per process. All ranks must call this together.
fn world(shared: &Shared) -> Result<Arc<World>> {
    static WORLD: OnceLock<Mutex<Option<Arc<World>>>> = OnceLock::new();
    let mut world = WORLD.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(world) = &*world {
        return Ok(world.clone());
    }
    let ranks = &shared.ranks;
    let found = library::open(&NVSHMEM).map_err(|missing| anyhow!("{missing}"));
    // Exchanged before anyone waits: if one rank lacks the library, all ranks report it.
    let able = ranks.exchange(vec![u8::from(found.is_ok())])?;
    let found = found?;
    ensure!(able.iter().all(|able| *able == [1]), "expected NVSHMEM at every rank, found it missing at another");
    let mut joined = World::open(&found)?;
    let id = if ranks.rank() == 0 { joined.unique_id()? } else { Vec::new() };
    let ids = ranks.exchange(id)?;
    joined.join(ranks.rank(), ranks.size(), &ids[0])?;
    let joined = Arc::new(joined);
    *world = Some(joined.clone());
    Ok(joined)
}

impl Nvshmem {
    /// Returns whether it is the best link for these ranks. Without peer access it is not: it would need a network adapter at each
    /// GPU.
    pub fn is_best(setting: &Setting<'_>) -> bool {
        setting.ranks.size() > 1 && setting.slices.is_none() && endpoint::apart(setting).is_none()
    }

    /// Checks the requirements.
    pub fn probe(setting: &Setting<'_>) -> Result<(), Refusal> {
        endpoint::library(&NVSHMEM)?;
        let devices = setting.devices;
        if setting.ranks.size() >= devices {
            return Ok(());
        }
        Err(Refusal::of(format!("expected a rank for each device; start {devices} with -n {devices}")))
    }

    /// See [`MakeEnds`](endpoint::MakeEnds): the end of this rank's device.
    pub fn ends(mut endpoints: Vec<Endpoint>, shared: &Arc<Shared>, _: Delivery) -> Result<Vec<GpuLink>> {
        let devices = shared.workers();
        let size = shared.ranks.size();
        ensure!(
            size >= devices && endpoints.len() <= 1,
            "expected a rank for each of the {devices} devices with `link` nvshmem, found {size}: start them with -n {devices} \
             or mpirun -n {devices}"
        );
        if let Some(endpoint) = endpoints.first() {
            endpoint.gpu.make_current()?;
        }
        let world = world(shared)?;
        let layout = HeapLayout::new(&shared.buffers);
        let messages = messages(&world, layout.bytes)?;
        let words = Symmetric::new(&world, layout.words())?;
        if let Some(endpoint) = endpoints.first() {
            // The exchange below makes sure that the words are 0 on every rank before any rank puts.
            endpoint.gpu.compute.clear(words.address(0), layout.words())?;
            endpoint.gpu.compute.synchronize()?;
        }
        shared.ranks.exchange(Vec::new())?;
        let Some(endpoint) = endpoints.pop() else { return Ok(Vec::new()) };
        let receive_buffers =
            shared.buffers.all().iter().enumerate().filter(|(_, buffer)| buffer.consumer == endpoint.device);
        let read =
            receive_buffers.map(|(number, _)| Ok((number, endpoint.gpu.events().untimed()?))).collect::<Result<_>>()?;
        let waits = match (endpoint.gpu.facts().flushes_remote_writes, shared.ranks.share_memory()) {
            (true, _) => Waits::Flushed,
            (false, true) => Waits::Plain,
            (false, false) => Waits::Library,
        };
        let endpoint = endpoint.with_send_buffers(|buffer| Some(messages.address(layout.places[buffer][1])))?;
        Ok(vec![Box::new(Nvshmem { endpoint, messages, words, layout, read, waits })])
    }

    /// Makes later work on the stream wait until the word at `place` is at least `value`.
    fn wait_word(&self, stream: &Stream, place: usize, value: u64) -> Result<()> {
        match self.waits {
            Waits::Flushed => Ok(stream.wait_value_flushed(self.words.address(place), value)?),
            Waits::Plain => Ok(stream.wait_value(self.words.address(place), value)?),
            Waits::Library => self.words.wait(place, value, stream),
        }
    }

    /// Returns the PE of a worker, which is its rank.
    fn pe(&self, worker: u32) -> u32 {
        let shared = &self.endpoint.shared;
        shared.ranks.rank_of(worker, shared.workers())
    }
}

impl Link for Nvshmem {
    type Location = Address;
    type Timestamp = Event;

    fn send_buffer(&mut self, message: Message) -> Result<Address> {
        self.endpoint.free_send_buffer(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        let pe = self.pe(self.endpoint.buffer(message).consumer);
        self.endpoint.note_made(message)?;
        if let Some(credit) = message.credit.filter(|&credit| credit > 0) {
            self.wait_word(&self.endpoint.gpu.send, HeapLayout::read(message.buffer), credit)?;
        }
        let [to, from] = self.layout.places[message.buffer];
        let (messages, offset) = (&self.messages, HeapLayout::arrived(message.buffer));
        let word = Word { of: &self.words, offset };
        self.endpoint.send(message, |gpu, send_buffer| {
            messages.put([from, to], send_buffer.bytes, word, message.value, pe, &gpu.send)
        })
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        self.wait_word(&self.endpoint.gpu.compute, HeapLayout::arrived(message.buffer), message.value)?;
        Ok(self.messages.address(self.layout.places[message.buffer][0]))
    }

    fn release(&mut self, message: Message) -> Result<()> {
        let gpu = &self.endpoint.gpu;
        let read = self.read.get(&message.buffer).context("a message of another device")?;
        gpu.compute.record(read)?;
        // On its own stream, so that neither compute nor sends wait for the signal's transfer.
        gpu.receive.wait(read)?;
        let pe = self.pe(self.endpoint.buffer(message).producer);
        self.words.signal(HeapLayout::read(message.buffer), message.value, pe, &gpu.receive)
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.endpoint.sent()
    }
}
