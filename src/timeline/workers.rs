//! The workers of a mesh that a timeline does not show as its devices.

use super::{Span, Timeline, TimelineError};
use crate::mesh::Mesh;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The workers of a run with several workers per pipeline device. Workers of the same replica and tensor rank run a copy of the
/// pipeline; the spans of a timeline are those of one copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workers {
    /// The degrees.
    pub mesh: Mesh,
    /// Replica of the workers whose spans the timeline has as its own: the slowest copy.
    pub data: u32,
    /// Their tensor rank.
    pub tensor: u32,
    /// The workers of all other copies.
    pub others: Vec<WorkerSpans>,
}

/// The spans of one copy of the pipeline: of the worker of each device with this coordinate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSpans {
    /// Replica, from 0.
    pub data: u32,
    /// Tensor rank, from 0.
    pub tensor: u32,
    /// By device, then queue, then start; times are from the time 0 of the timeline.
    pub spans: Vec<Span>,
}

impl Workers {
    /// Names the workers with these coordinates: `replica 1, tensor rank 0`.
    pub fn name(&self, data: u32, tensor: u32) -> String {
        self.mesh.copy_name(data * self.mesh.tensor + tensor)
    }

    /// Names the workers that the timeline shows.
    pub fn shown(&self) -> String {
        self.name(self.data, self.tensor)
    }

    /// Says which worker of each device a picture shows.
    pub fn note(&self) -> String {
        format!(
            "measured: each device is shown by its worker of {}, whose last op ended last of {}; the page, the trace and the timeline's \
             JSON have the others, too",
            self.shown(),
            self.mesh.copies()
        )
    }
}

impl Timeline {
    /// Returns the timelines of the workers that this one does not show, each with the name of its workers.
    pub fn other_workers(&self) -> impl Iterator<Item = (String, Timeline)> {
        self.workers.iter().flat_map(|workers| {
            workers.others.iter().map(|other| (workers.name(other.data, other.tensor), self.of_workers(other)))
        })
    }

    fn of_workers(&self, other: &WorkerSpans) -> Timeline {
        Timeline { spans: other.spans.clone(), ..self.header() }
    }

    /// Checks that every copy is there once, with spans that fit the header.
    pub(super) fn validate_workers(&self, place: &str) -> Result<(), TimelineError> {
        let Some(workers) = &self.workers else { return Ok(()) };
        let here = super::read::field(place, "workers");
        let mesh = workers.mesh;
        let coordinates = workers.others.iter().map(|other| (other.data, other.tensor));
        let found: BTreeSet<(u32, u32)> = coordinates.chain([(workers.data, workers.tensor)]).collect();
        let is_whole = mesh.is_sound()
            && found.iter().all(|&(data, tensor)| data < mesh.data && tensor < mesh.tensor)
            && found.len() == mesh.copies() as usize
            && workers.others.len() + 1 == found.len();
        if !is_whole {
            return Err(TimelineError(format!(
                "{here}: expected the workers of {mesh}, each once, found {} of {} coordinates; correct them, or leave workers out",
                workers.others.len() + 1,
                found.len()
            )));
        }
        workers
            .others
            .iter()
            .enumerate()
            .try_for_each(|(number, other)| self.of_workers(other).validate_spans(&format!("{here}.others[{number}]")))
    }
}
