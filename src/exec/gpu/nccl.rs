//! The link by NCCL: each device has communication queues of sends and receives, in an order that the checker has proven free of
//! deadlocks. An entry completes when its partner is at the head of the other device's queue. A queue is a communicator with its
//! own stream; a batch is a group of NCCL.
//!
//! The checker assumes that queues do not block each other. This holds because every communicator is connected before the first
//! message, has a hardware queue for its stream, and uses so few multiprocessors that transfers of all communicators of a device
//! fit at the same time.

use super::super::link::{Link, Refusal, Setting};
use super::super::message::Message;
use super::super::shared::Shared;
use super::communicators::{self, Name, Purpose, SharedCommunicator, check, ids, lock};
use super::endpoint::{self, Endpoint, GpuLink};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use pipesim_gpu::library::NCCL;
use pipesim_gpu::nccl::{self, UniqueId};
use pipesim_gpu::{Address, Buffer, Communicator, Event, blocks, connections};
use pipesim_schedule::delivery::{ChannelOptions, Delivery, Receives};
use pipesim_schedule::lowering::{CommunicationQueue, Entry, Holds, Lowering};
use pipesim_schedule::op::Kind;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Number of streams of a device besides the streams of its communicators, and of those for copies to and from the host.
const OTHER_STREAMS: usize = 4;
const COPY_STREAMS: usize = 2;

/// A buffer for received messages.
struct ReceiveBuffer {
    buffer: Buffer,
    arrived: Event,
    read: Event,
}

impl ReceiveBuffer {
    fn receive(&self, channel: &Communicator, from: u32) -> Result<(), nccl::Error> {
        channel.receive(self.buffer.address(), self.buffer.bytes(), from)
    }
}

/// A queue of a device.
struct NcclLane {
    name: Name,
    queue: CommunicationQueue,
    /// The next group.
    next: usize,
}

/// Returns the name of the communicator of a queue of `worker`, which holds these messages.
fn name_of(shared: &Shared, worker: u32, holds: Holds) -> Name {
    let (mesh, devices) = (shared.mesh, shared.plan.graph.schedule().devices());
    let of = |device: u32| mesh.worker_of(device, mesh.copy(worker));
    let (purpose, members) = match holds {
        Holds::All | Holds::Channel(..) => (Purpose::Messages, (0..devices).map(of).collect()),
        Holds::Peer(peer) => (Purpose::Messages, vec![worker.min(of(peer)), worker.max(of(peer))]),
        Holds::SendsTo(peer) => (Purpose::OneWay, vec![worker, of(peer)]),
        Holds::ReceivesFrom(peer) => (Purpose::OneWay, vec![of(peer), worker]),
    };
    Name { purpose, members, world: shared.workers() }
}

/// Returns the name of the communicator of exchanges between two workers.
fn exchange_of(shared: &Shared, one: u32, other: u32) -> Name {
    let members = vec![one.min(other), one.max(other)];
    Name { purpose: Purpose::Exchange, members, world: shared.workers() }
}

/// A device's end of the link.
pub struct Nccl {
    endpoint: Endpoint,
    library: nccl::Nccl,
    ids: Arc<BTreeMap<Name, UniqueId>>,
    /// Joined at the first step.
    channels: BTreeMap<Name, SharedCommunicator>,
    lanes: Vec<NcclLane>,
    /// Messages produced in this step, by op.
    made: BTreeMap<usize, Message>,
    step: u64,
    /// Whether the step has only the messages of forwards.
    forwards_only: bool,
    /// By peer: outgoing messages of exchanges that are not yet enqueued.
    exchanges: BTreeMap<u32, VecDeque<Message>>,
    receive_buffers: BTreeMap<usize, ReceiveBuffer>,
}

impl Nccl {
    /// Checks the requirements.
    pub fn probe(setting: &Setting<'_>) -> Result<(), Refusal> {
        if setting.slices.is_some_and(|slices| slices > 1) {
            return Err(Refusal::of("expected a GPU for each device, found `gpu-slices`; use copy or nvshmem"));
        }
        endpoint::library(&NCCL)
    }

