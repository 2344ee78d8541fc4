//! A GPU, or a slice of one, as one device of the pipeline.

use super::api::{Context, Event, Events, Fault, Stream};
use super::driver::{Driver, Facts, Unusable};
use super::room::{Pause, Room};
use anyhow::{Context as _, ensure};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Contexts of slices by GPU and number of slices, kept until the process ends: see [`Context::primary`].
static SLICES: Mutex<BTreeMap<(u32, u32), Vec<SliceContext>>> = Mutex::new(BTreeMap::new());

/// A green context, and its number of multiprocessors.
type SliceContext = (Arc<Context>, u32);

/// One device of the pipeline: a whole GPU, or a slice with some of its multiprocessors. Slices of a GPU share its memory: each
/// can access what the others allocated.
pub struct Gpu {
    context: Arc<Context>,
    facts: Facts,
    slice: Option<(u32, u32)>,
    multiprocessors: u32,
    events: Arc<Events>,
    room: Mutex<Room>,
    copies: Mutex<Option<Arc<[Stream; 2]>>>,
    /// Stream of the kernels.
    pub compute: Stream,
    /// Stream of outgoing messages.
    pub send: Stream,
    /// Stream of incoming messages.
    pub receive: Stream,
    /// Stream that only reads the clock.
    pub idle: Stream,
}

impl Gpu {
    /// Opens a whole GPU by its primary context. [`enable_peers`] lets it access other GPUs' memory.
    pub fn whole(driver: &'static Driver, ordinal: u32) -> anyhow::Result<Gpu> {
        let facts = driver.facts(ordinal)?;
        facts.usable()?;
        let context = driver.context(ordinal).with_context(|| format!("opening GPU {ordinal} ({})", facts.name))?;
        let multiprocessors = facts.multiprocessors;
        Ok(Gpu::new(context, facts, None, multiprocessors)?)
    }

    /// Splits a GPU into `count` slices, each a green context with an equal share of the multiprocessors, rounded to the
    /// driver's granularity; the remainder stays idle.
    ///
    /// # Errors
    /// There is no such GPU, or it cannot be split into this many slices: the error says how many are possible.
    pub fn slices(driver: &'static Driver, ordinal: u32, count: u32) -> anyhow::Result<Vec<Gpu>> {
        ensure!(count > 0, "expected at least 1 slice of a GPU, found 0: ask for one or more");
        let facts = driver.facts(ordinal)?;
        facts.usable()?;
        let mut kept = SLICES.lock().unwrap_or_else(PoisonError::into_inner);
        let contexts = match kept.get(&(ordinal, count)) {
            Some(contexts) => contexts.clone(),
            None => Gpu::split(driver, &facts, count)?,
        };
        kept.insert((ordinal, count), contexts.clone());
        let gpu = |(number, (context, multiprocessors))| {
            Ok(Gpu::new(context, facts.clone(), Some((number, count)), multiprocessors)?)
        };
        (0..).zip(contexts).map(gpu).collect()
    }

    /// Creates the contexts of the slices.
    fn split(driver: &'static Driver, facts: &Facts, count: u32) -> anyhow::Result<Vec<SliceContext>> {
        let ordinal = facts.ordinal;
        let device = driver.api.device(ordinal)?;
        let primary = driver.context(ordinal)?;
        let splitting = || format!("splitting GPU {ordinal} ({}) into slices", facts.name);
        let (all, total) = driver.api.multiprocessors(device).with_context(splitting)?;
        // The driver rounds shares up to the hardware's granularity: find the largest share that fits `count` times.
        let mut fitting = None;
        for share in (1..=total / count).rev() {
            let sets = match driver.api.split(&all, count, share) {
                Err(fault) if fault.is_invalid_split() => continue,
                outcome => outcome.with_context(splitting)?,
            };
            if sets.len() == count as usize {
                fitting = Some(sets);
                break;
            }
        }
        let Some(sets) = fitting else {
            let most = driver.api.split(&all, total, 1).with_context(splitting)?.len();
            let words = format!(
                "expected at most {most} slices of GPU {ordinal} ({}, {total} multiprocessors), found {count}: choose fewer, \
                 or use more GPUs",
                facts.name
            );
            return Err(Unusable::Device(words).into());
        };
        let context = |(set, multiprocessors)| {
            let (green, handle) = driver.api.green(device, set).with_context(splitting)?;
            Ok((Arc::new(Context::green(primary.clone(), green, handle)), multiprocessors))
        };
        sets.into_iter().map(context).collect()
    }

