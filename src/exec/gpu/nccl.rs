//! NCCL: a device has communication queues, whose sends and receives stand in the order that the checker has proven free from
//! deadlock; each completes when its partner stands at the head of the other's queue. A queue is a communicator on a stream, a batch
//! a group of NCCL's.
//!
//! That queues do not hold each other up, which the checker takes for granted, holds since every communicator is connected before the
//! first message, has a hardware queue for its stream, and takes so few multiprocessors that the transfers of all of a device's
//! communicators find room at once.

use super::super::link::{Link, Refusal, Setting};
use super::super::mailbox::Message;
use super::super::shared::Shared;
use super::communicators::{self, Key, Shareable, ids, lock};
use super::post::{self, GpuLink, Post};
use crate::cuda::library::NCCL;
use crate::cuda::nccl::{self, UniqueId};
use crate::cuda::{Address, Buffer, Event, connections};
use crate::delivery::{ChannelOptions, Delivery, Receives};
use crate::lowering::{CommunicationQueue, Entry, Lowering};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Streams of a device besides those of its communicators.
const OTHER_STREAMS: usize = 3;

/// A buffer that is received into.
struct Inbox {
    buffer: Buffer,
    arrived: Event,
    read: Event,
}

impl Inbox {
    fn place(&self) -> (Address, usize) {
        (self.buffer.address(), self.buffer.bytes())
    }
}

/// One of a device's queues.
struct Lane {
    key: Key,
    queue: CommunicationQueue,
    /// The next group.
    next: usize,
}

/// A device's end.
pub struct Nccl {
    post: Post,
    library: nccl::Nccl,
    ids: Arc<BTreeMap<Key, UniqueId>>,
    /// Joined at the first step.
    channels: BTreeMap<Key, Shareable>,
    lanes: Vec<Lane>,
    /// This step's messages that are made, by the op that makes them.
    made: BTreeMap<usize, Message>,
    step: u64,
    /// By peer: what goes out in exchanges that have not met yet.
    exchanges: BTreeMap<u32, VecDeque<Message>>,
    inboxes: BTreeMap<usize, Inbox>,
}

impl Nccl {
    /// What it needs.
    pub fn probe(setting: &Setting<'_>) -> Result<(), Refusal> {
        if setting.slices.is_some_and(|slices| slices > 1) {
            return Err(Refusal::of("expected a GPU for each device, found --slices; use copy or nvshmem"));
        }
        post::library(&NCCL)
    }

    /// See [`MakeEnds`](post::MakeEnds).
    pub fn ends(posts: Vec<Post>, shared: &Arc<Shared>, delivery: Delivery) -> Result<Vec<GpuLink>> {
        let gpus: BTreeSet<u32> = posts.iter().map(|post| post.gpu.ordinal()).collect();
        ensure!(
            gpus.len() == posts.len(),
            "expected a GPU for each device with --link nccl, found {} devices on {}: use --link copy, or fewer devices",
            posts.len(),
            gpus.len()
        );
        let library = nccl::Nccl::open().map_err(|error| anyhow!("{error}"));
        let able = shared.ranks.exchange(vec![u8::from(library.is_ok())])?;
        let library = library?;
        ensure!(able.iter().all(|able| *able == [1]), "expected NCCL at every rank, found it missing at another");
        let schedule = shared.plan.graph.schedule();
        // A receive that is posted early could overwrite what this host has yet to hand to the op that reads it.
        ensure!(
            matches!(
                delivery.on(schedule),
                Delivery::Batched | Delivery::Channel(ChannelOptions { receives: Receives::JustInTime, .. })
            ),
            "expected receives just before their use with --link nccl, found {delivery} delivery of {}, which posts them earlier; \
             take another --delivery, or --device cpu, which emulates it",
            schedule.name
        );
        let lowering = Lowering::new(&shared.plan.graph, delivery);
        let mut keys: BTreeSet<Key> =
            lowering.queues().iter().map(|queue| Key::of(queue.device, queue.holds)).collect();
        if let Some(post) = posts.first() {
            let exchanges = post.shared.mailboxes.exchanges().map(|mailbox| (mailbox.producer, mailbox.consumer));
            keys.extend(exchanges.map(|(a, b)| Key::Exchange(a.min(b), a.max(b))));
        }
        for post in &posts {
            let streams = keys.iter().filter(|key| key.concerns(post.device)).count() + OTHER_STREAMS;
            ensure!(
                streams <= connections(),
                "expected at most {} streams on a GPU with --link nccl, as many as it has hardware queues, found {streams} on device {}: \
                 set CUDA_DEVICE_MAX_CONNECTIONS=32, or use --delivery channel",
                connections(),
                post.device
            );
        }
        let ids = Arc::new(ids(&library, shared, keys)?);
        let end = |post| -> Result<GpuLink> { Ok(Box::new(Nccl::new(post, &library, &ids, &lowering)?)) };
        posts.into_iter().map(end).collect()
    }

