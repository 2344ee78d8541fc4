//! Whether this machine has room for what is to be measured, before any of it is made.

use super::machine::{free_memory_bytes, free_threads, in_words, most_resident_bytes};
use super::{Backend, Error, Training};
use crate::anatomy::{Stage, TiedSides};
use crate::graph::TaskGraph;
use crate::memory::{SavedActivations, peak};
use crate::model::STORAGE;
use crate::op::Kind;
use crate::ranks::Ranks;
use serde::Serialize;

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
    let left = |stage| SavedActivations {
        forward: left(stage, Kind::F),
        input: left(stage, Kind::I),
        ..SavedActivations::default()
    };
    let left: Vec<SavedActivations> = stages.iter().map(left).collect();
    peak(graph.schedule().program(device), &left).held
}

/// Memory of this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// Most that was expected to be resident.
    pub predicted_bytes: u64,
    /// Most that was, by the system.
    pub measured_bytes: u64,
}

impl Resident {
    /// What was predicted, held against what the system says now; none where it says nothing.
    pub(super) fn against(predicted_bytes: u64) -> Option<Resident> {
        let measured_bytes = most_resident_bytes().filter(|&bytes| bytes > 0)?;
        Some(Resident { predicted_bytes, measured_bytes })
    }
}

/// The program itself with its libraries, and what reports take: measured with a model of nothing.
const PROGRAM_BYTES: u64 = 21 << 20;
/// What matrix products pack their operands into at most, a thread.
const PACKED_BYTES: u64 = 4 << 20;

/// What one device of a session makes resident, in bytes.
#[derive(Clone, Copy, Default)]
struct Touched {
    /// From the start: values, gradients, first moments.
    made: u64,
    /// By its first step or the end of its warm-up: second moments, the head's part of the tied gradient.
    updated: u64,
    /// By its first step: what ops hold and need, messages.
    stepped: u64,
    /// While it is warmed up: a copy of values and moments.
    saved: u64,
}

impl Touched {
    fn of(training: &Training, graph: &TaskGraph, device: u32, stages: &[Stage]) -> Touched {
        const FLOAT: u64 = size_of::<f32>() as u64;
        let (anatomy, placement) = (training.anatomy(), &graph.schedule().placement);
        let held: Vec<&Stage> = placement.stages_of(device).filter_map(|stage| stages.get(stage as usize)).collect();
        let elements = anatomy.device_elements(held.iter().copied(), |elements| elements) as u64;
        let tied = match anatomy.outline().tied_sides(held) {
            TiedSides::None => 0,
            _ => anatomy.tied_elements(|elements| elements) as u64,
        };
        let rows = training.micro_batch.rows() as u64;
        // a block's backward holds ten hidden states and three blocks of scores besides what is kept for it
        let running = rows * 10 * anatomy.width as u64 + 3 * 96 * training.micro_batch.tokens as u64;
        // both operands of a block's largest product: four times the width by the width, or by the rows that it is learned from
        let packed = 2 * 4 * anatomy.width as u64 * rows.max(anatomy.width as u64);
        // four messages to and from each device; the tied gradient's two
        let messages = if placement.devices() > 1 { 4 * rows * anatomy.width as u64 + 2 * tied } else { 0 };
        Touched {
            made: 3 * FLOAT * elements,
            updated: FLOAT * (elements + tied),
            stepped: most_held(training, graph, device, stages)
                + FLOAT * (running + messages)
                + PACKED_BYTES.min(FLOAT * packed),
            saved: 3 * FLOAT * elements,
        }
    }

    fn and(self, other: Touched) -> Touched {
        Touched {
            made: self.made + other.made,
            updated: self.updated + other.updated,
            stepped: self.stepped + other.stepped,
            saved: self.saved + other.saved,
        }
    }
}

/// Most that this process is expected to keep resident, in bytes, when it measures sessions of `graphs`, in this order, warmed up by
/// so many steps each.
pub(super) fn resident_bytes<'a>(
    training: &Training,
    graphs: impl Iterator<Item = &'a TaskGraph>,
    warmup: u32,
) -> Result<u64, Error> {
    let session = |graph: &TaskGraph| {
        let stages = training.stages(graph)?;
        let here = training.ranks.devices_here(graph.schedule().devices());
        let devices = here.iter().map(|&device| Touched::of(training, graph, device, &stages));
        Ok::<_, Error>(devices.fold(Touched::default(), Touched::and))
    };
    let sessions = graphs.map(session).collect::<Result<Vec<_>, _>>()?;
    let whole_model = training.config().parameter_count() as u64 * 4;
    let made: u64 = sessions.iter().map(|session| session.made).sum();
    // each is warmed up in turn, those before it are as they stay
    let (mut before, mut most) = (PROGRAM_BYTES + whole_model + made, 0);
    for (number, session) in sessions.iter().enumerate() {
        let stepped = if warmup > 0 { session.stepped } else { 0 };
        most = most.max(before + session.updated + stepped + session.saved);
        // the allocator gives back what was first freed; from then on it keeps such blocks for the thread that freed them
        let kept = if number > 0 { session.saved } else { 0 };
        before += session.updated + stepped + kept;
    }
    let all = if warmup > 0 { 0 } else { sessions.iter().map(|session| session.stepped).sum() };
    Ok(most.max(before + all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_what_was_resident() {
        let resident = Resident::against(1 << 40).unwrap();
        assert!(resident.measured_bytes > 1 << 20 && resident.predicted_bytes == 1 << 40);
    }
}