    fn new(context: Arc<Context>, facts: Facts, slice: Option<(u32, u32)>, multiprocessors: u32) -> Result<Gpu, Fault> {
        let stream = || Stream::new(&context);
        let (compute, send, receive, idle) = (stream()?, stream()?, stream()?, stream()?);
        let events = Events::new(&context);
        let (room, copies) = (Mutex::default(), Mutex::default());
        Ok(Gpu { context, facts, slice, multiprocessors, events, room, copies, compute, send, receive, idle })
    }

    /// The context that owns its streams, events and memory.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The pool of its events.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The streams of copies to the host and from it, created by the first call: most schedules have no copies, and hardware queues are
    /// few.
    pub fn copies(&self) -> Result<Arc<[Stream; 2]>, Fault> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(streams) = &*copies {
            return Ok(streams.clone());
        }
        let streams = Arc::new([Stream::new(&self.context)?, Stream::new(&self.context)?]);
        Ok(copies.insert(streams).clone())
    }

    /// Limits the work on the compute stream: [`Gpu::make_room`] calls the pause until at most this many pieces wait. Without a limit
    /// it does nothing.
    pub fn limit(&self, limit: Option<(u64, Pause)>) {
        self.room.lock().unwrap_or_else(PoisonError::into_inner).limit(limit);
    }

    /// Waits until at most the limit of work is left. To be called after every few pieces.
    ///
    /// # Errors
    /// The pause's.
    pub fn make_room(&self) -> anyhow::Result<()> {
        let pause = || self.room.lock().unwrap_or_else(PoisonError::into_inner).pause(&self.compute, &self.events);
        while let Some(pause) = pause()? {
            pause()?; // without the lock
        }
        Ok(())
    }

    /// Records a timed event on `stream`, which must be one of its own.
    pub fn mark(&self, stream: &Stream) -> Result<Event, Fault> {
        let event = self.events.timed()?;
        stream.record(&event)?;
        Ok(event)
    }

    /// Properties of the GPU.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Index of the GPU among those visible to this process.
    pub fn ordinal(&self) -> u32 {
        self.facts.ordinal
    }

    /// Index of the slice and number of slices; `None` for a whole GPU.
    pub fn slice(&self) -> Option<(u32, u32)> {
        self.slice
    }

    /// Number of multiprocessors that its kernels run on.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Makes this the calling thread's GPU. Other methods of this layer do so themselves when necessary.
    pub fn make_current(&self) -> Result<(), Fault> {
        self.context.make_current()
    }

    /// Returns free and total bytes of memory.
    pub fn memory(&self) -> Result<(usize, usize), Fault> {
        self.context.memory()
    }
}

/// Lets the GPUs access each other's memory. Returns the pairs (from, to) of indices into `gpus` that cannot; copies between those
/// go through the host.
pub fn enable_peers(driver: &'static Driver, gpus: &[&Gpu]) -> anyhow::Result<Vec<(usize, usize)>> {
    let mut apart = Vec::new();
    for (i, from) in gpus.iter().enumerate() {
        for (j, to) in gpus.iter().enumerate() {
            if from.ordinal() == to.ordinal() {
                continue;
            }
            if driver.peer_access(from.ordinal(), to.ordinal())? {
                from.make_current()?;
                let enabling = || format!("letting GPU {} access GPU {}", from.ordinal(), to.ordinal());
                from.context.api.enable_peer(to.context.handle).with_context(enabling)?;
            } else {
                apart.push((i, j));
            }
        }
    }
    Ok(apart)
}