    /// See [`MakeEnds`](endpoint::MakeEnds).
    pub fn ends(endpoints: Vec<Endpoint>, shared: &Arc<Shared>, delivery: Delivery) -> Result<Vec<GpuLink>> {
        let gpus: BTreeSet<u32> = endpoints.iter().map(|endpoint| endpoint.gpu.ordinal()).collect();
        ensure!(
            gpus.len() == endpoints.len(),
            "expected a GPU for each device with `link` nccl, found {} devices on {}: use `link` copy, or fewer devices",
            endpoints.len(),
            gpus.len()
        );
        let library = nccl::Nccl::open().map_err(|error| anyhow!("{error}"));
        let able = shared.ranks.exchange(vec![u8::from(library.is_ok())])?;
        let library = library?;
        ensure!(able.iter().all(|able| *able == [1]), "expected NCCL at every rank, found it missing at another");
        let schedule = shared.plan.graph.schedule();
        // An early receive could overwrite data that this host has not yet passed to its reader.
        ensure!(
            matches!(
                delivery.on(schedule),
                Delivery::Batched | Delivery::Channel(ChannelOptions { receives: Receives::JustInTime, .. })
            ),
            "expected receives just before their use with `link` nccl, found {delivery} delivery of {}, which endpoints them earlier; \
             take another `delivery`, or `device` cpu, which emulates it",
            schedule.name
        );
        let lowering = Lowering::new(&shared.plan.graph, delivery);
        let copies = 0..shared.mesh.copies();
        let mut names: BTreeSet<Name> = copies
            .flat_map(|copy| lowering.queues().iter().map(move |queue| (copy, queue)))
            .map(|(copy, queue)| name_of(shared, shared.mesh.worker_of(queue.device, copy), queue.holds))
            .collect();
        names.extend(shared.buffers.exchanges().map(|buffer| exchange_of(shared, buffer.producer, buffer.consumer)));
        let others = OTHER_STREAMS + if schedule.has_copies() { COPY_STREAMS } else { 0 };
        for endpoint in &endpoints {
            let groups = shared.groups.all().iter().filter(|group| group.members.contains(&endpoint.device)).count();
            let channels = names.iter().filter(|name| name.members.contains(&endpoint.device)).count();
            let streams = channels + groups + others;
            ensure!(
                streams <= connections(),
                "expected at most {} streams on a GPU with `link` nccl, as many as it has hardware queues, found {streams} on device {}: \
                 set CUDA_DEVICE_MAX_CONNECTIONS=32, or use `delivery` channel",
                connections(),
                endpoint.device
            );
            let (needed, found) = ((channels + groups) * blocks(), endpoint.gpu.multiprocessors() as usize);
            ensure!(
                needed <= found,
                "expected at most {found} thread blocks of NCCL on device {}, one per multiprocessor, found {needed} of {} communicators, \
                 whose transfers may wait for each other: use `delivery` channel, or `link` copy",
                endpoint.device,
                channels + groups
            );
        }
        let ids = Arc::new(ids(&library, shared, names)?);
        let end = |endpoint| -> Result<GpuLink> { Ok(Box::new(Nccl::new(endpoint, &library, &ids, &lowering)?)) };
        endpoints.into_iter().map(end).collect()
    }

