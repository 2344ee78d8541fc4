//! NVSHMEM: one-sided puts with signal on a stream; the receiver's stream waits for the word to grow. A rank a device.
//!
//! Messages lie in a piece of symmetric memory at both their ends, since a network reaches no other: what a device is sent from the
//! beginning on, then what it sends, each part as large as the fullest device needs, so that the same offset means the same mailbox
//! everywhere. Sessions take turns in it. In a second piece, of each session's own, lie two words a mailbox: how often it was filled,
//! at the reader's; how often it was read, at the writer's. The wait is the driver's own (`cuStreamWaitValue64`), which NVSHMEM's
//! signal wait comes down to: it also works where ranks share a GPU.

use super::super::link::{Link, Refusal, Setting};
use super::super::mailbox::{Mailbox, Mailboxes, Message};
use super::super::shared::Shared;
use super::post::{self, GpuLink, Post};
use crate::cuda::library::{self, NVSHMEM};
use crate::cuda::symmetric::{Symmetric, World};
use crate::cuda::{Address, Event, Stream};
use crate::delivery::Delivery;
use anyhow::{Context as _, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const WORD: usize = size_of::<u64>();
const ALIGNMENT: usize = 256;

/// A device's end.
pub struct Nvshmem {
    post: Post,
    messages: Arc<Symmetric>,
    words: Symmetric,
    layout: Layout,
    /// By mailbox: behind this device's reading of it.
    read: BTreeMap<usize, Event>,
    waits: Waits,
}

/// How a stream waits for a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// The driver's wait, behind which all that came before the word is seen.
    Flushed,
    /// The driver's wait, between GPUs that reach each other directly.
    Plain,
    /// The library's wait.
    Library,
}

/// Where mailboxes lie in symmetric memory.
struct Layout {
    /// By mailbox: where it is received, and where it is sent from.
    places: Vec<[usize; 2]>,
    bytes: usize,
}

