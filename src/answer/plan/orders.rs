//! Orders of a plan's schedules, compiled once for all layouts that share them.

use super::question::Question;
use super::shapes::PlanShape;
use super::space::Candidate;
use crate::resolve::Selection;
use pipesim_cost::analytic::Analytic;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::{OpenSchedule, Order};
use pipesim_schedule::schedule::{Programs, Schedule};
use pipesim_sim::ordering::{Effort, order_ops_with};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of ops of the compiled orders that are kept.
const MOST_OPS: usize = 12_000_000;

/// An order with a shorter one that has the same peak of memory.
#[derive(Debug)]
pub struct Ordered {
    pub graph: TaskGraph,
    /// The same schedule without repetitions. Every device passes the same moments, so the peak of memory is the same.
    pub moments: Schedule,
}

impl Ordered {
    pub fn new(graph: TaskGraph) -> Ordered {
        let moments = moments(graph.schedule());
        Ordered { graph, moments }
    }
}

#[derive(Clone, Debug)]
enum CachedOrder {
    Fixed(Arc<Ordered>),
    Open(Arc<OpenSchedule>),
    None(NoOrder),
}

/// Why there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoOrder {
    /// The schedule does not exist for these numbers.
    Missing,
    /// This machine lacks the memory or a thread to evaluate it now.
    Refused,
}

/// Name of the schedule, devices, stages per device, micro-batches.
type Key = (String, u32, u32, u32);

/// Compiled orders.
#[derive(Debug, Default)]
pub struct Orders {
    kept: Mutex<(BTreeMap<Key, CachedOrder>, usize)>,
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
        let key = (shape.schedule.clone(), shape.pp, shape.chunks, candidate.micro);
        let known = self.lock().0.get(&key).cloned();
        let kept = known.unwrap_or_else(|| {
            let made = compiled(question, shape, candidate.micro);
            let mut kept = self.lock();
            let ops = match &made {
                CachedOrder::Fixed(ordered) => ordered.graph.len(),
                _ => 0,
            };
            if kept.1 + ops > MOST_OPS {
                *kept = Default::default();
            }
            kept.1 += ops;
            kept.0.insert(key, made.clone());
            made
        });
        match kept {
            CachedOrder::Fixed(ordered) => Ok(ordered),
            CachedOrder::None(why) => Err(why),
            CachedOrder::Open(open) => searched(&open, shape, costs).ok_or(NoOrder::Missing),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (BTreeMap<Key, CachedOrder>, usize)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the order that costs give an open schedule.
fn searched(open: &OpenSchedule, shape: &PlanShape, costs: &Analytic) -> Option<Arc<Ordered>> {
    let open = match costs.room() {
        Some(room) => open.clone().capped(room),
        None => open.clone(),
    };
    let table = costs.table(&shape.placement, &shape.stages).ok()?;
    let schedule = order_ops_with(&open, &table, Effort::default()).ok()?;
    Some(Arc::new(Ordered::new(TaskGraph::new(schedule).ok()?)))
}

fn compiled(question: &Question, shape: &PlanShape, micro: u32) -> CachedOrder {
    let chunks = shape.names_chunks.then_some(shape.chunks);
    let selection = Selection { chunks, host: question.host, ..Selection::new(shape.pp, micro) };
    match selection.order(&shape.schedule).map(|found| found.order) {
        // Costs on hardware are of whole micro-batches.
        Ok(Order::Open(open)) if open.slices.is_cut() => CachedOrder::None(NoOrder::Missing),
        Ok(Order::Fixed(schedule)) if schedule.is_beyond_microbatches() => CachedOrder::None(NoOrder::Missing),
        Ok(Order::Open(open)) => CachedOrder::Open(Arc::new(open)),
        Ok(Order::Fixed(schedule)) => {
            let graph = TaskGraph::new(schedule);
            graph.map_or(CachedOrder::None(NoOrder::Missing), |graph| CachedOrder::Fixed(Arc::new(Ordered::new(graph))))
        }
        Err(error) if error.is_unavailable() => CachedOrder::None(NoOrder::Refused),
        Err(_) => CachedOrder::None(NoOrder::Missing),
    }
}

/// Returns `schedule` without the repetitions of each device's program.
fn moments(schedule: &Schedule) -> Schedule {
    let rows = (0..schedule.devices()).map(|device| without_repetitions(schedule.program(device)));
    let programs = Programs::from_iter(rows);
    Schedule::new(&schedule.name, schedule.placement.clone(), schedule.microbatches, programs)
}

/// Returns a number that represents one micro-batch held by a stage, from F on or from I on; sums of these numbers represent states.
fn weight(stage: u32, from: u64) -> u128 {
    // two rounds of SplitMix64 (Steele et al. 2014)
    let mix = |seed: u64| {
        let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let seed = 4 * u64::from(stage) + 2 * from + 1;
    u128::from(mix(seed)) << 64 | u128::from(mix(seed ^ (1 << 40)))
}

/// Returns `ops` without runs that lead back to a state already reached and contain no moment that has not been passed before. A state is
/// what each stage holds; a moment is a state and the op that runs in it.
fn without_repetitions(ops: &[Op]) -> Vec<Op> {
    let mut state = 0_u128;
    let mut kept: Vec<Op> = Vec::new();
    let mut new_until = 0; // no moment after this many kept ops is new
    let mut reached: BTreeMap<u128, usize> = BTreeMap::from([(0, 0)]);
    // the state after each kept op
    let mut path: Vec<u128> = Vec::new();
    let mut seen: BTreeSet<(u128, u32, Kind)> = BTreeSet::new();
    for &op in ops {
        let is_new = seen.insert((state, op.stage(), op.kind()));
        let [forward, input] = [0, 1].map(|from| weight(op.stage(), from));
        state = match op.kind() {
            Kind::F => state.wrapping_add(forward),
            Kind::B => state.wrapping_sub(forward),
            Kind::I => state.wrapping_sub(forward).wrapping_add(input),
            _ => state.wrapping_sub(input),
        };
        kept.push(op);
        path.push(state);
        if is_new {
            new_until = kept.len();
        }
        match reached.get(&state).copied() {
            // back in a known state with no new moments: drop the loop
            Some(length) if new_until <= length => {
                for dropped in path.drain(length..) {
                    if dropped != state {
                        reached.remove(&dropped);
                    }
                }
                kept.truncate(length);
            }
            _ => drop(reached.insert(state, kept.len())),
        }
    }
    kept
}
