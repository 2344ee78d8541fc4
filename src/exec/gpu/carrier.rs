//! How messages get from one GPU to another: what every way has in common, and which ways there are.

use super::super::shared::Shared;
use super::super::watch::Aborted;
use super::copy::Copy;
use super::mailbox::{Mailbox, Mailboxes, Message, MessageBytes};
use super::nccl::Nccl;
use super::nvshmem::Nvshmem;
use super::staged::Staged;
use super::timer::{Mark, Timer};
use crate::cuda::{Address, Buffer, Clock, Event, Gpu, Stream};
use crate::delivery::ChannelOptions;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Peer copies and events; between processes through the driver's shared handles.
    Copy,
    /// One-sided puts with signal on a stream: a rank a device.
    Nvshmem,
    /// Sends and receives that meet, in such queues: a GPU a device.
    Nccl(ChannelOptions),
    /// Through the hosts' memory, and from there by whatever joins the ranks.
    Staged,
}

/// A device's end of the way to the others. Calls only enqueue, unless they say so; "the compute stream" is this device's.
pub trait Carrier: Send {
    /// Called by the device's thread at the start of each step, when nothing is enqueued; may wait for other devices.
    fn begin(&mut self) -> Result<()> {
        self.post_mut().clear_marks();
        Ok(())
    }

    /// Where the op that makes this message is to write it: what is enqueued on the compute stream from now on may.
    fn outbox(&mut self, message: Message) -> Result<Address>;

    /// Sends what is in the outbox once the compute stream has come to here.
    fn put(&mut self, message: Message) -> Result<()>;

    /// What is enqueued on the compute stream from now on has the message, at the address returned.
    fn wait(&mut self, message: Message) -> Result<Address>;

    /// What is enqueued on the compute stream from now on does not need the message any more.
    fn release(&mut self, message: Message) -> Result<()>;

    /// Both directions of an exchange: puts the first, waits for the second.
    fn swap(&mut self, [out, into]: [Message; 2]) -> Result<Address> {
        self.put(out)?;
        self.wait(into)
    }

    /// When each message that an op made left, from its put's beginning to its end, by the op: read when the step is over.
    fn sent(&self, clock: &Clock) -> Result<BTreeMap<usize, (u64, u64)>> {
        self.post().marks.iter().map(|(&op, marks)| Ok((op, self.post().times(marks, clock)?))).collect()
    }

    /// What it keeps as every carrier does.
    fn post(&self) -> &Post;

    /// See [`Carrier::post`].
    fn post_mut(&mut self) -> &mut Post;

    /// Whether all that this carrier enqueued on streams of its own is done; an error where it cannot complete any more. Asked
    /// while the device's thread waits for the end of a step.
    fn is_done(&mut self) -> Result<bool> {
        Ok(true)
    }
}

/// A buffer that this device fills and sends.
pub struct Outbox {
    pub buffer: Buffer,
    /// What is in it was computed.
    pub made: Event,
    /// It was sent.
    pub sent: Event,
    used: bool,
}

/// What every carrier keeps for its device.
pub struct Post {
    pub device: u32,
    pub gpu: Arc<Gpu>,
    pub shared: Arc<Shared>,
    pub mailboxes: Arc<Mailboxes>,
    outboxes: BTreeMap<usize, Outbox>,
    timer: Timer,
    /// By op: where its put begins and ends on the send stream.
    marks: BTreeMap<usize, [Mark; 2]>,
}

impl Post {
    pub fn new(device: u32, gpu: &Arc<Gpu>, shared: &Arc<Shared>, mailboxes: &Arc<Mailboxes>) -> Result<Post> {
        let mut outboxes = BTreeMap::new();
        for (number, mailbox) in mailboxes.all().iter().enumerate().filter(|(_, mailbox)| mailbox.producer == device) {
            let context = gpu.context();
            let buffer = Buffer::new(context, mailbox.bytes)?;
            let (made, sent) = (Event::untimed(context)?, Event::untimed(context)?);
            outboxes.insert(number, Outbox { buffer, made, sent, used: false });
        }
        Ok(Post {
            device,
            gpu: gpu.clone(),
            shared: shared.clone(),
            mailboxes: mailboxes.clone(),
            outboxes,
            timer: Timer::new(gpu),
            marks: BTreeMap::new(),
        })
    }

    pub fn clear_marks(&mut self) {
        self.timer.clear();
        self.marks.clear();
    }

    fn times(&self, marks: &[Mark; 2], clock: &Clock) -> Result<(u64, u64)> {
        Ok((self.timer.ns(marks[0], clock)?, self.timer.ns(marks[1], clock)?))
    }

