//! The link by peer copies: the sender's stream copies into the receiver's memory and records an event, for which the receiver's
//! stream waits. Processes of one machine share memory and events by handles of the driver (CUDA IPC).

use super::super::link::{Link, Refusal, Setting, one_machine};
use super::super::message::Message;
use super::super::shared::Shared;
use super::endpoint::{Endpoint, GpuLink, apart};
use anyhow::{Context as _, Result, ensure};
use pipesim_gpu::{Address, Buffer, Event, Gpu, Imported, ProcessHandle};
use pipesim_schedule::delivery::Delivery;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The memory of a message buffer, as mapped in this process.
pub enum Memory {
    Own { buffer: Buffer, gpu: Arc<Gpu> },
    Theirs(Imported),
}

impl Memory {
    /// Allocates memory. If it is `shared` with another process, also returns its handle.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize, shared: bool) -> Result<(Memory, Option<Vec<u8>>)> {
        let make = if shared { Buffer::shareable } else { Buffer::new };
        let buffer = make(gpu.context(), bytes)?;
        let handle = shared.then(|| buffer.share().context("sharing memory with another process")).transpose()?;
        Ok((Memory::Own { buffer, gpu: gpu.clone() }, handle.map(|handle| handle.to_vec())))
    }

    /// Opens the memory that another process shares.
    pub fn open(gpu: &Arc<Gpu>, handles: Option<&Handles>) -> Result<Memory> {
        let opened = Imported::open(gpu.context(), handle(handles, 0)?);
        Ok(Memory::Theirs(opened.context("opening another process's memory")?))
    }

    pub fn address(&self) -> Address {
        match self {
            Memory::Own { buffer, .. } => buffer.address(),
            Memory::Theirs(imported) => imported.address(),
        }
    }
}

/// A message buffer, shared by its two ends.
struct Location {
    memory: Memory,
    /// Recorded by the sender behind its copy.
    arrived: Event,
    /// Recorded by the receiver behind its read.
    read: Event,
}

/// A device's end of the link.
pub struct Copy {
    endpoint: Endpoint,
    places: Arc<BTreeMap<usize, Location>>,
}

/// Handles for other processes: memory, and two events (for a message buffer, arrival and reading).
pub type Handles = [Option<Vec<u8>>; 3];

fn handle(handles: Option<&Handles>, index: usize) -> Result<ProcessHandle> {
    let found = handles.and_then(|handles| handles[index].as_deref()?.try_into().ok());
    found.context("expected the other process to share its side of a buffer, found nothing")
}

/// Creates an event. If it is `shared` with another process, also returns its handle.
pub fn make_event(gpu: &Gpu, shared: bool) -> Result<(Event, Option<Vec<u8>>)> {
    if !shared {
        return Ok((gpu.events().untimed()?, None));
    }
    let (event, handle) = Event::shared(gpu.context()).context("sharing an event with another process")?;
    Ok((event, Some(handle.to_vec())))
}

/// Opens an event that another process shares.
pub fn open_event(gpu: &Gpu, handles: Option<&Handles>, index: usize) -> Result<Event> {
    Event::open(gpu.context(), handle(handles, index)?).context("opening another process's event")
}

impl Copy {
    /// Checks the requirements: between processes, GPUs that reach each other's memory.
    pub fn probe(setting: &Setting<'_>) -> Result<(), Refusal> {
        one_machine(setting)?;
        match apart(setting) {
            None => Ok(()),
            Some([from, to]) => Err(Refusal {
                why: format!(
                    "expected GPUs with peer access between ranks, found GPU {from} without access to GPU {to}; use `link` local \
                     or nccl"
                ),
                is_unavailable: true,
            }),
        }
    }

