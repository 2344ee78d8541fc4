//! What all workers of a session share across processes: the plan, and memory.

use super::arena::{Arena, ArenaLayout};
use super::groups::WorkerGroups;
use super::heap::Heap;
use super::message::{MessageBuffers, Sizes};
use super::piece::PieceBuffers;
use super::plan::Plan;
use super::queues::CommunicationQueues;
use super::reductions::Reductions;
use super::signal::Aborted;
use super::spanning::GroupList;
use super::watch::{Statuses, Watch};
use crate::ranks::Ranks;
use anyhow::{Context as _, Result};
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a session.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Pin worker r to core r, for measurements with enough cores.
    pub pin: bool,
    /// Duration for which a waiting thread spins before it parks.
    pub spin: Duration,
    /// Longest time that a device may wait for its data.
    pub timeout: Duration,
    /// How the link delivers messages.
    pub delivery: Delivery,
    /// The workers of each pipeline device.
    pub mesh: Mesh,
}

/// The shared parts of a session.
#[derive(Debug)]
pub struct Shared {
    /// The pipeline's graph with its buffers; each copy of the pipeline runs it.
    pub plan: Plan,
    pub(super) mesh: Mesh,
    pub(super) ranks: Arc<Ranks>,
    pub(super) heap: Arc<Heap>,
    pub(super) buffers: MessageBuffers,
    /// Communication queues of each copy of the pipeline; none unless hosts emulate a delivery.
    pub(super) queues: Vec<CommunicationQueues>,
    pub(super) pieces: PieceBuffers,
    /// Groups of GPUs; none on hosts.
    pub(super) groups: WorkerGroups,
    pub(super) reductions: Reductions,
    pub(super) watch: Watch,
}

impl Shared {
    /// Prepares the execution of `graph`. All ranks must call this together.
    pub fn new(graph: Arc<TaskGraph>, sizes: &Sizes, settings: &Settings, ranks: Arc<Ranks>) -> Result<Shared> {
        let mesh = settings.mesh;
        let plan = Plan::new(graph, mesh, sizes.tied.map(|(devices, _)| devices));
        let workers = mesh.world(plan.graph.schedule().devices());
        let (mut layout, mut list) = (ArenaLayout::default(), GroupList::default());
        let statuses = Statuses::new(&mut layout, workers);
        let buffers = MessageBuffers::new(&mut layout, &mut list, &plan, mesh, sizes);
        let reductions = Reductions::new(&mut layout, &mut list, workers, sizes.norm_parts);
        let (pieces, groups) = match sizes.by_collectives {
            true => (PieceBuffers::default(), WorkerGroups::new(&mut layout, &plan, mesh)),
            false => {
                let pieces = PieceBuffers::new(&mut layout, &mut list, mesh, plan.graph.schedule().devices());
                (pieces, WorkerGroups::default())
            }
        };
        let mut queues = |_| CommunicationQueues::new(&mut layout, &plan.graph, settings.delivery);
        let queues = (0..mesh.copies()).filter_map(&mut queues).collect();
        let number = ranks.next_heap();
        let arena = Arc::new(arena(&ranks, layout.bytes())?);
        let heap = Arc::new(Heap::new(arena, ranks.clone(), workers, list, number)?);
        let watch = Watch::new(heap.clone(), statuses, settings.spin);
        Ok(Shared { plan, mesh, ranks, heap, buffers, queues, pieces, groups, reductions, watch })
    }
}

/// Messages that arrive, by the op that produced them, each with its step.
pub type Arrivals = Vec<(usize, u64)>;

impl Shared {
    /// Number of workers in all processes.
    pub fn workers(&self) -> u32 {
        self.mesh.world(self.plan.graph.schedule().devices())
    }

    fn queues_of(&self, worker: u32) -> Option<&CommunicationQueues> {
        self.queues.get(self.mesh.copy(worker) as usize)
    }

    /// Records that op `message` of `worker`'s copy has produced its output for another device. Returns what arrives as a result if
    /// a delivery is emulated.
    ///
    /// # Errors
    /// The run was aborted.
    pub fn post(&self, worker: u32, message: usize) -> Result<Option<Arrivals>, Aborted> {
        let post = |queues: &CommunicationQueues| queues.post(&self.heap, &self.watch, &self.plan.graph, message);
        self.queues_of(worker).map(post).transpose()
    }

    /// Records that the output of op `message` of `worker`'s copy was used. Returns what arrives as a result if a delivery is
    /// emulated.
    ///
    /// # Errors
    /// The run was aborted.
    pub fn release(&self, worker: u32, message: usize) -> Result<Option<Arrivals>, Aborted> {
        let release = |queues: &CommunicationQueues| queues.release(&self.heap, &self.watch, &self.plan.graph, message);
        self.queues_of(worker).map(release).transpose()
    }
}

/// Returns the memory of this rank: rank 0's if ranks share memory, else its own.
fn arena(ranks: &Ranks, bytes: usize) -> Result<Arena> {
    if ranks.size() == 1 || !ranks.share_memory() {
        return Arena::private(bytes).context("memory for messages between devices");
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
