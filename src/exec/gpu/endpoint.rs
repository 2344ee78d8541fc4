//! Common parts of all links between GPUs: send buffers, and the times at which messages left them.

use super::super::link::{Link, Refusal, Setting};
use super::super::message::{Message, MessageBuffer};
use super::super::shared::Shared;
use super::super::signal::{Aborted, WaitPolicy};
use anyhow::{Context as _, Result};
use pipesim_gpu::library::{self, Wanted};
use pipesim_gpu::{Address, Buffer, Driver, Event, Gpu, Stream};
use pipesim_schedule::delivery::Delivery;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A GPU's end of a link.
pub type GpuLink = Box<dyn Link<Location = Address, Timestamp = Event>>;

/// Creates the ends of this process's GPUs under a delivery. All ranks must call it together.
pub type MakeEnds = fn(Vec<Endpoint>, &Arc<Shared>, Delivery) -> Result<Vec<GpuLink>>;

/// Checks that a library is available.
pub fn library(wanted: &'static Wanted) -> Result<(), Refusal> {
    library::open(wanted).map(|_| ()).map_err(|missing| Refusal { why: missing.to_string(), is_unavailable: true })
}

/// Returns two visible GPUs without peer access, if ranks of this machine would use both. A rank that sees only its own GPU cannot
/// tell.
pub fn apart(setting: &Setting<'_>) -> Option<[u32; 2]> {
    let driver = Driver::open().ok().filter(|_| setting.gpus && setting.ranks.size() > 1)?;
    let here = setting.ranks.devices_here(setting.devices).len() as u32;
    let used = here.div_ceil(setting.slices.unwrap_or(1)).min(driver.devices());
    let pairs = (0..used).flat_map(|from| (0..used).filter(move |&to| to != from).map(move |to| [from, to]));
    pairs.into_iter().find(|&[from, to]| !driver.peer_access(from, to).unwrap_or(true))
}

/// Memory that this device fills and sends.
pub struct SendBuffer {
    pub address: Address,
    pub bytes: usize,
    /// The memory, unless it belongs to the link.
    _own: Option<Buffer>,
    /// Its content was computed.
    pub made: Event,
    /// Its content was sent.
    pub sent: Event,
}

/// The device's side of a link, common to all links.
pub struct Endpoint {
    pub device: u32,
    pub gpu: Arc<Gpu>,
    pub shared: Arc<Shared>,
    send_buffers: BTreeMap<usize, SendBuffer>,
    /// By op: start and end of its put on the sending stream.
    left: BTreeMap<usize, [Event; 2]>,
}

impl Endpoint {
    /// Creates the endpoint of a device, without send buffers.
    pub fn new(device: u32, gpu: &Arc<Gpu>, shared: &Arc<Shared>) -> Endpoint {
        let (send_buffers, left) = (BTreeMap::new(), BTreeMap::new());
        Endpoint { device, gpu: gpu.clone(), shared: shared.clone(), send_buffers, left }
    }

    /// Creates a send buffer for each message buffer that the device fills: at the address that `place` returns for its number, or
    /// in newly allocated memory.
    pub fn with_send_buffers(mut self, place: impl Fn(usize) -> Option<Address>) -> Result<Endpoint> {
        for (number, buffer) in self.shared.buffers.all().iter().enumerate() {
            if buffer.producer != self.device {
                continue;
            }
            let given = place(number);
            let own = given.is_none().then(|| Buffer::new(self.gpu.context(), buffer.bytes)).transpose()?;
            let address = given.or(own.as_ref().map(Buffer::address)).context("a send buffer has an address")?;
            let (made, sent) = (self.gpu.events().untimed()?, self.gpu.events().untimed()?);
            self.send_buffers.insert(number, SendBuffer { address, bytes: buffer.bytes, _own: own, made, sent });
        }
        Ok(self)
    }