    /// Enqueues on the send stream, once the message is made: `transfer`, marked, and that the outbox is free.
    pub fn send(&mut self, message: Message, transfer: impl FnOnce(&Gpu, &Outbox) -> Result<()>) -> Result<()> {
        let gpu = self.gpu.clone();
        self.send_on(&gpu.send, message, |outbox| transfer(&gpu, outbox))
    }

    /// [`Post::send`] on another stream.
    pub fn send_on(
        &mut self,
        stream: &Stream,
        message: Message,
        transfer: impl FnOnce(&Outbox) -> Result<()>,
    ) -> Result<()> {
        stream.wait(&self.outbox(message)?.made)?;
        let start = self.timer.mark(stream)?;
        transfer(self.outbox(message)?)?;
        let end = self.timer.mark(stream)?;
        stream.record(&self.outbox(message)?.sent)?;
        message.op.map(|op| self.marks.insert(op, [start, end]));
        Ok(())
    }

    /// Notes on the compute stream that the message is made.
    pub fn note_made(&self, message: Message) -> Result<()> {
        Ok(self.gpu.compute.record(&self.outbox(message)?.made)?)
    }

    pub fn mailbox(&self, message: Message) -> &Mailbox {
        &self.mailboxes.all()[message.mailbox]
    }

    pub fn outbox(&self, message: Message) -> Result<&Outbox> {
        self.outboxes.get(&message.mailbox).context("a message of another device")
    }

    /// Where the next message is to be written, once the last one has left.
    pub fn free_outbox(&mut self, message: Message) -> Result<Address> {
        let outbox = self.outboxes.get_mut(&message.mailbox).context("a message of another device")?;
        if outbox.used {
            self.gpu.compute.wait(&outbox.sent)?;
        }
        outbox.used = true;
        Ok(outbox.buffer.address())
    }

    /// Waits on the host until the other side has enqueued what makes the message.
    pub fn wait_enqueued(&self, message: Message) -> Result<(), Aborted> {
        let slot = self.mailbox(message).slot;
        self.shared.heap.signal(slot.arrived).wait(message.value, &self.shared.watch)
    }

    /// Waits on the host, where the graph asks for it, until the reader has enqueued its last reading; whether it did.
    pub fn wait_credit(&self, message: Message) -> Result<bool, Aborted> {
        let Some(credit) = message.credit else { return Ok(false) };
        let slot = self.mailbox(message).slot;
        self.shared.heap.signal(slot.read).wait(credit, &self.shared.watch)?;
        Ok(credit > 0)
    }

    /// Tells the other side that what makes the message is enqueued.
    pub fn tell_enqueued(&self, message: Message) {
        let mailbox = self.mailbox(message);
        self.shared.heap.raise(mailbox.consumer, mailbox.slot.arrived, message.value);
    }

    /// Tells the other side that the reading of the message is enqueued.
    pub fn tell_read(&self, message: Message) {
        let mailbox = self.mailbox(message);
        self.shared.heap.raise(mailbox.producer, mailbox.slot.read, message.value);
    }
}

/// The carriers of this process's devices.
pub struct Carriers(pub Vec<(u32, Box<dyn Carrier>)>);

impl Carriers {
    /// A carrier of this kind for each of `gpus`, which are this rank's devices in order; all ranks must call this together.
    ///
    /// # Errors
    /// The kind does not work here; the error says why.
    pub fn new(
        kind: Kind,
        shared: &Arc<Shared>,
        gpus: &[Arc<Gpu>],
        bytes: &MessageBytes,
    ) -> Result<(Carriers, Arc<Mailboxes>)> {
        let mailboxes = Mailboxes::new(shared, bytes);
        let devices = shared.ranks.devices(shared.plan.graph.schedule().devices());
        let posts = devices.zip(gpus).map(|(device, gpu)| Post::new(device, gpu, shared, &mailboxes));
        let posts: Vec<Post> = posts.collect::<Result<_>>()?;
        let carriers: Vec<Box<dyn Carrier>> = match kind {
            Kind::Copy => boxed(Copy::all(posts, shared, &mailboxes)?),
            Kind::Nvshmem => boxed(Nvshmem::all(posts, shared, &mailboxes)?),
            Kind::Nccl(options) => boxed(Nccl::all(posts, shared, options)?),
            Kind::Staged => boxed(Staged::all(posts)?),
        };
        let numbers = shared.ranks.devices(shared.plan.graph.schedule().devices());
        Ok((Carriers(numbers.zip(carriers).collect()), mailboxes))
    }
}

fn boxed<C: Carrier + 'static>(carriers: Vec<C>) -> Vec<Box<dyn Carrier>> {
    carriers.into_iter().map(|carrier| Box::new(carrier) as Box<dyn Carrier>).collect()
}