    fn new(
        endpoint: Endpoint,
        library: &nccl::Nccl,
        ids: &Arc<BTreeMap<Name, UniqueId>>,
        lowering: &Lowering,
    ) -> Result<Nccl> {
        let endpoint = endpoint.with_send_buffers(|_| None)?;
        let device = endpoint.shared.mesh.device(endpoint.device);
        let own = lowering.queues().iter().filter(|queue| queue.device == device);
        let lane = |queue: &CommunicationQueue| NcclLane {
            name: name_of(&endpoint.shared, endpoint.device, queue.holds),
            queue: queue.clone(),
            next: 0,
        };
        let lanes = own.map(lane).collect();
        let mut receive_buffers = BTreeMap::new();
        for (number, buffer) in
            endpoint.shared.buffers.all().iter().enumerate().filter(|(_, m)| m.consumer == endpoint.device)
        {
            let (arrived, read) = (endpoint.gpu.events().untimed()?, endpoint.gpu.events().untimed()?);
            let buffer = Buffer::new(endpoint.gpu.context(), buffer.bytes)?;
            receive_buffers.insert(number, ReceiveBuffer { buffer, arrived, read });
        }
        let (library, ids) = (library.clone(), ids.clone());
        let (channels, made, exchanges) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Nccl {
            endpoint,
            library,
            ids,
            channels,
            lanes,
            made,
            step: 0,
            forwards_only: false,
            exchanges,
            receive_buffers,
        })
    }

    fn receive_buffer(&self, message: Message) -> Result<&ReceiveBuffer> {
        self.receive_buffers.get(&message.buffer).context("a message of another device")
    }

    /// The kind of the op that made a message.
    fn kind_of(&self, entry: &Entry) -> Kind {
        self.endpoint.shared.plan.graph.op(entry.message()).kind()
    }

    /// Enqueues the next entries of a lane: up to the receive of `wanted`, or all sends that are produced.
    fn advance(&mut self, lane: usize, wanted: Option<usize>) -> Result<()> {
        while self.lanes[lane].next < self.lanes[lane].queue.groups() {
            let NcclLane { name, queue, next } = &self.lanes[lane];
            // Without the messages of backwards the others keep their order, on both sides of each.
            let runs = |entry: &Entry| !self.forwards_only || self.kind_of(entry) == Kind::F;
            let group: Vec<Entry> = queue.group(*next).iter().copied().filter(runs).collect();
            let name = name.clone();
            if group.is_empty() {
                self.lanes[lane].next += 1;
                continue;
            }
            let is_unmade = |entry: &Entry| !entry.is_receive() && !self.made.contains_key(&entry.message());
            let receives = group.iter().any(|entry| entry.is_receive());
            match (wanted, group.iter().any(is_unmade)) {
                (None, unmade) if unmade || receives => return Ok(()),
                (_, true) => {
                    bail!("a receive is queued behind a send that is not yet produced, which the checker rules out")
                }
                _ => self.transfer(&name, &group)?,
            }
            self.lanes[lane].next += 1;
            if wanted.is_some_and(|op| group.contains(&Entry::receive(op))) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Enqueues a group whose sends are produced.
    fn transfer(&mut self, name: &Name, group: &[Entry]) -> Result<()> {
        let rank = |worker: u32| name.rank(worker).context("a message between members of its communicator");
        let (mut outgoing, mut to, mut incoming) = (Vec::new(), Vec::new(), Vec::new());
        for entry in group {
            let (plan, op) = (&self.endpoint.shared.plan, entry.message());
            if entry.is_receive() {
                let port = plan.outputs[op].context("a received message has a port")?;
                let message = self.endpoint.shared.buffers.message(self.endpoint.device, &port, self.step);
                let message = message.context("a received message has a buffer")?;
                let from = rank(self.endpoint.buffer(message).producer)?;
                incoming
                    .push((self.receive_buffers.get(&message.buffer).context("a message of another device")?, from));
            } else {
                let message = *self.made.get(&op).context("a message is produced before it is sent")?;
                to.push(rank(self.endpoint.buffer(message).consumer)?);
                outgoing.push(message);
            }
        }
        let channel = lock(self.channels.get(name).context("the channel is joined at the first step")?);
        incoming.iter().try_for_each(|(receive_buffer, _)| channel.stream().wait(&receive_buffer.read))?;
        let library = &self.library;
        self.endpoint.send_all_on(channel.stream(), &outgoing, |send_buffers| {
            let all = || {
                send_buffers
                    .iter()
                    .zip(&to)
                    .try_for_each(|(send_buffer, &to)| channel.send(send_buffer.address, send_buffer.bytes, to))?;
                incoming.iter().try_for_each(|(receive_buffer, from)| receive_buffer.receive(&channel, *from))
            };
            Ok(if group.len() == 1 { all() } else { library.group(all) }?)
        })?;
        Ok(incoming.iter().try_for_each(|(receive_buffer, _)| channel.stream().record(&receive_buffer.arrived))?)
    }

    /// Enqueues both directions of an exchange as one group, because a send cannot complete before the other side's receive.
    fn swap(&mut self, into: Message) -> Result<Address> {
        let peer = self.endpoint.buffer(into).producer;
        let out = self.exchanges.get_mut(&peer).and_then(VecDeque::pop_front);
        let out = out.context("an exchange puts its outgoing message before it waits for the incoming one")?;
        let name = exchange_of(&self.endpoint.shared, self.endpoint.device, peer);
        let to = name.rank(peer).context("a member of the exchange")?;
        let channel = lock(self.channels.get(&name).context("the channel is joined at the first step")?);
        let receive_buffer = self.receive_buffers.get(&into.buffer).context("a message of another device")?;
        channel.stream().wait(&receive_buffer.read)?;
        self.endpoint.send_on(channel.stream(), out, |send_buffer| {
            Ok(self.library.group(|| {
                channel.send(send_buffer.address, send_buffer.bytes, to)?;
                receive_buffer.receive(&channel, to)
            })?)
        })?;
        channel.stream().record(&receive_buffer.arrived)?;
        self.endpoint.gpu.compute.wait(&receive_buffer.arrived)?;
        Ok(receive_buffer.buffer.address())
    }
}

impl Link for Nccl {
    type Location = Address;
    type Timestamp = Event;

    fn begin(&mut self, forwards_only: bool) -> Result<()> {
        self.forwards_only = forwards_only;
        if self.channels.is_empty() {
            // The order of names is the same on every device, so that no two wait for each other at different communicators.
            let ids = self.ids.clone();
            for (name, &id) in ids.iter().filter(|(name, _)| name.members.contains(&self.endpoint.device)) {
                let Endpoint { device, gpu, shared, .. } = &self.endpoint;
                let channel = communicators::join(&self.library, shared, *device, gpu, name, id)?;
                self.channels.insert(name.clone(), channel);
            }
        } else {
            self.step += 1;
        }
        self.lanes.iter_mut().for_each(|lane| lane.next = 0);
        self.made.clear();
        Ok(())
    }

    fn send_buffer(&mut self, message: Message) -> Result<Address> {
        self.endpoint.free_send_buffer(message)
    }

    fn put(&mut self, message: Message) -> Result<()> {
        self.endpoint.note_made(message)?;
        let Some(op) = message.op else {
            let peer = self.endpoint.buffer(message).consumer;
            self.exchanges.entry(peer).or_default().push_back(message);
            return Ok(());
        };
        self.made.insert(op, message);
        (0..self.lanes.len()).try_for_each(|lane| self.advance(lane, None))
    }

    fn wait(&mut self, message: Message) -> Result<Address> {
        let Some(op) = message.op else { return self.swap(message) };
        let pending = |lane: &NcclLane| {
            (lane.next..lane.queue.groups()).any(|group| lane.queue.group(group).contains(&Entry::receive(op)))
        };
        if let Some(lane) = self.lanes.iter().position(pending) {
            self.advance(lane, Some(op))?;
        }
        let receive_buffer = self.receive_buffer(message)?;
        self.endpoint.gpu.compute.wait(&receive_buffer.arrived)?;
        Ok(receive_buffer.buffer.address())
    }

    fn release(&mut self, message: Message) -> Result<()> {
        Ok(self.endpoint.gpu.compute.record(&self.receive_buffer(message)?.read)?)
    }

    fn sent(&mut self) -> BTreeMap<usize, [Event; 2]> {
        self.endpoint.sent()
    }

    /// Also aborts transfers of other sessions, which execute no further steps.
    fn abort(&mut self) {
        self.channels.values().for_each(|channel| lock(channel).abort());
    }

    fn is_done(&mut self) -> Result<bool> {
        for channel in self.channels.values() {
            check(&self.endpoint.shared, channel)?;
            if !lock(channel).stream().is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
