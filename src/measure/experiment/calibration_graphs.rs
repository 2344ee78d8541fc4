//! The graphs to measure costs with: the schedule that calibrates, and variants of it for other micro-batches, slices and copies.

use super::{Error, Role, Training};
use pipesim_answer::resolve::{self, Selection, unknown_costs};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::schedule::Schedule;
use pipesim_schedule::slices::Slices;
use std::collections::BTreeMap;

/// The schedule to copy where the one that calibrates has slices, copies or recomputes of its own.
const PLAIN: &str = "1f1b";

/// The schedule that calibrates, and what it trains.
#[derive(Clone, Copy)]
pub(super) struct Calibrator<'a> {
    pub training: &'a Training,
    /// Name or path of the schedule.
    pub name: &'a str,
    pub selection: &'a Selection,
}

impl Calibrator<'_> {
    /// Returns its graph with `microbatches` micro-batches; the model splits into its stages.
    fn graph(&self, microbatches: u32) -> Result<TaskGraph, Error> {
        let selection = Selection { microbatches, ..self.selection.clone() };
        let graph = selection.graph::<resolve::Error>(self.name, &unknown_costs)?.graph;
        self.training.stages(&graph).map_err(|error| error.of(&format!("calibrating on {}", self.name)))?;
        Ok(graph)
    }

    /// Returns its graph with at most as many micro-batches as fill the pipeline twice.
    fn short(&self) -> Result<TaskGraph, Error> {
        self.graph(self.selection.microbatches.min(2 * self.selection.devices))
    }

    /// Returns its graph. If devices share cores, also the same with one micro-batch, so that each op runs alone; left out if the
    /// schedule does not exist for one micro-batch. Then shorter ones with the micro-batches of each of `sizes`.
    pub fn graphs(&self, sizes: &[Training]) -> Result<Vec<(TaskGraph, Role)>, Error> {
        let graph = self.graph(self.selection.microbatches)?;
        let has_neighbours = self.training.shares_cores().is_some() && graph.schedule().devices() > 1;
        let has_neighbours = has_neighbours && graph.schedule().beyond_microbatches().is_none();
        let alone = has_neighbours.then(|| self.graph(1).ok()).flatten();
        let mut graphs = vec![(graph, Role::Calibrates)];
        graphs.extend(alone.map(|graph| (graph, Role::CalibratesAlone)));
        for (number, training) in sizes.iter().enumerate() {
            graphs.push((Calibrator { training, ..*self }.short()?, Role::CalibratesSize(number)));
        }
        Ok(graphs)
    }

    /// Returns the graphs that measure what `judged` has beyond whole micro-batches and the schedule itself has not: slices, once for
    /// every cut of the sequences, and copies.
    pub fn beyond<'a>(
        &self,
        mut judged: impl Iterator<Item = &'a TaskGraph> + Clone,
    ) -> Result<Vec<(TaskGraph, Role)>, Error> {
        let mut found = self.sliced(judged.clone().map(|graph| graph.schedule().slices()))?;
        if judged.any(|graph| graph.schedule().has_copies()) {
            found.extend(self.copied()?);
        }
        Ok(found)
    }

    fn sliced<'a>(&self, judged: impl Iterator<Item = &'a Slices>) -> Result<Vec<(TaskGraph, Role)>, Error> {
        let (mut cuts, mut found): (Vec<&Slices>, _) = (Vec::new(), Vec::new());
        for slices in judged.filter(|slices| slices.is_cut()) {
            if cuts.contains(&slices) {
                continue;
            }
            cuts.push(slices);
            let whole = self.short()?;
            if whole.schedule().slices().is_cut() {
                continue;
            }
            let cut = TaskGraph::with_overlap(cut(whole.schedule(), slices), whole.overlap());
            let of = |deadlock| Error::Schedule(format!("calibrating on slices of {}: {deadlock}", self.name));
            found.push((cut.map_err(of)?, Role::CalibratesSlices));
        }
        Ok(found)
    }

    /// The graph with every activation on the host between forward and backward; `None` if the schedule has copies itself.
    fn copied(&self) -> Result<Option<(TaskGraph, Role)>, Error> {
        let own = self.short()?;
        if own.schedule().has_copies() {
            return Ok(None);
        }
        let whole = match own.schedule().beyond_microbatches() {
            None => own,
            Some(_) => Calibrator { name: PLAIN, ..*self }.short()?,
        };
        let of = |deadlock| Error::Schedule(format!("calibrating on copies of {}: {deadlock}", self.name));
        let copied = TaskGraph::new(copied(whole.schedule())).map_err(of)?;
        Ok(Some((copied, Role::CalibratesCopies)))
    }
}

/// Cuts every op of a schedule into one op per slice, forwards from the first to the last, everything else from the last to the
/// first.
fn cut(schedule: &Schedule, slices: &Slices) -> Schedule {
    let of_op = |op: &Op| {
        let (op, n, is_forward) = (op.alone(), slices.count(), op.kind() == Kind::F);
        (0..n).map(move |slice| op.on_slice(if is_forward { slice } else { n - 1 - slice }))
    };
    let rows =
        (0..schedule.devices()).map(|device| schedule.program(device).iter().flat_map(of_op).collect::<Vec<_>>());
    Schedule::new(&schedule.name, schedule.placement.clone(), schedule.microbatches, rows.collect())
        .with_slices(slices.clone())
}

/// Returns a schedule of whole micro-batches with an OFFLOAD after each forward, and a RELOAD one op before each backward.
fn copied(schedule: &Schedule) -> Schedule {
    let of_device = |device: u32| -> Vec<Op> {
        let program: Vec<Op> = schedule.program(device).iter().map(|op| op.alone()).collect();
        let mut reloads: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
        for (number, op) in program.iter().enumerate().filter(|(_, op)| op.kind().is_backward()) {
            let before = number.saturating_sub(1);
            let place = if program[before] == op.of_kind(Kind::F) { number } else { before };
            reloads.entry(place).or_default().push(op.of_kind(Kind::L));
        }
        let mut copied = Vec::with_capacity(2 * program.len());
        for (number, op) in program.into_iter().enumerate() {
            copied.extend(reloads.remove(&number).unwrap_or_default());
            copied.push(op);
            copied.extend((op.kind() == Kind::F).then(|| op.of_kind(Kind::O)));
        }
        copied
    };
    let rows = (0..schedule.devices()).map(of_device);
    Schedule::new(&schedule.name, schedule.placement.clone(), schedule.microbatches, rows.collect())
}
