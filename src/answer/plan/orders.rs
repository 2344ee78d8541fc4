//! Orders of a plan's schedules, compiled once for all layouts that share them.

use super::question::Question;
use super::shapes::PlanShape;
use super::space::Candidate;
use crate::resolve::Selection;
use pipesim_cost::analytic::Analytic;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::moments::Moments;
use pipesim_schedule::open::{OpenSchedule, Order};
use pipesim_schedule::schedule::Overlap;
use pipesim_sim::ordering::{Effort, order_ops_with};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Maximum number of ops of the compiled orders that are kept.
const MOST_OPS: usize = 12_000_000;

/// An order with the moments of its peak of memory.
#[derive(Debug)]
pub struct Ordered {
    pub graph: TaskGraph,
    /// See [`Schedule::moments`].
    pub moments: Moments,
}

impl Ordered {
    pub fn new(graph: TaskGraph) -> Ordered {
        let moments = graph.schedule().moments();
        Ordered { graph, moments }
    }
}

#[derive(Clone, Debug)]
enum CachedOrder {
    Fixed(Arc<Ordered>),
    Open(Arc<OpenSchedule>),
}

/// Why there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoOrder {
    /// The schedule does not exist for these numbers.
    Missing,
    /// A bound of its cost is above what was asked for.
    Slower,
    /// This machine lacks the memory or a thread to evaluate it now.
    Refused,
}

/// Name of the schedule, devices, stages per device, micro-batches.
type Key = (String, u32, u32, u32);
/// Threads that need an order wait for the one that compiles it.
type KeptOrder = Arc<OnceLock<Result<CachedOrder, NoOrder>>>;

/// Compiled orders.
#[derive(Debug, Default)]
pub struct Orders {
    kept: Mutex<(BTreeMap<Key, KeptOrder>, usize)>,
}

impl Orders {
    /// Returns the order of a candidate.
    pub fn of(
        &self,
        question: &Question,
        shape: &PlanShape,
        candidate: &Candidate,
        costs: &Analytic,
    ) -> Result<Arc<Ordered>, NoOrder> {
        let key = Orders::key(shape, candidate.micro);
        let place = self.lock().0.entry(key.clone()).or_default().clone();
        let kept = place.get_or_init(|| {
            let made = compiled(question, shape, candidate.micro);
            self.count(key, &place, &made);
            made
        });
        match kept {
            Ok(CachedOrder::Fixed(ordered)) => Ok(ordered.clone()),
            Ok(CachedOrder::Open(open)) => searched(open, shape, costs).ok_or(NoOrder::Missing),
            Err(missing) => Err(*missing),
        }
    }

    /// Returns what tells the order of a shape with `micro` micro-batches from others.
    pub fn key(shape: &PlanShape, micro: u32) -> Key {
        (shape.schedule.clone(), shape.pp, shape.chunks, micro)
    }

    /// Counts the ops of an order, and forgets all others when they are too many.
    fn count(&self, key: Key, place: &KeptOrder, made: &Result<CachedOrder, NoOrder>) {
        let Ok(CachedOrder::Fixed(ordered)) = made else { return };
        let (mut kept, ops) = (self.lock(), ordered.graph.len());
        kept.1 += ops;
        if kept.1 > MOST_OPS {
            *kept = (BTreeMap::from([(key, place.clone())]), ops);
        }
    }

    fn lock(&self) -> MutexGuard<'_, (BTreeMap<Key, KeptOrder>, usize)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the order that costs give an open schedule.
fn searched(open: &OpenSchedule, shape: &PlanShape, costs: &Analytic) -> Option<Arc<Ordered>> {
    let open = match costs.room() {
        Some(room) => open.clone().capped(room),
        None => open.clone(),
    };
    let stages = if shape.moves { costs.stages(shape.placement.stages()).ok()? } else { shape.stages.clone() };
    let table = costs.table(&shape.placement, &stages).ok()?;
    let schedule = order_ops_with(&open, &table, Effort::default()).ok()?;
    Some(Arc::new(Ordered::new(TaskGraph::new(schedule).ok()?)))
}

fn compiled(question: &Question, shape: &PlanShape, micro: u32) -> Result<CachedOrder, NoOrder> {
    let chunks = shape.names_chunks.then_some(shape.chunks);
    let selection = Selection { chunks, host: question.host, ..Selection::new(shape.pp, micro) };
    match selection.order(&shape.schedule).map(|found| found.order) {
        // Costs on hardware are of whole micro-batches.
        Ok(Order::Open(open)) if open.slices.is_cut() => Err(NoOrder::Missing),
        Ok(Order::Fixed(schedule)) if schedule.is_beyond_microbatches() => Err(NoOrder::Missing),
        Ok(Order::Open(open)) => Ok(CachedOrder::Open(Arc::new(open))),
        Ok(Order::Fixed(schedule)) => {
            let overlap = if shape.overlaps { Overlap::Streams } else { Overlap::default() };
            let graph = TaskGraph::with_overlap(schedule, overlap).map_err(|_| NoOrder::Missing)?;
            Ok(CachedOrder::Fixed(Arc::new(Ordered::new(graph))))
        }
        Err(error) if error.is_unavailable() => Err(NoOrder::Refused),
        Err(_) => Err(NoOrder::Missing),
    }
}
