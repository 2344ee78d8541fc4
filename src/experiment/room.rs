//! Whether this machine has room for what is to be measured, before any of it is made.

use super::machine::{free_memory_bytes, free_threads, in_words};
use super::{Backend, Error, Training};
use crate::anatomy::Stage;
use crate::graph::TaskGraph;
use crate::model::STORAGE;
use crate::op::Kind;
use crate::ranks::Ranks;

/// Threads that a process has besides those of its devices.
const OTHERS: u64 = 8;

/// Refuses more devices of this rank, of all `graphs` together, than the system gives threads.
pub(super) fn require_threads<'a>(graphs: impl Iterator<Item = &'a TaskGraph>, ranks: &Ranks) -> Result<(), Error> {
    let needed: u64 = graphs.map(|graph| ranks.devices(graph.schedule().devices()).len() as u64).sum();
    match free_threads() {
        Some((free, limit)) if needed + OTHERS > free => Err(Error::Environment(format!(
            "expected {needed} threads, one for each device of each schedule, found that the system gives {}: {limit}; ask for \
             fewer --stages, for one --schedule at a time, or raise that limit",
            free.saturating_sub(OTHERS)
        ))),
        _ => Ok(()),
    }
}

/// Refuses sessions of `graphs` that do not fit into free memory whatever happens; those of `training`, or of devices that hold
/// nothing.
pub(super) fn require_memory<'a>(
    graphs: impl Iterator<Item = &'a TaskGraph>,
    training: Option<&Training>,
) -> Result<(), Error> {
    let (mut needed, mut planning, mut count) = (0_u64, 0_u64, 0);
    for graph in graphs {
        // How a plan knows, while it is made, what follows what.
        planning = planning.max((graph.len() as u64).saturating_mul(u64::from(graph.schedule().devices()) * 4));
        needed = needed.saturating_add(training.map_or(Ok(0), |training| least_bytes(training, graph))?);
        count += 1;
    }
    needed = needed.saturating_add(planning);
    let model = training.map(|training| format!(" of a model of {} parameters", training.config().parameter_count()));
    match free_memory_bytes() {
        Some(free) if needed > free => Err(Error::Environment(format!(
            "expected {} of memory at least for {count} schedules{}, found {} free: ask for one --schedule at a time, fewer \
             --stages or --micro, a smaller --model, or smaller micro-batches",
            in_words(needed),
            model.unwrap_or_default(),
            in_words(free)
        ))),
        _ => Ok(()),
    }
}

/// Bytes that a session of `graph` takes on this machine at least: values, gradients and moments of all parameters, and what ops
/// hold when they hold most.
fn least_bytes(training: &Training, graph: &TaskGraph) -> Result<u64, Error> {
    if matches!(training.backend, Backend::Cuda { .. }) {
        return Ok(0);
    }
    let devices = graph.schedule().devices();
    let stages = training.stages(graph)?;
    let here = training.ranks.devices_here(devices);
    let held: u64 = here.iter().map(|&device| most_held(training, graph, device, &stages)).sum();
    let parameters = training.config().parameter_count() as u64 * 16;
    Ok((parameters / u64::from(devices) * here.len() as u64).saturating_add(held))
}

/// The most that the ops of `device` hold for those to come.
fn most_held(training: &Training, graph: &TaskGraph, device: u32, stages: &[Stage]) -> u64 {
    let anatomy = training.anatomy();
    let left = |stage: &Stage, kind| anatomy.left(stage, kind, training.micro_batch, &STORAGE) as u64;
    let by_stage: Vec<[u64; 2]> = stages.iter().map(|stage| [Kind::F, Kind::I].map(|kind| left(stage, kind))).collect();
    let (mut now, mut most) = (0_u64, 0);
    for op in graph.schedule().program(device) {
        let [forward, input] = by_stage[op.stage() as usize];
        now = match op.kind() {
            Kind::F => now + forward,
            Kind::I => (now + input).saturating_sub(forward),
            Kind::W => now.saturating_sub(input),
            Kind::B => now.saturating_sub(forward),
        };
        most = most.max(now);
    }
    most
}
