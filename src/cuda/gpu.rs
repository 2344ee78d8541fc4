//! A GPU, or a slice of one, as one device of the pipeline.

use super::api::context::Context;
use super::api::driver::Fault;
use super::api::event::{Event, Events};
use super::api::stream::Stream;
use super::driver::{Driver, Facts, Unusable};
use anyhow::{Context as _, ensure};
use std::sync::Arc;

/// One device of the pipeline: a whole GPU, or one of the slices that its multiprocessors were parted into. Slices of a GPU
/// share its memory: each can read and write what the others allocated.
pub struct Gpu {
    context: Arc<Context>,
    facts: Facts,
    slice: Option<(u32, u32)>,
    multiprocessors: u32,
    events: Arc<Events>,
    /// Where kernels run.
    pub compute: Stream,
    /// Where outputs leave.
    pub send: Stream,
    /// Where inputs arrive.
    pub receive: Stream,
}

impl Gpu {
    /// A whole GPU, by its primary context. Its memory and that of every other GPU in use can be accessed from each other,
    /// where the hardware can: see [`enable_peers`].
    pub fn whole(driver: &'static Driver, ordinal: u32) -> anyhow::Result<Gpu> {
        let facts = driver.facts(ordinal)?;
        facts.usable()?;
        let context = Context::primary(&driver.api, driver.api.device(ordinal)?)
            .with_context(|| format!("opening GPU {ordinal} ({})", facts.name))?;
        let multiprocessors = facts.multiprocessors;
        Ok(Gpu::new(context, facts, None, multiprocessors)?)
    }

    /// All `count` slices of a GPU, each a green context with its share of the multiprocessors: equal shares, in the
    /// driver's granularity; a remainder is left idle.
    ///
    /// # Errors
    /// No such GPU, or one that cannot be parted into so many: the error says into how many it can.
    pub fn slices(driver: &'static Driver, ordinal: u32, count: u32) -> anyhow::Result<Vec<Gpu>> {
        ensure!(count > 0, "expected at least 1 slice of a GPU, found 0: ask for one or more");
        let facts = driver.facts(ordinal)?;
        facts.usable()?;
        let device = driver.api.device(ordinal)?;
        let primary = Context::primary(&driver.api, device)?;
        primary.make_current()?;
        let parting = || format!("parting GPU {ordinal} ({}) into slices", facts.name);
        let (all, total) = driver.api.multiprocessors(device).with_context(parting)?;
        // the driver rounds shares up to what the hardware deals out: the largest share of which there are enough
        let mut fitting = None;
        for share in (1..=total / count).rev() {
            let sets = match driver.api.split(&all, count, share) {
                Err(fault) if fault.is_misfit() => continue,
                outcome => outcome.with_context(parting)?,
            };
            if sets.len() == count as usize {
                fitting = Some(sets);
                break;
            }
        }
        let Some(sets) = fitting else {
            let most = driver.api.split(&all, total, 1).with_context(parting)?.len();
            let words = format!(
                "expected at most {most} slices of GPU {ordinal} ({}, {total} multiprocessors), found {count}: choose fewer, \
                 or use more GPUs",
                facts.name
            );
            return Err(Unusable::Device(words).into());
        };
        let mut gpus = Vec::with_capacity(sets.len());
        for (number, (set, multiprocessors)) in sets.into_iter().enumerate() {
            let (green, handle) = driver.api.green(device, set).with_context(parting)?;
            let context = Arc::new(Context::green(primary.clone(), green, handle));
            gpus.push(Gpu::new(context, facts.clone(), Some((number as u32, count)), multiprocessors)?);
        }
        Ok(gpus)
    }

    fn new(context: Arc<Context>, facts: Facts, slice: Option<(u32, u32)>, multiprocessors: u32) -> Result<Gpu, Fault> {
        let [compute, send, receive] = [Stream::new(&context)?, Stream::new(&context)?, Stream::new(&context)?];
        let events = Events::new(&context);
        Ok(Gpu { context, facts, slice, multiprocessors, events, compute, send, receive })
    }

    /// What its streams, events and memory belong to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Where all its events come from.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Takes a timed event and puts it behind all that was enqueued on `stream`, one of its own, so far.
    pub fn mark(&self, stream: &Stream) -> Result<Event, Fault> {
        let event = self.events.timed()?;
        stream.record(&event)?;
        Ok(event)
    }

    /// What the driver says of the GPU.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Number of the GPU among those that this process sees.
    pub fn ordinal(&self) -> u32 {
        self.facts.ordinal
    }

    /// Number of the slice, and of how many; `None` for a whole GPU.
    pub fn slice(&self) -> Option<(u32, u32)> {
        self.slice
    }

    /// Multiprocessors that its kernels run on.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Makes it the GPU of the calling thread; methods of this layer do so themselves where they must.
    pub fn make_current(&self) -> Result<(), Fault> {
        self.context.make_current()
    }

    /// Bytes of memory: free now, and in all.
    pub fn memory(&self) -> Result<(usize, usize), Fault> {
        self.make_current()?;
        self.context.api.memory()
    }
}

/// Lets each of the GPUs access the others' memory. Returns the pairs (from, to) of positions in `gpus` that cannot:
/// copies between those go through the host.
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
