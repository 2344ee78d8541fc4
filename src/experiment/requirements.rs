//! The threads and the memory that sessions need at least, checked before any is opened.

use super::system::{free_memory_bytes, free_threads, in_words};
use super::{Backend, Error, Training};
use crate::graph::TaskGraph;
use crate::memory::{SavedActivations, peak};
use crate::mesh::Mesh;
use crate::model_spec::Stage;
use crate::op::{Kind, Op};
use crate::ranks::Ranks;

/// Threads of a process besides those of its devices.
const OTHER_THREADS: u64 = 8;

/// Checks that the system has the threads and the memory for one session of `training`.
///
/// # Errors
/// It has not.
pub fn require_session(graph: &TaskGraph, training: &Training) -> Result<(), Error> {
    require_threads([graph].into_iter(), training.mesh(), &training.ranks)?;
    require_memory([graph].into_iter(), Some(training))
}

/// Checks that the system allows a thread for each worker of this rank, over all `graphs`.
pub(super) fn require_threads<'a>(
    graphs: impl Iterator<Item = &'a TaskGraph>,
    mesh: Mesh,
    ranks: &Ranks,
) -> Result<(), Error> {
    let needed: u64 = graphs.map(|graph| ranks.devices(mesh.world(graph.schedule().devices())).len() as u64).sum();
    match free_threads() {
        Some((free, limit)) if needed + OTHER_THREADS > free => Err(Error::Environment(format!(
            "expected {needed} threads, one per device and schedule, found that the system allows {}: {limit}; ask for fewer \
             --stages, for one --schedule at a time, or raise that limit",
            free.saturating_sub(OTHER_THREADS)
        ))),
        _ => Ok(()),
    }
}

/// Checks that sessions of `graphs` fit into free memory; `training` is `None` for devices that hold nothing.
pub(super) fn require_memory<'a>(
    graphs: impl Iterator<Item = &'a TaskGraph>,
    training: Option<&Training>,
) -> Result<(), Error> {
    let (mut needed, mut planning, mut weights, mut count) = (0_u64, 0_u64, 0_u64, 0);
    for graph in graphs {
        // While a plan is made, it holds one number per op and device.
        planning = planning.max((graph.len() as u64).saturating_mul(u64::from(graph.schedule().devices()) * 4));
        let (of_weights, held) = training.map_or(Ok((0, 0)), |training| least_bytes(training, graph))?;
        needed = needed.saturating_add(held);
        weights = weights.max(of_weights); // sessions share them
        count += 1;
    }
    // Values, gradients and moments; where sessions share them, values and moments once more, from which each goes on.
    let bytes_each = if count > 1 { 28 } else { 16 };
    needed = needed.saturating_add(weights.saturating_mul(bytes_each)).saturating_add(planning);
    let model = training.map(|training| format!(" of a model of {} parameters", training.config().parameter_count()));
    match free_memory_bytes() {
        Some(free) if needed > free => Err(Error::Environment(format!(
            "expected at least {} of memory for {count} schedules{}, found {} free; use one --schedule at a time, fewer --stages or \
             --micro, a smaller --model, or smaller micro-batches",
            in_words(needed),
            model.unwrap_or_default(),
            in_words(free)
        ))),
        _ => Ok(()),
    }
}

/// The parameters of a session of `graph` on this machine, and the peak bytes of what its ops keep for later ones.
fn least_bytes(training: &Training, graph: &TaskGraph) -> Result<(u64, u64), Error> {
    if matches!(training.backend, Backend::Cuda { .. }) {
        return Ok((0, 0));
    }
    let (mesh, devices) = (training.mesh(), graph.schedule().devices());
    let stages = training.stages(graph)?;
    let here = training.ranks.devices_here(mesh.world(devices));
    let held: u64 = here.iter().map(|&worker| most_held(training, graph, mesh.device(worker), &stages)).sum();
    let (parameters, shares) = (training.config().parameter_count() as u64, u64::from(devices * mesh.tensor));
    Ok((parameters * here.len() as u64 / shares, held))
}

/// Peak bytes that the ops of a worker of `device` keep for later ones.
pub fn most_held(training: &Training, graph: &TaskGraph, device: u32, stages: &[Stage]) -> u64 {
    let spec = training.spec();
    let storage = training.storage();
    let left = |stage: &Stage, kind| spec.left(stage, kind, training.micro_batch, &storage) as u64;
    let left = |stage| SavedActivations {
        forward: left(stage, Kind::F),
        input: left(stage, Kind::I),
        ..SavedActivations::default()
    };
    let left: Vec<SavedActivations> = stages.iter().map(left).collect();
    // A CPU runs a full backward as its two halves.
    let halves = |op: &Op| match op.kind() {
        Kind::B => [Kind::I, Kind::W].map(|kind| op.of_kind(kind)).to_vec(),
        _ => vec![*op],
    };
    let ops: Vec<Op> = graph.schedule().program(device).iter().flat_map(halves).collect();
    peak(&ops, &left).held
}
