//! Orders of a plan's schedules, compiled once for all layouts that share them.

use super::question::Question;
use super::shapes::PlanShape;
use super::space::Candidate;
use crate::resolve::{Selection, results};
use pipesim_cost::analytic::Analytic;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::moments::Moments;
use pipesim_schedule::open::{OpenSchedule, Order};
use pipesim_schedule::schedule::Overlap;
use pipesim_sim::ordering::{Effort, order_ops_with};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

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
type KeptOrders = BTreeMap<Key, Result<CachedOrder, NoOrder>>;

/// Compiled orders.
#[derive(Debug, Default)]
pub struct Orders {
    kept: Mutex<(KeptOrders, usize)>,
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
        let known = self.lock().0.get(&key).cloned();
        let kept = known.unwrap_or_else(|| {
            let made = compiled(question, shape, candidate.micro);
            self.insert(key, made.clone());
            made
        });
        match kept? {
            CachedOrder::Fixed(ordered) => Ok(ordered),
            CachedOrder::Open(open) => searched(&open, shape, costs).ok_or(NoOrder::Missing),
        }
    }

    /// Compiles the orders of layouts that are not known, each once, in parallel.
    pub fn compile<'s>(&self, question: &Question, layouts: impl Iterator<Item = (&'s PlanShape, u32)>) {
        let fixed = layouts.filter(|(shape, _)| !shape.is_open);
        let fixed = fixed.map(|(shape, micro)| (Orders::key(shape, micro), (shape, micro)));
        let missing = fixed.filter(|(key, _)| !self.lock().0.contains_key(key)).collect::<BTreeMap<_, _>>();
        let missing: Vec<(Key, (&PlanShape, u32))> = missing.into_iter().collect();
        results(question.host, missing.len(), |which| {
            let (key, (shape, micro)) = &missing[which];
            self.insert(key.clone(), compiled(question, shape, *micro));
        });
    }

    fn key(shape: &PlanShape, micro: u32) -> Key {
        (shape.schedule.clone(), shape.pp, shape.chunks, micro)
    }

    fn insert(&self, key: Key, made: Result<CachedOrder, NoOrder>) {
        let mut kept = self.lock();
        let ops = match &made {
            Ok(CachedOrder::Fixed(ordered)) => ordered.graph.len(),
            _ => 0,
        };
        if kept.1 + ops > MOST_OPS {
            *kept = Default::default();
        }
        kept.1 += ops;
        kept.0.insert(key, made);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (KeptOrders, usize)> {
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
