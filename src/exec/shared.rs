//! What all devices of a session share, in whatever process: the plan, and memory with everything that lies in it.

use super::arena::{Arena, Dealer};
use super::heap::Heap;
use super::mailbox::{Mailboxes, Sizes};
use super::plan::Plan;
use super::queues::CommunicationQueues;
use super::reductions::Reductions;
use super::settings::Settings;
use super::signal::Aborted;
use super::watch::{Statuses, Watch};
use crate::graph::TaskGraph;
use crate::ranks::Ranks;
use anyhow::{Context as _, Result};
use std::path::Path;
use std::sync::Arc;

/// The shared parts of a session.
#[derive(Debug)]
pub struct Shared {
    /// What is executed, and its buffers.
    pub plan: Plan,
    /// The processes.
    pub(super) ranks: Arc<Ranks>,
    /// Their memory.
    pub(super) heap: Arc<Heap>,
    /// Where messages lie between devices.
    pub(super) mailboxes: Mailboxes,
    /// What holds messages back where hosts emulate a delivery.
    pub(super) queues: Option<CommunicationQueues>,
    /// What all devices tell each other around the pipeline.
    pub(super) reductions: Reductions,
    /// Who is where.
    pub(super) watch: Watch,
}

impl Shared {
    /// Lays everything out for `graph`; all ranks must call this together.
    pub fn new(graph: Arc<TaskGraph>, sizes: &Sizes, settings: &Settings, ranks: Arc<Ranks>) -> Result<Shared> {
        let plan = Plan::new(graph, sizes.tied.map(|(devices, _)| devices));
        let devices = plan.graph.schedule().devices();
        let mut dealer = Dealer::default();
        let statuses = Statuses::new(&mut dealer, devices);
        let mailboxes = Mailboxes::new(&mut dealer, &plan, sizes);
        let reductions = Reductions::new(&mut dealer, devices, sizes.norm_parts);
        let queues = CommunicationQueues::new(&mut dealer, &plan.graph, settings.delivery);
        let number = ranks.next_heap();
        let arena = Arc::new(arena(&ranks, dealer.bytes())?);
        let heap = Arc::new(Heap::new(arena, ranks.clone(), devices, number));
        let watch = Watch::new(heap.clone(), statuses, settings.spin);
        Ok(Shared { plan, ranks, heap, mailboxes, queues, reductions, watch })
    }
}

/// Messages, by the ops that made them, each with its step.
pub type Arrivals = Vec<(usize, u64)>;

impl Shared {
    /// Op number `message` has made its output, which another device waits for: what arrives thereby where a delivery is emulated.
    ///
    /// # Errors
    /// All was called off.
    pub fn post(&self, message: usize) -> Result<Option<Arrivals>, Aborted> {
        let post = |queues: &CommunicationQueues| queues.post(&self.heap, &self.watch, &self.plan.graph, message);
        self.queues.as_ref().map(post).transpose()
    }

    /// The output of op number `message` has been used: what arrives thereby where a delivery is emulated.
    ///
    /// # Errors
    /// All was called off.
    pub fn release(&self, message: usize) -> Result<Option<Arrivals>, Aborted> {
        let release = |queues: &CommunicationQueues| queues.release(&self.heap, &self.watch, &self.plan.graph, message);
        self.queues.as_ref().map(release).transpose()
    }
}

/// Memory for this rank: rank 0's, which all ranks map where they share memory, else its own.
fn arena(ranks: &Ranks, bytes: usize) -> Result<Arena> {
    if ranks.size() == 1 || !ranks.share_memory() {
        return Arena::private(bytes).context("memory for what devices exchange");
    }
    let created = (ranks.rank() == 0).then(|| Arena::create(bytes));
    let path = match &created {
        Some(Ok((_, path))) => path.display().to_string(),
        _ => String::new(),
    };
    let paths = ranks.exchange(path.into_bytes())?;
    let path = String::from_utf8_lossy(&paths[0]).into_owned();
    let arena = match created {
        Some(created) => created.map(|(arena, _)| arena),
        None => Arena::open(Path::new(&path)),
    };
    let opened = ranks.exchange(vec![u8::from(arena.is_ok())])?;
    let arena = arena.context("memory that ranks share")?;
    anyhow::ensure!(opened.iter().all(|ok| *ok == [1]), "another rank could not open the memory that ranks share");
    Ok(arena)
}
