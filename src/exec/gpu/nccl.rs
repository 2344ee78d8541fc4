//! NCCL: a device has one communication queue, whose sends and receives stand in the order that the checker has proven free
//! from deadlock; each completes when its partner stands at the head of the other's queue.

use super::super::common::Common;
use super::carrier::{Carrier, Post};
use super::mailbox::Message;
use crate::cuda::nccl::{self, UniqueId};
use crate::cuda::{Address, Buffer, Channel, Event};
use crate::delivery::Delivery;
use crate::lowering::{Entry, Lowering};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A buffer that is received into.
struct Inbox {
    buffer: Buffer,
    arrived: Event,
    read: Event,
    used: bool,
}

/// A device's end.
pub struct Nccl {
    post: Post,
    library: nccl::Nccl,
    id: UniqueId,
    channel: Option<Channel>,
    /// This device's queue in each step.
    entries: Vec<Entry>,
    next: usize,
    /// This step's messages by the op that makes them: what may be sent, and what is asked for.
    made: BTreeMap<usize, Message>,
    step: u64,
    inboxes: BTreeMap<usize, Inbox>,
}

impl Nccl {
    /// The ends of this process's devices; all ranks must call this together.
    pub fn all(posts: Vec<Post>, common: &Arc<Common>) -> Result<Vec<Nccl>> {
        let gpus: BTreeSet<u32> = posts.iter().map(|post| post.gpu.ordinal()).collect();
        ensure!(
            gpus.len() == posts.len(),
            "expected a GPU for each device with --link nccl, found {} devices on {} GPUs: use --link copy, or fewer devices",
            posts.len(),
            gpus.len()
        );
        let library = nccl::Nccl::open().map_err(|error| anyhow!("{error}"));
        let able = common.ranks.exchange(vec![u8::from(library.is_ok())])?;
        let library = library?;
        ensure!(able.iter().all(|able| *able == [1]), "expected NCCL at every rank, found it missing at another");
        let id = if common.ranks.rank() == 0 { library.unique_id()?.to_bytes().to_vec() } else { Vec::new() };
        let ids = common.ranks.exchange(id)?;
        let id = UniqueId::from_bytes(ids[0].as_slice().try_into().context("rank 0's NCCL id")?);
        let lowering = Lowering::new(&common.plan.graph, Delivery::Channel(Default::default()));
        posts.into_iter().map(|post| Nccl::new(post, &library, id, &lowering)).collect()
    }

    fn new(post: Post, library: &nccl::Nccl, id: UniqueId, lowering: &Lowering) -> Result<Nccl> {
        let queue = lowering.queues().iter().find(|queue| queue.device == post.device);
        let entries = queue.map_or_else(Vec::new, |queue| queue.entries.clone());
        let mut inboxes = BTreeMap::new();
        for (number, mailbox) in post.mailboxes.all().iter().enumerate().filter(|(_, m)| m.consumer == post.device) {
            let context = post.gpu.context();
            let (arrived, read) = (Event::untimed(context)?, Event::untimed(context)?);
            let buffer = Buffer::new(context, mailbox.bytes)?;
            inboxes.insert(number, Inbox { buffer, arrived, read, used: false });
        }
        Ok(Nccl {
            post,
            library: library.clone(),
            id,
            channel: None,
            entries,
            next: 0,
            made: BTreeMap::new(),
            step: 0,
            inboxes,
        })
    }

    fn channel(&self) -> Result<&Channel> {
        self.channel.as_ref().context("the channel is joined at the first step")
    }

    /// The inbox of a message, once nothing reads it any more.
    fn free_inbox(&mut self, message: Message) -> Result<()> {
        let inbox = self.inboxes.get_mut(&message.mailbox).context("a message of another device")?;
        if inbox.used {
            self.post.gpu.send.wait(&inbox.read)?;
        }
        inbox.used = true;
        Ok(())
    }