    /// See [`MakeEnds`](super::MakeEnds).
    pub fn ends(endpoints: Vec<Endpoint>, shared: &Arc<Shared>, _: Delivery) -> Result<Vec<GpuLink>> {
        ensure!(
            shared.ranks.share_memory(),
            "expected all ranks on one machine for `link` copy, found several: use `link` nvshmem, nccl or mpi"
        );
        let gpus: BTreeMap<u32, Arc<Gpu>> =
            endpoints.iter().map(|endpoint| (endpoint.device, endpoint.gpu.clone())).collect();
        let mut own = BTreeMap::new();
        let mut offered: BTreeMap<usize, Handles> = BTreeMap::new();
        for (number, buffer) in shared.buffers.all().iter().enumerate() {
            let (producer, consumer) = (gpus.get(&buffer.producer), gpus.get(&buffer.consumer));
            let between = producer.is_some() != consumer.is_some();
            let event = |gpu: Option<&Arc<Gpu>>| gpu.map(|gpu| make_event(gpu, between)).transpose();
            let memory = consumer.map(|gpu| Memory::new(gpu, buffer.bytes, between)).transpose()?;
            let (memory, of_memory) = memory.unzip();
            let ((arrived, of_arrived), (read, of_read)) = (event(producer)?.unzip(), event(consumer)?.unzip());
            own.insert(number, (memory, arrived, read));
            if between {
                offered.insert(number, [of_memory, of_arrived, of_read].map(Option::flatten));
            }
        }
        let theirs = if shared.ranks.size() > 1 { exchange(shared, &offered)? } else { BTreeMap::new() };
        let mut places = BTreeMap::new();
        for (number, (memory, arrived, read)) in own {
            let buffer = &shared.buffers.all()[number];
            let Some(gpu) = gpus.get(&buffer.producer).or(gpus.get(&buffer.consumer)) else { continue };
            let theirs = theirs.get(&number);
            let memory = memory.map_or_else(|| Memory::open(gpu, theirs), Ok)?;
            let open = |event: Option<Event>, index| event.map_or_else(|| open_event(gpu, theirs, index), Ok);
            places.insert(number, Location { memory, arrived: open(arrived, 1)?, read: open(read, 2)? });
        }
        let places = Arc::new(places);
        let end = |endpoint: Endpoint| -> Result<GpuLink> {
            Ok(Box::new(Copy { endpoint: endpoint.with_send_buffers(|_| None)?, places: places.clone() }))
        };
        endpoints.into_iter().map(end).collect()
    }

    fn place(&self, message: Message) -> Result<&Location> {
        self.places.get(&message.buffer).context("a message of two other devices")
    }
}

/// Exchanges handles with the other processes, by buffer.
pub fn exchange(shared: &Shared, offered: &BTreeMap<usize, Handles>) -> Result<BTreeMap<usize, Handles>> {
    let all = shared.ranks.exchange(serde_json::to_vec(offered)?)?;
    let mut found: BTreeMap<usize, Handles> = BTreeMap::new();
    for (rank, bytes) in all.iter().enumerate().filter(|&(rank, _)| rank as u32 != shared.ranks.rank()) {
        let received: BTreeMap<usize, Handles> =
            serde_json::from_slice(bytes).with_context(|| format!("what rank {rank} shares"))?;
        for (number, handles) in received {
            for (place, handle) in found.entry(number).or_default().iter_mut().zip(handles) {
                *place = handle.or(place.take());
            }
        }
    }
    Ok(found)
}

impl Link for Copy {
    type Location = Address;
    type Timestamp = Event;

    fn send_buffer(&mut self, message: Message) -> Result<Address> {
        self.endpoint.free_send_buffer(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        let read_before = self.endpoint.wait_credit(message)?;
        let places = self.places.clone();
        let place = places.get(&message.buffer).context("a message of two other devices")?;
        self.endpoint.note_made(message)?;
        if read_before {
            self.endpoint.gpu.send.wait(&place.read)?;
        }
        self.endpoint.send(message, |gpu, send_buffer| {
            let (to, from, bytes) = (place.memory.address(), send_buffer.address, send_buffer.bytes);
            match &place.memory {
                Memory::Own { gpu: other, .. } if other.ordinal() != gpu.ordinal() => {
                    gpu.send.copy_peer((to, other.context()), (from, gpu.context()), bytes)?;
                }
                _ => gpu.send.copy(to, from, bytes)?,
            }
            Ok(())
        })?;
        self.endpoint.gpu.send.record(&place.arrived)?;
        self.endpoint.signal_enqueued(message);
        Ok(())
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        self.endpoint.wait_enqueued(message)?;
        let place = self.place(message)?;
        self.endpoint.gpu.compute.wait(&place.arrived)?;
        Ok(place.memory.address())
    }

    fn release(&mut self, message: Message) -> Result<()> {
        self.endpoint.gpu.compute.record(&self.place(message)?.read)?;
        self.endpoint.signal_read(message);
        Ok(())
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.endpoint.sent()
    }
}
