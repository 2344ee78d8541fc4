//! The threads and the memory that sessions need at least, checked before any is opened.

use super::saved_activations::most_saved;
use super::{Devices, Error, Training};
use pipesim_exec::COPY_THREADS;
use pipesim_exec::ranks::Ranks;
use pipesim_models::model_spec::{Part, Stage, Tensor, TiedSides};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_system::{free_memory_bytes, free_threads, in_words};

/// Threads of a process in addition to its devices' threads.
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
    let each = |graph: &TaskGraph| if graph.schedule().has_copies() { 1 + COPY_THREADS as u64 } else { 1 };
    let workers = |graph: &TaskGraph| ranks.devices(mesh.world(graph.schedule().devices())).len() as u64;
    let needed: u64 = graphs.map(|graph| each(graph) * workers(graph)).sum();
    match free_threads() {
        Some((free, limit)) if needed + OTHER_THREADS > free => Err(Error::Environment(format!(
            "expected {needed} threads, one per device and schedule, found that the system allows {}: {limit}; ask for fewer \
             `stages`, for one `schedule` at a time, or raise that limit",
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
    let mut members = u64::MAX;
    for graph in graphs {
        // While a plan is made, it holds one number per op and device.
        planning = planning.max((graph.len() as u64).saturating_mul(u64::from(graph.schedule().devices()) * 4));
        let (of_weights, held) = training.map_or(Ok((0, 0)), |training| least_bytes(training, graph))?;
        needed = needed.saturating_add(held);
        weights = weights.max(of_weights); // sessions share them
        members = members.min(training.map_or(1, |training| training.optimizer_share(graph, 0).members as u64));
        count += 1;
    }
    // Values, gradients and moments; where sessions share them, values and moments once more, from which each goes on.
    let moments = 8 / members.max(1);
    let bytes_each = if count > 1 { 12 + 2 * moments } else { 8 + moments };
    needed = needed.saturating_add(weights.saturating_mul(bytes_each)).saturating_add(planning);
    let model = training.map(|training| format!(" of a model of {} parameters", training.config().parameter_count()));
    match free_memory_bytes() {
        Some(free) if needed > free => Err(Error::Environment(format!(
            "expected at least {} of memory for {count} schedules{}, found {} free; use one `schedule` at a time, fewer `stages` or \
             `micro`, a smaller `model`, or smaller micro-batches",
            in_words(needed),
            model.unwrap_or_default(),
            in_words(free)
        ))),
        _ => Ok(()),
    }
}

/// The parameters of a session of `graph` on this machine, and the peak bytes of what its ops keep for later ones.
fn least_bytes(training: &Training, graph: &TaskGraph) -> Result<(u64, u64), Error> {
    if matches!(training.backend.devices, Devices::Cuda(_)) {
        return Ok((0, 0));
    }
    let (mesh, devices) = (training.mesh(), graph.schedule().devices());
    let stages = training.stages(graph)?;
    let here = training.ranks.devices_here(mesh.world(devices));
    let held = here.iter().map(|&worker| most_saved(training, graph, mesh.device(worker), &stages));
    let held: u64 = held.collect::<Result<Vec<_>, _>>()?.into_iter().sum();
    let (parameters, shares) = (training.config().parameter_count() as u64, u64::from(devices * mesh.tensor));
    Ok((parameters * here.len() as u64 / shares, held))
}

/// Bytes of the parameters, gradients and moments of `worker` in a session of `graph`; on GPUs, of the first of its tensor ranks.
pub fn state_bytes(training: &Training, graph: &TaskGraph, worker: u32, stages: &[Stage]) -> u64 {
    let (spec, mesh) = (training.spec(), training.mesh());
    let (at, share) = (mesh.coordinate(worker), training.optimizer_share(graph, worker));
    let held = || graph.schedule().placement.stages_of(at.device).map(|stage| &stages[stage as usize]);
    if let Devices::Cuda(gpus) = &training.backend.devices {
        return gpus.state_bytes(&spec, &held().cloned().collect::<Vec<_>>(), mesh, share.members) as u64;
    }
    let sides = spec.outline().tied_sides(held());
    let tied: Vec<&str> = spec.parts.iter().flat_map(|part| part.tensors().filter_map(|tensor| tensor.tied)).collect();
    let of_group = |group: &Vec<Tensor>| {
        let size = |tensor: &Tensor| tensor.share(at.tensor as usize, mesh.tensor as usize).iter().product::<usize>();
        let (length, is_other) =
            (group.iter().map(size).sum::<usize>(), group.iter().any(|tensor| tensor.tied.is_some()));
        if is_other && sides == TiedSides::Both {
            return 0; // stored once, with its owner
        }
        // A shared tensor has a gradient for each of its two parts.
        let is_shared = is_other || group.iter().any(|tensor| tied.contains(&tensor.name));
        (2 + usize::from(is_shared)) * length + 2 * share.slice(length).len()
    };
    let of_part = |(part, count): (&Part, usize)| count * part.groups.iter().map(of_group).sum::<usize>();
    let numbers: usize = held().flat_map(|stage| spec.held(stage).map(of_part).collect::<Vec<_>>()).sum();
    (numbers * size_of::<f32>()) as u64
}

impl Training {
    /// Checks that workers share the optimizer's work in at least one of `graphs` if they are `asked` to. Returns what each holds
    /// at most then.
    ///
    /// # Errors
    /// No two workers have the same parameters, or the model does not split into the stages.
    pub fn check_sharing<'a>(
        &self,
        graphs: impl Iterator<Item = &'a TaskGraph> + Clone,
        asked: bool,
    ) -> Result<Option<String>, Error> {
        if !self.mesh().zero {
            return Ok(None);
        }
        let shares = |graph: &TaskGraph| self.optimizer_share(graph, 0).members > 1;
        if !graphs.clone().any(shares) {
            let why =
                "`zero` 1 is for workers with the same parameters, found none; give `dp` 2 or more, or leave it out";
            return if asked { Err(Error::Usage(why.to_string())) } else { Ok(None) };
        }
        let mut most = 0;
        for graph in graphs {
            let stages = self.stages(graph)?;
            let workers = 0..self.mesh().world(graph.schedule().devices());
            most = most.max(workers.map(|worker| state_bytes(self, graph, worker, &stages)).max().unwrap_or(0));
        }
        Ok(Some(format!("parameters, gradients and moments take at most {} per worker", in_words(most))))
    }
}
