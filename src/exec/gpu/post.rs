//! What the ends of every link between GPUs have in common: outboxes, and when messages left them.

use super::super::link::{Link, Refusal};
use super::super::mailbox::{Mailbox, Message};
use super::super::shared::Shared;
use super::super::signal::{Aborted, Patience};
use crate::cuda::library::{self, Wanted};
use crate::cuda::{Address, Buffer, Event, Gpu, Stream};
use crate::delivery::Delivery;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A GPU's end.
pub type GpuLink = Box<dyn Link<Place = Address, Moment = Event>>;

/// Makes the ends of this process's GPUs under a delivery; all ranks call it together.
pub type MakeEnds = fn(Vec<Post>, &Arc<Shared>, Delivery) -> Result<Vec<GpuLink>>;

/// Whether a library is here.
pub fn library(wanted: &'static Wanted) -> Result<(), Refusal> {
    library::open(wanted).map(|_| ()).map_err(|missing| Refusal { why: missing.to_string(), is_lack: true })
}

/// Memory that this device fills and sends.
pub struct Outbox {
    pub address: Address,
    pub bytes: usize,
    /// Its own, unless it lies in memory of the link.
    _own: Option<Buffer>,
    /// What is in it was computed.
    pub made: Event,
    /// It was sent.
    pub sent: Event,
}

/// What every link keeps for its device.
pub struct Post {
    pub device: u32,
    pub gpu: Arc<Gpu>,
    pub shared: Arc<Shared>,
    outboxes: BTreeMap<usize, Outbox>,
    /// By op: where its put begins and ends on the stream that sends it.
    left: BTreeMap<usize, [Event; 2]>,
}

impl Post {
    /// That of a device, without outboxes.
    pub fn new(device: u32, gpu: &Arc<Gpu>, shared: &Arc<Shared>) -> Post {
        let (outboxes, left) = (BTreeMap::new(), BTreeMap::new());
        Post { device, gpu: gpu.clone(), shared: shared.clone(), outboxes, left }
    }

    /// Makes an outbox for each mailbox that the device fills: where `place` says, by the mailbox's number, or in memory of its own.
    pub fn with_outboxes(mut self, place: impl Fn(usize) -> Option<Address>) -> Result<Post> {
        for (number, mailbox) in self.shared.mailboxes.all().iter().enumerate() {
            if mailbox.producer != self.device {
                continue;
            }
            let given = place(number);
            let own = given.is_none().then(|| Buffer::new(self.gpu.context(), mailbox.bytes)).transpose()?;
            let address = given.or(own.as_ref().map(Buffer::address)).context("an outbox lies somewhere")?;
            let (made, sent) = (self.gpu.events().untimed()?, self.gpu.events().untimed()?);
            self.outboxes.insert(number, Outbox { address, bytes: mailbox.bytes, _own: own, made, sent });
        }
        Ok(self)
    }

    /// See [`Link::sent`].
    pub fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        std::mem::take(&mut self.left)
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
        self.send_all_on(stream, &[message], |outboxes| transfer(outboxes[0]))
    }

    /// [`Post::send_on`] of several messages by one `transfer`.
    pub fn send_all_on(
        &mut self,
        stream: &Stream,
        messages: &[Message],
        transfer: impl FnOnce(&[&Outbox]) -> Result<()>,
    ) -> Result<()> {
        let outboxes = messages.iter().map(|&message| self.outbox(message)).collect::<Result<Vec<_>>>()?;
        outboxes.iter().try_for_each(|outbox| stream.wait(&outbox.made))?;
        // Nobody asks when an exchange left; its marks would return to the pool while the stream has yet to come to them.
        let mark = |message: &Message| message.op.map(|_| self.gpu.mark(stream)).transpose();
        let starts = messages.iter().map(mark).collect::<Result<Vec<_>, _>>()?;
        transfer(&outboxes)?;
        let ends = messages.iter().map(mark).collect::<Result<Vec<_>, _>>()?;
        outboxes.iter().try_for_each(|outbox| stream.record(&outbox.sent))?;
        for (message, marks) in messages.iter().zip(starts.into_iter().zip(ends)) {
            if let (Some(op), (Some(start), Some(end))) = (message.op, marks) {
                self.left.insert(op, [start, end]);
            }
        }
        Ok(())
    }

    /// Notes on the compute stream that the message is made.
    pub fn note_made(&self, message: Message) -> Result<()> {
        Ok(self.gpu.compute.record(&self.outbox(message)?.made)?)
    }

    pub fn mailbox(&self, message: Message) -> &Mailbox {
        self.shared.mailboxes.of(message)
    }

    fn outbox(&self, message: Message) -> Result<&Outbox> {
        self.outboxes.get(&message.mailbox).context("a message of another device")
    }

    /// Where the next message is to be written, once the last one has left.
    pub fn free_outbox(&self, message: Message) -> Result<Address> {
        let outbox = self.outbox(message)?;
        self.gpu.compute.wait(&outbox.sent)?;
        Ok(outbox.address)
    }

    /// Waits on the host until the other side has enqueued what makes the message.
    pub fn wait_enqueued(&self, message: Message) -> Result<(), Aborted> {
        self.wait_enqueued_until(message, &self.shared.watch)
    }

    /// [`Post::wait_enqueued`] with a patience of one's own.
    pub fn wait_enqueued_until(&self, message: Message, patience: &impl Patience) -> Result<(), Aborted> {
        let slot = self.mailbox(message).slot;
        self.shared.heap.signal(slot.arrived).wait(message.value, patience)
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