impl Layout {
    fn new(mailboxes: &Mailboxes) -> Layout {
        let mut filled: [BTreeMap<u32, usize>; 2] = Default::default();
        let mut place = |side: usize, device: u32, bytes: usize| {
            let end = filled[side].entry(device).or_default();
            let start = *end;
            *end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        let both =
            |mailbox: &Mailbox| [place(0, mailbox.consumer, mailbox.bytes), place(1, mailbox.producer, mailbox.bytes)];
        let mut places: Vec<[usize; 2]> = mailboxes.all().iter().map(both).collect();
        let [received, sent] = filled.map(|filled| filled.into_values().max().unwrap_or(0));
        places.iter_mut().for_each(|[_, from]| *from += received);
        Layout { places, bytes: received + sent }
    }

    fn words(&self) -> usize {
        2 * WORD * self.places.len()
    }

    fn arrived(mailbox: usize) -> usize {
        2 * mailbox * WORD
    }

    fn read(mailbox: usize) -> usize {
        Layout::arrived(mailbox) + WORD
    }
}

/// So much memory for messages, the same piece for every session as long as it suffices; all ranks call this together.
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

/// The library, joined once a process.
fn world(shared: &Shared) -> Result<Arc<World>> {
    static WORLD: OnceLock<Mutex<Option<Arc<World>>>> = OnceLock::new();
    let mut world = WORLD.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(world) = &*world {
        return Ok(world.clone());
    }
    let ranks = &shared.ranks;
    let found = library::open(&NVSHMEM).map_err(|missing| anyhow!("{missing}"));
    // Told to all before anyone waits for it: where one rank lacks the library, all say so.
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
    /// What it needs.
    pub fn probe(setting: &Setting<'_>) -> Result<(), Refusal> {
        post::library(&NVSHMEM)?;
        let devices = setting.devices;
        if setting.ranks.size() >= devices {
            return Ok(());
        }
        Err(Refusal::of(format!("expected a rank for each device; start {devices} with -n {devices}")))
    }

    /// See [`MakeEnds`](post::MakeEnds): the end of this rank's device.
    pub fn ends(mut posts: Vec<Post>, shared: &Arc<Shared>, _: Delivery) -> Result<Vec<GpuLink>> {
        let devices = shared.plan.graph.schedule().devices();
        let size = shared.ranks.size();
        ensure!(
            size >= devices && posts.len() <= 1,
            "expected a rank for each of the {devices} devices with --link nvshmem, found {size}: start them with -n {devices} \
             or mpirun -n {devices}"
        );
        if let Some(post) = posts.first() {
            post.gpu.make_current()?;
        }
        let world = world(shared)?;
        let layout = Layout::new(&shared.mailboxes);
        let messages = messages(&world, layout.bytes)?;
        let words = Symmetric::new(&world, layout.words())?;
        if let Some(post) = posts.first() {
            // Words begin at 0 on every rank before any rank puts: the exchange below is behind every rank's clearing.
            post.gpu.compute.clear(words.address(0), layout.words())?;
            post.gpu.compute.synchronize()?;
        }
        shared.ranks.exchange(Vec::new())?;
        let Some(post) = posts.pop() else { return Ok(Vec::new()) };
        let inboxes = shared.mailboxes.all().iter().enumerate().filter(|(_, mailbox)| mailbox.consumer == post.device);
        let read = inboxes.map(|(number, _)| Ok((number, post.gpu.events().untimed()?))).collect::<Result<_>>()?;
        let waits = match (post.gpu.facts().flushes_remote_writes, shared.ranks.share_memory()) {
            (true, _) => Waits::Flushed,
            (false, true) => Waits::Plain,
            (false, false) => Waits::Library,
        };
        let post = post.with_outboxes(|mailbox| Some(messages.address(layout.places[mailbox][1])))?;
        Ok(vec![Box::new(Nvshmem { post, messages, words, layout, read, waits })])
    }

    /// What follows on the stream waits until the word at `place` is at least `value`.
    fn wait_word(&self, stream: &Stream, place: usize, value: u64) -> Result<()> {
        match self.waits {
            Waits::Flushed => Ok(stream.wait_value_flushed(self.words.address(place), value)?),
            Waits::Plain => Ok(stream.wait_value(self.words.address(place), value)?),
            Waits::Library => self.words.wait(place, value, stream),
        }
    }

    /// The PE of a device: its rank.
    fn pe(&self, device: u32) -> u32 {
        let devices = self.post.shared.plan.graph.schedule().devices();
        self.post.shared.ranks.rank_of(device, devices)
    }
}

impl Link for Nvshmem {
    type Place = Address;
    type Moment = Event;

    fn outbox(&mut self, message: Message) -> Result<Address> {
        self.post.free_outbox(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        let pe = self.pe(self.post.mailbox(message).consumer);
        self.post.note_made(message)?;
        if let Some(credit) = message.credit.filter(|&credit| credit > 0) {
            self.wait_word(&self.post.gpu.send, Layout::read(message.mailbox), credit)?;
        }
        let [to, from] = self.layout.places[message.mailbox];
        let (messages, word) = (&self.messages, (&self.words, Layout::arrived(message.mailbox)));
        self.post
            .send(message, |gpu, outbox| messages.put([from, to], outbox.bytes, word, message.value, pe, &gpu.send))
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        self.wait_word(&self.post.gpu.compute, Layout::arrived(message.mailbox), message.value)?;
        Ok(self.messages.address(self.layout.places[message.mailbox][0]))
    }

    fn release(&mut self, message: Message) -> Result<()> {
        let gpu = &self.post.gpu;
        let read = self.read.get(&message.mailbox).context("a message of another device")?;
        gpu.compute.record(read)?;
        // On a stream of its own: neither compute nor sends wait for the word's way to the other side.
        gpu.receive.wait(read)?;
        let pe = self.pe(self.post.mailbox(message).producer);
        self.words.signal(Layout::read(message.mailbox), message.value, pe, &gpu.receive)
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.post.sent()
    }
}
