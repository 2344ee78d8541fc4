//! What all workers of a session share across processes: the plan, memory, and barriers and sums over all workers.

use super::arena::{Arena, ArenaLayout, Region};
use super::groups::WorkerGroups;
use super::heap::Heap;
use super::message::{MessageBuffers, Sizes};
use super::piece::PieceBuffers;
use super::plan::Plan;
use super::queues::CommunicationQueues;
use super::signal::Aborted;
use super::watch::{Statuses, Watch};
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use crate::mesh::Mesh;
use crate::ranks::Ranks;
use anyhow::{Context as _, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
        let plan = Plan::new(graph, mesh.data, sizes.tied.map(|(devices, _)| devices));
        let workers = mesh.world(plan.graph.schedule().devices());
        let mut layout = ArenaLayout::default();
        let statuses = Statuses::new(&mut layout, workers);
        let buffers = MessageBuffers::new(&mut layout, &plan, mesh, sizes);
        let reductions = Reductions::new(&mut layout, workers, sizes.norm_parts);
        let (pieces, groups) = match sizes.by_collectives {
            true => (PieceBuffers::default(), WorkerGroups::new(&mut layout, &plan, mesh)),
            false => {
                let pieces = PieceBuffers::new(&mut layout, mesh, plan.graph.schedule().devices());
                (pieces, WorkerGroups::default())
            }
        };
        let mut queues = |_| CommunicationQueues::new(&mut layout, &plan.graph, settings.delivery);
        let queues = (0..mesh.copies()).filter_map(&mut queues).collect();
        let number = ranks.next_heap();
        let arena = Arc::new(arena(&ranks, layout.bytes())?);
        let heap = Arc::new(Heap::new(arena, ranks.clone(), workers, number));
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

/// Exchanges among all workers once per step: the barrier at its start, and the sum of the gradient norm.
#[derive(Debug)]
pub struct Reductions {
    /// By worker: number of steps it has been ready for.
    ready: Vec<Region>,
    /// Partial sums of squares, for even and odd steps: a worker can be one step ahead of a reader.
    norms: [Vec<Region>; 2],
    /// By worker: number of steps to which it has contributed its sums.
    norms_in: Vec<Region>,
}

impl Reductions {
    /// Reserves memory for `workers` workers and a norm of `norm_parts` parts.
    pub fn new(layout: &mut ArenaLayout, workers: u32, norm_parts: usize) -> Reductions {
        Reductions {
            ready: (0..workers).map(|_| layout.signal()).collect(),
            norms: [(); 2].map(|()| (0..norm_parts).map(|_| layout.word()).collect()),
            norms_in: (0..workers).map(|_| layout.signal()).collect(),
        }
    }

    /// Waits until all workers are ready to begin the step.
    pub fn meet(&self, heap: &Heap, worker: u32, step: u64, watch: &Watch) -> Result<(), Aborted> {
        heap.raise_everywhere(self.ready[worker as usize], step + 1);
        self.ready.iter().try_for_each(|&ready| heap.signal(ready).spin(step + 1, watch))
    }

    /// Contributes the partial sums of squares of `worker`, by order number.
    pub fn put_norms(&self, heap: &Heap, worker: u32, step: u64, parts: &[(usize, f64)]) {
        let (words, done) = (&self.norms[(step % 2) as usize], self.norms_in[worker as usize]);
        for &(number, square) in parts {
            heap.store_everywhere(words[number], square.to_bits(), done);
        }
        heap.raise_everywhere(done, step + 1);
    }

    /// Waits for all parts, and returns their sum in the order of their numbers, so that it does not depend on the partition.
    pub fn sum_norms(&self, heap: &Heap, step: u64, watch: &Watch) -> Result<f64, Aborted> {
        self.norms_in.iter().try_for_each(|&done| heap.signal(done).wait(step + 1, watch))?;
        let parts = self.norms[(step % 2) as usize].iter();
        Ok(parts.map(|&word| f64::from_bits(heap.arena().word(word).load(Ordering::Relaxed))).sum())
    }
}