    fn new(post: Post, library: &nccl::Nccl, ids: &Arc<BTreeMap<Key, UniqueId>>, lowering: &Lowering) -> Result<Nccl> {
        let post = post.with_outboxes(|_| None)?;
        let own = lowering.queues().iter().filter(|queue| queue.device == post.device);
        let lane = |queue: &CommunicationQueue| Lane {
            key: Key::of(queue.device, queue.holds),
            queue: queue.clone(),
            next: 0,
        };
        let lanes = own.map(lane).collect();
        let mut inboxes = BTreeMap::new();
        for (number, mailbox) in
            post.shared.mailboxes.all().iter().enumerate().filter(|(_, m)| m.consumer == post.device)
        {
            let (arrived, read) = (post.gpu.events().untimed()?, post.gpu.events().untimed()?);
            let buffer = Buffer::new(post.gpu.context(), mailbox.bytes)?;
            inboxes.insert(number, Inbox { buffer, arrived, read });
        }
        let (library, ids) = (library.clone(), ids.clone());
        let (channels, made, exchanges) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Nccl { post, library, ids, channels, lanes, made, step: 0, exchanges, inboxes })
    }

    fn devices(&self) -> u32 {
        self.post.shared.plan.graph.schedule().devices()
    }

    fn inbox(&self, message: Message) -> Result<&Inbox> {
        self.inboxes.get(&message.mailbox).context("a message of another device")
    }

    /// Enqueues what stands next in a lane: up to the receive of `wanted` where there is one, else as far as sends are made.
    fn advance(&mut self, lane: usize, wanted: Option<usize>) -> Result<()> {
        while self.lanes[lane].next < self.lanes[lane].queue.groups() {
            let Lane { key, queue, next } = &self.lanes[lane];
            let (key, group) = (*key, queue.group(*next).to_vec());
            let is_unmade = |entry: &Entry| !entry.is_receive() && !self.made.contains_key(&entry.message());
            let receives = group.iter().any(|entry| entry.is_receive());
            match (wanted, group.iter().any(is_unmade)) {
                (None, unmade) if unmade || receives => return Ok(()),
                (_, true) => bail!("a receive stands behind a send that is not made: the checker refuses that"),
                _ => self.transfer(key, &group)?,
            }
            self.lanes[lane].next += 1;
            if wanted.is_some_and(|op| group.contains(&Entry::receive(op))) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Enqueues a group, whose sends are made.
    fn transfer(&mut self, key: Key, group: &[Entry]) -> Result<()> {
        let (mut outgoing, mut to, mut incoming) = (Vec::new(), Vec::new(), Vec::new());
        for entry in group {
            let (plan, op) = (&self.post.shared.plan, entry.message());
            if entry.is_receive() {
                let port = plan.outputs[op].context("a received message has a port")?;
                let message = self.post.shared.mailboxes.message(&port, self.step);
                let message = message.context("a received message has a mailbox")?;
                let from = key.rank(self.post.mailbox(message).producer, self.devices()).0;
                incoming.push((self.inboxes.get(&message.mailbox).context("a message of another device")?, from));
            } else {
                let message = *self.made.get(&op).context("what is sent is made")?;
                to.push(key.rank(self.post.mailbox(message).consumer, self.devices()).0);
                outgoing.push(message);
            }
        }
        let channel = lock(self.channels.get(&key).context("the channel is joined at the first step")?);
        incoming.iter().try_for_each(|(inbox, _)| channel.stream().wait(&inbox.read))?;
        let library = &self.library;
        self.post.send_all_on(channel.stream(), &outgoing, |outboxes| {
            let all = || {
                outboxes
                    .iter()
                    .zip(&to)
                    .try_for_each(|(outbox, &to)| channel.send((outbox.address, outbox.bytes), to))?;
                incoming.iter().try_for_each(|(inbox, from)| channel.receive(inbox.place(), *from))
            };
            Ok(if group.len() == 1 { all() } else { library.group(all) }?)
        })?;
        Ok(incoming.iter().try_for_each(|(inbox, _)| channel.stream().record(&inbox.arrived))?)
    }

    /// Both directions of an exchange at once: neither side's send could be over before the other's receive stands.
    fn swap(&mut self, into: Message) -> Result<Address> {
        let peer = self.post.mailbox(into).producer;
        let out = self.exchanges.get_mut(&peer).and_then(VecDeque::pop_front);
        let out = out.context("what goes out in an exchange is put before what comes in is awaited")?;
        let key = Key::Exchange(self.post.device.min(peer), self.post.device.max(peer));
        let to = key.rank(peer, self.devices()).0;
        let channel = lock(self.channels.get(&key).context("the channel is joined at the first step")?);
        let inbox = self.inboxes.get(&into.mailbox).context("a message of another device")?;
        channel.stream().wait(&inbox.read)?;
        self.post.send_on(channel.stream(), out, |outbox| {
            Ok(self.library.group(|| {
                channel.send((outbox.address, outbox.bytes), to)?;
                channel.receive(inbox.place(), to)
            })?)
        })?;
        channel.stream().record(&inbox.arrived)?;
        self.post.gpu.compute.wait(&inbox.arrived)?;
        Ok(inbox.buffer.address())
    }
}

impl Link for Nccl {
    type Place = Address;
    type Moment = Event;

    fn begin(&mut self) -> Result<()> {
        if self.channels.is_empty() {
            // In the order of their keys, on every device: then no two wait for each other at different ones.
            let ids = self.ids.clone();
            for (&key, &id) in ids.iter().filter(|(key, _)| key.concerns(self.post.device)) {
                let end = (self.post.device, &self.post.gpu);
                self.channels.insert(key, communicators::join(&self.library, &self.post.shared, end, (key, id))?);
            }
        } else {
            self.step += 1;
        }
        self.lanes.iter_mut().for_each(|lane| lane.next = 0);
        self.made.clear();
        Ok(())
    }

    fn outbox(&mut self, message: Message) -> Result<Address> {
        self.post.free_outbox(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        self.post.note_made(message)?;
        let Some(op) = message.op else {
            let peer = self.post.mailbox(message).consumer;
            self.exchanges.entry(peer).or_default().push_back(message);
            return Ok(());
        };
        self.made.insert(op, message);
        (0..self.lanes.len()).try_for_each(|lane| self.advance(lane, None))
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        let Some(op) = message.op else { return self.swap(message) };
        let pending = |lane: &Lane| {
            (lane.next..lane.queue.groups()).any(|group| lane.queue.group(group).contains(&Entry::receive(op)))
        };
        if let Some(lane) = self.lanes.iter().position(pending) {
            self.advance(lane, Some(op))?;
        }
        let inbox = self.inbox(message)?;
        self.post.gpu.compute.wait(&inbox.arrived)?;
        Ok(inbox.buffer.address())
    }

    fn release(&mut self, message: Message) -> Result<()> {
        Ok(self.post.gpu.compute.record(&self.inbox(message)?.read)?)
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.post.sent()
    }

    /// The other sessions' too: none of them has another step.
    fn abort(&mut self) {
        self.channels.values().for_each(|channel| lock(channel).abort());
    }

    fn is_done(&mut self) -> Result<bool> {
        for channel in self.channels.values().map(lock) {
            channel.check()?;
            if !channel.stream().is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
