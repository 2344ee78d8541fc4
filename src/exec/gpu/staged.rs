//! Through the hosts' memory: a message is copied to the sender's host, put into the receiver's slot as between CPU devices
//! (shared memory, or MPI between machines), and copied to the receiver's GPU. It needs nothing of the GPUs but copies; its
//! price is that hosts wait for messages, inside steps too.

use super::super::link::Link;
use super::super::mailbox::Message;
use super::super::shared::Shared;
use super::super::signal::{Patience, Signal};
use super::super::thread;
use super::super::watch::Watch;
use super::post::{GpuLink, Post};
use crate::cuda::{Address, Buffer, Event, Gpu, Pinned};
use crate::delivery::Delivery;
use anyhow::{Context as _, Result, anyhow};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the thread that hands messages on is waited for when the device ends.
const PARTING: Duration = Duration::from_secs(5);

/// A message on its way down to the host and on.
struct Outgoing {
    host: Mutex<Pinned>,
    /// It is on the host.
    down: Event,
    /// How many have gone on from there.
    gone: Signal,
}

/// A message that came in.
struct Inbox {
    host: Pinned,
    buffer: Buffer,
    /// It is on the device.
    up: Event,
    read: Event,
}

/// A device's end.
pub struct Staged {
    post: Post,
    outgoing: BTreeMap<usize, (Arc<Outgoing>, u64)>,
    inboxes: BTreeMap<usize, Inbox>,
    /// None when the device ends.
    forwarder: Option<Sender<(Message, Arc<Outgoing>)>>,
    thread: Option<JoinHandle<()>>,
    /// Why messages are not handed on any more.
    fault: Arc<OnceLock<String>>,
}

/// Waits end where all is called off, and where messages are not handed on any more.
struct Until<'a>(&'a Watch, &'a OnceLock<String>);

impl Patience for Until<'_> {
    fn spin(&self) -> Duration {
        self.0.spin()
    }

    fn is_aborted(&self) -> bool {
        self.0.is_aborted() || self.1.get().is_some()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.forwarder = None; // for which the thread waits
        thread::join_within(self.thread.take(), PARTING);
    }
}

impl Staged {
    /// See [`MakeEnds`](super::MakeEnds).
    pub fn ends(posts: Vec<Post>, _: &Arc<Shared>, _: Delivery) -> Result<Vec<GpuLink>> {
        posts.into_iter().map(|post| -> Result<GpuLink> { Ok(Box::new(Staged::new(post)?)) }).collect()
    }

    fn new(post: Post) -> Result<Staged> {
        let post = post.with_outboxes(|_| None)?;
        let context = post.gpu.context();
        let (mut outgoing, mut inboxes) = (BTreeMap::new(), BTreeMap::new());
        for (number, mailbox) in post.shared.mailboxes.all().iter().enumerate() {
            let padded = mailbox.bytes.next_multiple_of(size_of::<f32>());
            if mailbox.producer == post.device {
                let host = Mutex::new(Pinned::new(context, padded)?);
                let way = Outgoing { host, down: post.gpu.events().untimed()?, gone: Signal::default() };
                outgoing.insert(number, (Arc::new(way), 0));
            }
            if mailbox.consumer == post.device {
                let (up, read) = (post.gpu.events().untimed()?, post.gpu.events().untimed()?);
                let (host, buffer) = (Pinned::new(context, padded)?, Buffer::new(context, mailbox.bytes)?);
                inboxes.insert(number, Inbox { host, buffer, up, read });
            }
        }
        let (forwarder, messages) = channel();
        let shared = post.shared.clone();
        let fault = Arc::new(OnceLock::new());
        let (gpu, told) = (post.gpu.clone(), fault.clone());
        let forward = move || {
            if let Err(error) = forward(&gpu, &shared, &messages) {
                let _ = told.set(format!("{error:#}"));
            }
        };
        let name = format!("messages of device {}", post.device);
        let thread = Some(std::thread::Builder::new().name(name).spawn(forward)?);
        Ok(Staged { post, outgoing, inboxes, forwarder: Some(forwarder), thread, fault })
    }

    /// An error where messages are not handed on any more.
    fn check(&self) -> Result<()> {
        self.fault.get().map_or(Ok(()), |fault| Err(anyhow!("handing messages on from the host: {fault}")))
    }
}

/// Hands messages on once they are on the host.
fn forward(gpu: &Gpu, shared: &Shared, messages: &Receiver<(Message, Arc<Outgoing>)>) -> Result<()> {
    gpu.make_current()?;
    while let Ok((message, way)) = messages.recv() {
        let mailbox = shared.mailboxes.of(message);
        way.down.synchronize()?;
        let mut data = vec![0.0_f32; mailbox.bytes.div_ceil(size_of::<f32>())];
        way.host.lock().unwrap_or_else(PoisonError::into_inner).read(0, &mut data);
        let free = message.credit.is_none_or(|credit| {
            shared.heap.signal(mailbox.slot.read).wait(credit, &shared.watch).is_ok() // else called off
        });
        if !free {
            return Ok(());
        }
        mailbox.slot.put(&shared.heap, mailbox.consumer, &data, message.value);
        way.gone.raise(way.gone.value() + 1);
    }
    Ok(())
}

impl Link for Staged {
    type Place = Address;
    type Moment = Event;

    fn outbox(&mut self, message: Message) -> Result<Address> {
        self.post.free_outbox(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        let (way, count) = self.outgoing.get_mut(&message.mailbox).context("a message of another device")?;
        let gone = way.gone.wait(*count, &Until(&self.post.shared.watch, &self.fault));
        *count += 1;
        let way = way.clone();
        self.check()?;
        gone?;
        self.post.note_made(message)?;
        self.post.send(message, |gpu, outbox| {
            let host = way.host.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(gpu.send.download(&host, 0..outbox.bytes, outbox.address)?)
        })?;
        self.post.gpu.send.record(&way.down)?;
        let sent = self.forwarder.as_ref().and_then(|forwarder| forwarder.send((message, way)).ok());
        self.check()?;
        sent.context("the thread that hands messages on is gone")
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        let come = self.post.wait_enqueued_until(message, &Until(&self.post.shared.watch, &self.fault));
        self.check()?;
        come?;
        let gpu = self.post.gpu.clone();
        let mailbox = *self.post.mailbox(message);
        let inbox = self.inboxes.get_mut(&message.mailbox).context("a message of another device")?;
        inbox.up.synchronize()?;
        gpu.receive.wait(&inbox.read)?;
        let len = mailbox.bytes.div_ceil(size_of::<f32>());
        mailbox.slot.take(&self.post.shared.heap, |data| inbox.host.write(0, &data[..len]));
        self.post.tell_read(message);
        gpu.receive.upload(inbox.buffer.address(), &inbox.host, 0..inbox.buffer.bytes())?;
        gpu.receive.record(&inbox.up)?;
        gpu.compute.wait(&inbox.up)?;
        Ok(inbox.buffer.address())
    }

    fn release(&mut self, message: Message) -> Result<()> {
        let inbox = self.inboxes.get(&message.mailbox).context("a message of another device")?;
        Ok(self.post.gpu.compute.record(&inbox.read)?)
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.post.sent()
    }

    fn is_done(&mut self) -> Result<bool> {
        self.check().map(|()| true)
    }
}
