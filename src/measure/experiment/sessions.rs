//! Opening the sessions of several runs. On CPUs they share one set of weights.

use super::weights::{Borrower, WeightPool};
use super::{Devices, Error, Role, ScheduleRun, Training};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::Kind;
use pipesim_train::model::Config;
use std::sync::{Arc, Mutex};

/// What is run: the training, the graph, and what for.
pub(super) type Planned<'a> = (&'a Training, TaskGraph, Role);

/// Opens a session for each of `planned`; all ranks must call this together.
///
/// # Errors
/// A model does not split into the stages, or memory or threads do not suffice.
pub(super) fn open_sessions<'a>(planned: Vec<Planned<'a>>) -> Result<Vec<ScheduleRun<'a>>, Error> {
    if let Some((training, ..)) = planned.first() {
        training.check_sharing(planned.iter().map(|(_, graph, _)| graph), true)?;
    }
    let weights = weights(&planned);
    let open = |((training, graph, role), weights): (Planned<'a>, Option<Borrower>)| {
        let mut run = ScheduleRun::new(training, graph, role)?;
        weights.iter().try_for_each(|weights| weights.join(&mut run.session))?;
        Ok(ScheduleRun { weights, ..run })
    };
    planned.into_iter().zip(weights).map(open).collect()
}

/// Returns each run's part in a pool; a run that is alone keeps its weights, and so do GPUs.
fn weights(planned: &[Planned<'_>]) -> Vec<Option<Borrower>> {
    let roles: Vec<Role> = planned.iter().map(|(.., role)| *role).collect();
    let asked_for = Role::asked_for(&roles);
    let mut pools: Vec<(Config, Arc<Mutex<WeightPool>>)> = Vec::new(); // one for each model
    let mut pool_of = |training: &Training| {
        let known = pools.iter().position(|(config, _)| config == training.config());
        known.unwrap_or_else(|| {
            pools.push((*training.config(), Arc::default()));
            pools.len() - 1
        })
    };
    let models: Vec<usize> = planned.iter().map(|(training, ..)| pool_of(training)).collect();
    let is_same = |one: usize, other: usize| {
        let ((a, graph, _), (b, others, _)) = (&planned[one], &planned[other]);
        let microbatches = |graph: &TaskGraph| graph.schedule().microbatches;
        let is_cut_alike = graph.schedule().slices() == others.schedule().slices();
        std::ptr::eq(*a, *b)
            && is_cut_alike
            && microbatches(graph) == microbatches(others)
            && is_in_order(graph)
            && is_in_order(others)
    };
    let borrower = |run: usize| {
        if planned.len() == 1 || !matches!(planned[run].0.backend.devices, Devices::Cpu) {
            return None;
        }
        // Steps that only measure times may start from any state.
        let leads = |&other: &usize| asked_for[other] && models[other] == models[run];
        let leader = (0..planned.len()).find(leads).filter(|_| !asked_for[run]);
        let first = |run: usize| (0..run).find(|&other| asked_for[other] && is_same(other, run)).unwrap_or(run);
        let trains = leader.is_none();
        let pool = pools[models[run]].1.clone();
        Some(Borrower { pool, run, trajectory: first(leader.unwrap_or(run)), trains })
    };
    (0..planned.len()).map(borrower).collect()
}

/// Whether the gradients of each stage are summed in the order of micro-batches, and within them of slices from the last to the
/// first: then every partition gives the same bits.
fn is_in_order(graph: &TaskGraph) -> bool {
    let schedule = graph.schedule();
    let mut next = vec![0; schedule.placement.stages() as usize];
    let mut sums = (0..graph.len()).map(|index| graph.op(index)).filter(|op| matches!(op.kind(), Kind::W | Kind::B));
    schedule.placement.directions() == 1
        && sums.all(|op| {
            let expected = &mut next[op.stage() as usize];
            *expected += 1;
            op.unit(schedule.slices().count()) as u32 == schedule.slices().backward(*expected - 1)
        })
}