    /// See [`Link::sent`].
    pub fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        std::mem::take(&mut self.left)
    }

    /// Enqueues `transfer` on the send stream, behind the computation of the message, with events around it.
    pub fn send(&mut self, message: Message, transfer: impl FnOnce(&Gpu, &SendBuffer) -> Result<()>) -> Result<()> {
        let gpu = self.gpu.clone();
        self.send_on(&gpu.send, message, |send_buffer| transfer(&gpu, send_buffer))
    }

    /// As [`Endpoint::send`], on another stream.
    pub fn send_on(
        &mut self,
        stream: &Stream,
        message: Message,
        transfer: impl FnOnce(&SendBuffer) -> Result<()>,
    ) -> Result<()> {
        self.send_all_on(stream, &[message], |send_buffers| transfer(send_buffers[0]))
    }

    /// As [`Endpoint::send_on`], for several messages in one `transfer`.
    pub fn send_all_on(
        &mut self,
        stream: &Stream,
        messages: &[Message],
        transfer: impl FnOnce(&[&SendBuffer]) -> Result<()>,
    ) -> Result<()> {
        let send_buffers = messages.iter().map(|&message| self.send_buffer(message)).collect::<Result<Vec<_>>>()?;
        send_buffers.iter().try_for_each(|send_buffer| stream.wait(&send_buffer.made))?;
        // Exchanges need no times; their events would return to the pool before the stream reaches them.
        let mark = |message: &Message| message.op.map(|_| self.gpu.mark(stream)).transpose();
        let starts = messages.iter().map(mark).collect::<Result<Vec<_>, _>>()?;
        transfer(&send_buffers)?;
        let ends = messages.iter().map(mark).collect::<Result<Vec<_>, _>>()?;
        send_buffers.iter().try_for_each(|send_buffer| stream.record(&send_buffer.sent))?;
        for (message, marks) in messages.iter().zip(starts.into_iter().zip(ends)) {
            if let (Some(op), (Some(start), Some(end))) = (message.op, marks) {
                self.left.insert(op, [start, end]);
            }
        }
        Ok(())
    }

    /// Records on the compute stream that the message is computed.
    pub fn note_made(&self, message: Message) -> Result<()> {
        Ok(self.gpu.compute.record(&self.send_buffer(message)?.made)?)
    }

    pub fn buffer(&self, message: Message) -> &MessageBuffer {
        self.shared.buffers.of(message)
    }

    fn send_buffer(&self, message: Message) -> Result<&SendBuffer> {
        self.send_buffers.get(&message.buffer).context("a message of another device")
    }

    /// Returns where to write the next message; the compute stream waits until the last one has left.
    pub fn free_send_buffer(&self, message: Message) -> Result<Address> {
        let send_buffer = self.send_buffer(message)?;
        self.gpu.compute.wait(&send_buffer.sent)?;
        Ok(send_buffer.address)
    }

    /// Waits on the host until the other side has enqueued the work that produces the message.
    pub fn wait_enqueued(&self, message: Message) -> Result<(), Aborted> {
        self.wait_enqueued_until(message, &self.shared.watch)
    }

    /// As [`Endpoint::wait_enqueued`], with another wait policy.
    pub fn wait_enqueued_until(&self, message: Message, policy: &impl WaitPolicy) -> Result<(), Aborted> {
        let slot = self.buffer(message).host;
        self.shared.heap.signal(slot.arrived).wait(message.value, policy)
    }

    /// Waits on the host until the reader has enqueued its last read, if the graph requires it. Returns whether there was one.
    pub fn wait_credit(&self, message: Message) -> Result<bool, Aborted> {
        let Some(credit) = message.credit else { return Ok(false) };
        let slot = self.buffer(message).host;
        self.shared.heap.signal(slot.read).wait(credit, &self.shared.watch)?;
        Ok(credit > 0)
    }

    /// Signals to the other side that the work that produces the message is enqueued.
    pub fn signal_enqueued(&self, message: Message) {
        let buffer = self.buffer(message);
        self.shared.heap.raise(buffer.consumer, buffer.host.arrived, message.value);
    }

    /// Signals to the other side that the read of the message is enqueued.
    pub fn signal_read(&self, message: Message) {
        let buffer = self.buffer(message);
        self.shared.heap.raise(buffer.producer, buffer.host.read, message.value);
    }
}
