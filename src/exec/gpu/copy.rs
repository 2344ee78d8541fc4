//! Peer copies and events: the sender's stream copies into the receiver's memory and records an event, for which the
//! receiver's stream waits. Between processes of one machine memory and events go by the driver's shared handles (CUDA IPC).

use super::super::link::Link;
use super::super::mailbox::Message;
use super::super::shared::Shared;
use super::post::{GpuLink, Post};
use crate::cuda::{Address, Buffer, Event, Gpu, Imported, ProcessHandle};
use crate::delivery::Delivery;
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The memory of a mailbox, as this process reaches it.
enum Memory {
    Own { buffer: Buffer, gpu: Arc<Gpu> },
    Theirs(Imported),
}

impl Memory {
    fn address(&self) -> Address {
        match self {
            Memory::Own { buffer, .. } => buffer.address(),
            Memory::Theirs(imported) => imported.address(),
        }
    }
}

/// What the two ends of a mailbox share.
struct Place {
    memory: Memory,
    /// Recorded by the sender behind its copy.
    arrived: Event,
    /// Recorded by the receiver behind its reading.
    read: Event,
}

/// A device's end.
pub struct Copy {
    post: Post,
    places: Arc<BTreeMap<usize, Place>>,
}

/// What a process tells the others of one mailbox: memory, event of arrival, event of reading.
type Handles = [Option<Vec<u8>>; 3];

impl Copy {
    /// See [`MakeEnds`](super::MakeEnds).
    pub fn ends(posts: Vec<Post>, shared: &Arc<Shared>, _: Delivery) -> Result<Vec<GpuLink>> {
        ensure!(
            shared.ranks.share_memory(),
            "expected all ranks on one machine for --link copy, found several: use --link nvshmem, nccl or mpi"
        );
        let gpus: BTreeMap<u32, Arc<Gpu>> = posts.iter().map(|post| (post.device, post.gpu.clone())).collect();
        let mut own = BTreeMap::new();
        let mut told: BTreeMap<usize, Handles> = BTreeMap::new();
        for (number, mailbox) in shared.mailboxes.all().iter().enumerate() {
            let (producer, consumer) = (gpus.get(&mailbox.producer), gpus.get(&mailbox.consumer));
            let between = producer.is_some() != consumer.is_some();
            let mut handles = Handles::default();
            let mut event = |gpu: Option<&Arc<Gpu>>, index: usize| -> Result<Option<Event>> {
                let Some(gpu) = gpu else { return Ok(None) };
                if !between {
                    return Ok(Some(gpu.events().untimed()?));
                }
                let (event, handle) = Event::shared(gpu.context()).context("sharing an event with another process")?;
                handles[index] = Some(handle.to_vec());
                Ok(Some(event))
            };
            let (arrived, read) = (event(producer, 1)?, event(consumer, 2)?);
            let memory = match consumer {
                Some(gpu) => {
                    let make = if between { Buffer::shareable } else { Buffer::new };
                    let buffer = make(gpu.context(), mailbox.bytes)?;
                    if between {
                        handles[0] = Some(buffer.share().context("sharing memory with another process")?.to_vec());
                    }
                    Some(Memory::Own { buffer, gpu: gpu.clone() })
                }
                None => None,
            };
            own.insert(number, (memory, arrived, read));
            if between {
                told.insert(number, handles);
            }
        }
        let theirs = if shared.ranks.size() > 1 { exchange(shared, &told)? } else { BTreeMap::new() };
        let mut places = BTreeMap::new();
        for (number, (memory, arrived, read)) in own {
            let mailbox = &shared.mailboxes.all()[number];
            let Some(gpu) = gpus.get(&mailbox.producer).or(gpus.get(&mailbox.consumer)) else { continue };
            let handle = |index: usize| -> Result<ProcessHandle> {
                let found = theirs.get(&number).and_then(|handles| handles[index].as_deref()?.try_into().ok());
                found.context("expected the other process to share its side of a mailbox, found nothing")
            };
            let memory = match memory {
                Some(memory) => memory,
                None => Memory::Theirs(
                    Imported::open(gpu.context(), handle(0)?).context("opening another process's memory")?,
                ),
            };
            let open = |event: Option<Event>, index| match event {
                Some(event) => Ok(event),
                None => Event::open(gpu.context(), handle(index)?).context("opening another process's event"),
            };
            places.insert(number, Place { memory, arrived: open(arrived, 1)?, read: open(read, 2)? });
        }
        let places = Arc::new(places);
        let end = |post: Post| -> Result<GpuLink> {
            Ok(Box::new(Copy { post: post.with_outboxes(|_| None)?, places: places.clone() }))
        };
        posts.into_iter().map(end).collect()
    }

    fn place(&self, message: Message) -> Result<&Place> {
        self.places.get(&message.mailbox).context("a message of two other devices")
    }
}

/// What the other processes tell, by mailbox.
fn exchange(shared: &Shared, told: &BTreeMap<usize, Handles>) -> Result<BTreeMap<usize, Handles>> {
    let all = shared.ranks.exchange(serde_json::to_vec(told)?)?;
    let mut found: BTreeMap<usize, Handles> = BTreeMap::new();
    for (rank, bytes) in all.iter().enumerate().filter(|&(rank, _)| rank as u32 != shared.ranks.rank()) {
        let told: BTreeMap<usize, Handles> =
            serde_json::from_slice(bytes).with_context(|| format!("what rank {rank} shares"))?;
        for (number, handles) in told {
            for (place, handle) in found.entry(number).or_default().iter_mut().zip(handles) {
                *place = handle.or(place.take());
            }
        }
    }
    Ok(found)
}

impl Link for Copy {
    type Place = Address;
    type Moment = Event;

    fn outbox(&mut self, message: Message) -> Result<Address> {
        self.post.free_outbox(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        let read_before = self.post.wait_credit(message)?;
        let places = self.places.clone();
        let place = places.get(&message.mailbox).context("a message of two other devices")?;
        self.post.note_made(message)?;
        if read_before {
            self.post.gpu.send.wait(&place.read)?;
        }
        self.post.send(message, |gpu, outbox| {
            let (to, from, bytes) = (place.memory.address(), outbox.address, outbox.bytes);
            match &place.memory {
                Memory::Own { gpu: other, .. } if other.ordinal() != gpu.ordinal() => {
                    gpu.send.copy_peer((to, other.context()), (from, gpu.context()), bytes)?;
                }
                _ => gpu.send.copy(to, from, bytes)?,
            }
            Ok(())
        })?;
        self.post.gpu.send.record(&place.arrived)?;
        self.post.tell_enqueued(message);
        Ok(())
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        self.post.wait_enqueued(message)?;
        let place = self.place(message)?;
        self.post.gpu.compute.wait(&place.arrived)?;
        Ok(place.memory.address())
    }

    fn release(&mut self, message: Message) -> Result<()> {
        self.post.gpu.compute.record(&self.place(message)?.read)?;
        self.post.tell_read(message);
        Ok(())
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.post.sent()
    }
}