    fn arrived(&self, message: Message) -> Result<&Inbox> {
        self.inboxes.get(&message.mailbox).context("a message of another device")
    }

    /// Enqueues what stands next in the queue: up to the receive of `wanted` where there is one, else as far as sends are made.
    fn advance(&mut self, wanted: Option<usize>) -> Result<()> {
        while let Some(&entry) = self.entries.get(self.next) {
            let op = entry.message();
            match (entry.is_receive(), self.made.get(&op).copied()) {
                (true, _) if wanted.is_none() => return Ok(()),
                (true, _) => self.receive(op)?,
                (false, Some(message)) => self.send(message)?,
                (false, None) if wanted.is_none() => return Ok(()),
                (false, None) => bail!("a receive stands behind a send that is not made: the checker should have refused it"),
            }
            self.next += 1;
            if entry.is_receive() && wanted == Some(op) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn send(&mut self, message: Message) -> Result<()> {
        let consumer = self.post.mailbox(message).consumer;
        let channel = self.channel.as_ref().context("the channel is joined at the first step")?;
        self.post.send(message, |_, outbox| channel.send(&outbox.buffer, consumer))
    }

    fn receive(&mut self, op: usize) -> Result<()> {
        let port = self.post.common.plan.outputs[op].context("a received message has a port")?;
        let message = self.post.mailboxes.message(&port, self.step).context("a received message has a mailbox")?;
        self.free_inbox(message)?;
        let (producer, inbox) = (self.post.mailbox(message).producer, self.arrived(message)?);
        self.channel()?.receive(&inbox.buffer, producer)?;
        Ok(self.post.gpu.send.record(&inbox.arrived)?)
    }
}

impl Carrier for Nccl {
    fn post(&self) -> &Post {
        &self.post
    }

    fn post_mut(&mut self) -> &mut Post {
        &mut self.post
    }

    fn begin(&mut self) -> Result<()> {
        self.post.clear_marks();
        if self.channel.is_none() {
            let devices = self.post.common.plan.graph.schedule().devices();
            self.channel = Some(Channel::join(&self.library, &self.post.gpu, self.post.device, devices, self.id)?);
        } else {
            self.step += 1;
        }
        self.next = 0;
        self.made.clear();
        Ok(())
    }

    fn outbox(&mut self, message: Message) -> Result<Address> {
        self.post.free_outbox(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        let op = message.op.context("an exchange goes by swap")?;
        self.post.note_made(message)?;
        self.made.insert(op, message);
        self.advance(None)
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        let op = message.op.context("an exchange goes by swap")?;
        if self.entries[self.next..].iter().any(|entry| entry.is_receive() && entry.message() == op) {
            self.advance(Some(op))?;
        }
        let inbox = self.arrived(message)?;
        self.post.gpu.compute.wait(&inbox.arrived)?;
        Ok(inbox.buffer.address())
    }

    fn release(&mut self, message: Message) -> Result<()> {
        Ok(self.post.gpu.compute.record(&self.arrived(message)?.read)?)
    }

    fn swap(&mut self, [out, into]: [Message; 2]) -> Result<Address> {
        self.post.note_made(out)?;
        self.free_inbox(into)?;
        let peers = (self.post.mailbox(out).consumer, self.post.mailbox(into).producer);
        let inbox = self.inboxes.get(&into.mailbox).context("a message of another device")?;
        let channel = self.channel.as_ref().context("the channel is joined at the first step")?;
        self.post.send(out, |_, outbox| channel.swap((&outbox.buffer, peers.0), (&inbox.buffer, peers.1)))?;
        self.post.gpu.send.record(&inbox.arrived)?;
        self.post.gpu.compute.wait(&inbox.arrived)?;
        Ok(inbox.buffer.address())
    }

    fn check(&mut self) -> Result<()> {
        self.channel.as_ref().map_or(Ok(()), Channel::check)
    }
}
