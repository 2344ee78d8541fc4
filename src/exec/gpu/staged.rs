//! The link through the hosts' memory: a message is copied to the sender's host, put into the receiver's host buffer as between CPU
//! devices (shared memory, or MPI between machines), and copied to the receiver's GPU. It works with any GPUs, but hosts wait for
//! messages inside steps.

use super::super::link::Link;
use super::super::message::Message;
use super::super::shared::Shared;
use super::super::signal::{Signal, WaitPolicy};
use super::super::watch::{Watch, join_within};
use super::endpoint::{Endpoint, GpuLink};
use anyhow::{Context as _, Result, anyhow};
use pipesim_gpu::{Address, Buffer, Event, Gpu, Pinned};
use pipesim_schedule::delivery::Delivery;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the end of a device waits for its forwarding thread.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A message on its way to the host and to the other device.
struct Outgoing {
    host: Mutex<Pinned>,
    /// It has arrived on the host.
    down: Event,
    /// Number of messages that have left the host.
    gone: Signal,
}

/// A received message.
struct StagedReceiveBuffer {
    host: Pinned,
    buffer: Buffer,
    /// It has arrived on the device.
    up: Event,
    read: Event,
}

/// A device's end of the link.
pub struct Staged {
    endpoint: Endpoint,
    outgoing: BTreeMap<usize, (Arc<Outgoing>, u64)>,
    receive_buffers: BTreeMap<usize, StagedReceiveBuffer>,
    /// `None` when the device ends.
    forwarder: Option<Sender<(Message, Arc<Outgoing>)>>,
    thread: Option<JoinHandle<()>>,
    /// Why messages are no longer forwarded.
    fault: Arc<OnceLock<String>>,
}

/// Ends waits if the run is aborted or messages are no longer forwarded.
struct StagedUntil<'a>(&'a Watch, &'a OnceLock<String>);

impl WaitPolicy for StagedUntil<'_> {
    fn spin(&self) -> Duration {
        self.0.spin()
    }

    fn is_aborted(&self) -> bool {
        self.0.is_aborted() || self.1.get().is_some()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.forwarder = None; // the thread ends when its channel closes
        join_within(self.thread.take(), JOIN_TIMEOUT);
    }
}

impl Staged {
    /// See [`MakeEnds`](super::MakeEnds).
    pub fn ends(endpoints: Vec<Endpoint>, _: &Arc<Shared>, _: Delivery) -> Result<Vec<GpuLink>> {
        endpoints.into_iter().map(|endpoint| -> Result<GpuLink> { Ok(Box::new(Staged::new(endpoint)?)) }).collect()
    }

    fn new(endpoint: Endpoint) -> Result<Staged> {
        let endpoint = endpoint.with_send_buffers(|_| None)?;
        let context = endpoint.gpu.context();
        let (mut outgoing, mut receive_buffers) = (BTreeMap::new(), BTreeMap::new());
        for (number, buffer) in endpoint.shared.buffers.all().iter().enumerate() {
            let padded = buffer.bytes.next_multiple_of(size_of::<f32>());
            if buffer.producer == endpoint.device {
                let host = Mutex::new(Pinned::new(context, padded)?);
                let way = Outgoing { host, down: endpoint.gpu.events().untimed()?, gone: Signal::default() };
                outgoing.insert(number, (Arc::new(way), 0));
            }
            if buffer.consumer == endpoint.device {
                let (up, read) = (endpoint.gpu.events().untimed()?, endpoint.gpu.events().untimed()?);
                let (host, buffer) = (Pinned::new(context, padded)?, Buffer::new(context, buffer.bytes)?);
                receive_buffers.insert(number, StagedReceiveBuffer { host, buffer, up, read });
            }
        }
        let (forwarder, messages) = channel();
        let shared = endpoint.shared.clone();
        let fault = Arc::new(OnceLock::new());
        let (gpu, reason) = (endpoint.gpu.clone(), fault.clone());
        let forward = move || {
            if let Err(error) = forward(&gpu, &shared, &messages) {
                let _ = reason.set(format!("{error:#}"));
            }
        };
        let name = format!("messages of device {}", endpoint.device);
        let thread = Some(std::thread::Builder::new().name(name).spawn(forward)?);
        Ok(Staged { endpoint, outgoing, receive_buffers, forwarder: Some(forwarder), thread, fault })
    }

