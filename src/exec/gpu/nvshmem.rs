//! NVSHMEM: one-sided puts with signal on a stream; the receiver's stream waits for the word to grow. A rank a device.
//!
//! All mailboxes of a device lie in one piece of symmetric memory, packed from its beginning; the piece is as large as the
//! fullest device needs, so that the same offset means the same mailbox everywhere. Behind the messages lie two words a mailbox:
//! how often it was filled, at the reader's; how often it was read, at the writer's. The wait is the driver's own
//! (`cuStreamWaitValue64`), which NVSHMEM's signal wait comes down to: it also works where ranks share a GPU.

use super::super::link::{Link, Refusal, Setting};
use super::super::mailbox::{Mailboxes, Message};
use super::super::shared::Shared;
use super::post::{self, GpuLink, Post};
use crate::cuda::library::{self, NVSHMEM};
use crate::cuda::symmetric::{Symmetric, World};
use crate::cuda::{Address, Event};
use crate::delivery::Delivery;
use anyhow::{Context as _, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const WORD: usize = size_of::<u64>();
const ALIGNMENT: usize = 256;

/// A device's end.
pub struct Nvshmem {
    post: Post,
    memory: Symmetric,
    layout: Layout,
    /// By mailbox: behind this device's reading of it.
    read: BTreeMap<usize, Event>,
}

/// Where mailboxes lie in symmetric memory.
struct Layout {
    /// By mailbox, at its reader.
    data: Vec<usize>,
    words: usize,
    bytes: usize,
}

impl Layout {
    fn new(mailboxes: &Mailboxes) -> Layout {
        let mut filled: BTreeMap<u32, usize> = BTreeMap::new();
        let mut place = |consumer: u32, bytes: usize| {
            let end = filled.entry(consumer).or_default();
            let start = *end;
            *end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        let data: Vec<usize> = mailboxes.all().iter().map(|mailbox| place(mailbox.consumer, mailbox.bytes)).collect();
        let words = filled.into_values().max().unwrap_or(0);
        Layout { words, bytes: words + data.len() * 2 * WORD, data }
    }

    fn arrived(&self, mailbox: usize) -> usize {
        self.words + 2 * mailbox * WORD
    }

    fn read(&self, mailbox: usize) -> usize {
        self.arrived(mailbox) + WORD
    }
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
        let memory = Symmetric::new(&world, layout.bytes)?;
        if let Some(post) = posts.first() {
            // Words begin at 0 on every rank before any rank puts: the exchange below is behind every rank's clearing.
            post.gpu.compute.clear(memory.address(layout.words), layout.bytes - layout.words)?;
            post.gpu.compute.synchronize()?;
        }
        shared.ranks.exchange(Vec::new())?;
        let Some(post) = posts.pop() else { return Ok(Vec::new()) };
        let inboxes = shared.mailboxes.all().iter().enumerate().filter(|(_, mailbox)| mailbox.consumer == post.device);
        let read = inboxes.map(|(number, _)| Ok((number, post.gpu.events().untimed()?))).collect::<Result<_>>()?;
        Ok(vec![Box::new(Nvshmem { post, memory, layout, read })])
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
            self.post.gpu.send.wait_value(self.memory.address(self.layout.read(message.mailbox)), credit)?;
        }
        let places = [self.layout.data[message.mailbox], self.layout.arrived(message.mailbox)];
        let memory = &self.memory;
        self.post.send(message, |gpu, outbox| memory.put(places, &outbox.buffer, message.value, pe, &gpu.send))
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        let arrived = self.memory.address(self.layout.arrived(message.mailbox));
        self.post.gpu.compute.wait_value(arrived, message.value)?;
        Ok(self.memory.address(self.layout.data[message.mailbox]))
    }

    fn release(&mut self, message: Message) -> Result<()> {
        let gpu = &self.post.gpu;
        let read = self.read.get(&message.mailbox).context("a message of another device")?;
        gpu.compute.record(read)?;
        // On a stream of its own: neither compute nor sends wait for the word's way to the other side.
        gpu.receive.wait(read)?;
        let pe = self.pe(self.post.mailbox(message).producer);
        self.memory.signal(self.layout.read(message.mailbox), message.value, pe, &gpu.receive)
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.post.sent()
    }
}