    /// Fails if messages are no longer forwarded.
    fn check(&self) -> Result<()> {
        self.fault.get().map_or(Ok(()), |fault| Err(anyhow!("forwarding messages from the host: {fault}")))
    }
}

/// Forwards messages once they have arrived on the host.
fn forward(gpu: &Gpu, shared: &Shared, messages: &Receiver<(Message, Arc<Outgoing>)>) -> Result<()> {
    gpu.make_current()?;
    while let Ok((message, way)) = messages.recv() {
        let buffer = shared.buffers.of(message);
        way.down.synchronize()?;
        let mut data = vec![0.0_f32; buffer.bytes.div_ceil(size_of::<f32>())];
        way.host.lock().unwrap_or_else(PoisonError::into_inner).read(0, &mut data);
        let free = message.credit.is_none_or(|credit| {
            shared.heap.signal(buffer.host.read).wait(credit, &shared.watch).is_ok() // otherwise aborted
        });
        if !free {
            return Ok(());
        }
        buffer.host.put(&shared.heap, buffer.consumer, &data, message.value);
        way.gone.raise(way.gone.value() + 1);
    }
    Ok(())
}

impl Link for Staged {
    type Location = Address;
    type Timestamp = Event;

    fn send_buffer(&mut self, message: Message) -> Result<Address> {
        self.endpoint.free_send_buffer(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        let (way, count) = self.outgoing.get_mut(&message.buffer).context("a message of another device")?;
        let gone = way.gone.wait(*count, &StagedUntil(&self.endpoint.shared.watch, &self.fault));
        *count += 1;
        let way = way.clone();
        self.check()?;
        gone?;
        self.endpoint.note_made(message)?;
        self.endpoint.send(message, |gpu, send_buffer| {
            let host = way.host.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(gpu.send.download(&host, 0..send_buffer.bytes, send_buffer.address)?)
        })?;
        self.endpoint.gpu.send.record(&way.down)?;
        let sent = self.forwarder.as_ref().and_then(|forwarder| forwarder.send((message, way)).ok());
        self.check()?;
        sent.context("the thread that forwards messages has ended")
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        let come = self.endpoint.wait_enqueued_until(message, &StagedUntil(&self.endpoint.shared.watch, &self.fault));
        self.check()?;
        come?;
        let gpu = self.endpoint.gpu.clone();
        let buffer = self.endpoint.buffer(message).clone();
        let receive_buffer = self.receive_buffers.get_mut(&message.buffer).context("a message of another device")?;
        receive_buffer.up.synchronize()?;
        gpu.receive.wait(&receive_buffer.read)?;
        let len = buffer.bytes.div_ceil(size_of::<f32>());
        buffer.host.take(&self.endpoint.shared.heap, |data| receive_buffer.host.write(0, &data[..len]));
        self.endpoint.signal_read(message);
        gpu.receive.upload(receive_buffer.buffer.address(), &receive_buffer.host, 0..receive_buffer.buffer.bytes())?;
        gpu.receive.record(&receive_buffer.up)?;
        gpu.compute.wait(&receive_buffer.up)?;
        Ok(receive_buffer.buffer.address())
    }

    fn release(&mut self, message: Message) -> Result<()> {
        let receive_buffer = self.receive_buffers.get(&message.buffer).context("a message of another device")?;
        Ok(self.endpoint.gpu.compute.record(&receive_buffer.read)?)
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.endpoint.sent()
    }

    fn is_done(&mut self) -> Result<bool> {
        self.check().map(|()| true)
    }
}
