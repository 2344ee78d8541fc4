//! Costs of copies to the host and back: the calibrating schedule with all of its activations offloaded, and time per byte.

use super::{Error, Role, Steps, Training};
use crate::cost::PartCost;
use crate::exec::StepRecord;
use crate::graph::TaskGraph;
use crate::model_spec::MicroBatch;
use crate::op::{Kind, Op};
use crate::resolve::Selection;
use crate::schedule::Schedule;
use crate::statistics::median;
use std::collections::BTreeMap;

/// The schedule to copy where the one that calibrates has slices, copies or recomputes of its own.
const PLAIN: &str = "1f1b";

/// The calibrating schedule with every activation on the host between forward and backward, if any of `graphs` has copies and the
/// calibrating one has none. It has at most as many micro-batches as fill the pipeline twice.
pub(super) fn copied_graphs<'a>(
    training: &Training,
    (name, selection): (&str, &Selection),
    mut graphs: impl Iterator<Item = &'a TaskGraph>,
) -> Result<Vec<(TaskGraph, Role)>, Error> {
    if !graphs.any(|graph| graph.schedule().has_copies()) {
        return Ok(Vec::new());
    }
    let microbatches = selection.microbatches.min(2 * selection.devices);
    let own = training.calibrating_graph(name, selection, microbatches)?;
    if own.schedule().has_copies() {
        return Ok(Vec::new());
    }
    let whole = match own.schedule().beyond_microbatches() {
        None => own,
        Some(_) => training.calibrating_graph(PLAIN, selection, microbatches)?,
    };
    let copied = TaskGraph::new(copied(whole.schedule()));
    let copied = copied.map_err(|deadlock| Error::Schedule(format!("calibrating on copies of {name}: {deadlock}")))?;
    Ok(vec![(copied, Role::CalibratesCopies)])
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

/// Returns the costs of copies of each part of the model, by the typical time per byte in measured steps; none if these have no
/// copies. `pace` is the slowness of the machine in a step; 1 is typical.
pub(super) fn copy_costs(
    training: &Training,
    steps: &Steps,
    pace: impl Fn(&StepRecord) -> f64,
) -> Result<Vec<PartCost>, Error> {
    let (graph, spec) = (&*steps.graph, training.spec());
    if !graph.schedule().has_copies() {
        return Ok(Vec::new());
    }
    let (stages, slices) = (training.stages(graph)?, training.slices(graph)?);
    let bytes = |op: Op| {
        let micro = MicroBatch { tokens: slices[op.slice_number()], ..training.micro_batch };
        spec.left(&stages[op.stage() as usize], Kind::F, micro, &training.storage_of(micro.tokens)).max(1) as f64
    };
    let mut per_byte: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    for record in &steps.records {
        for copy in record.devices.iter().flat_map(|device| &device.host_copies) {
            let op = graph.op(copy.index);
            let ns = copy.end.saturating_sub(copy.start) as f64 / pace(record);
            per_byte.entry(op.kind()).or_default().push(ns / bytes(op));
        }
    }
    let size = training.micro_batch;
    let storage = training.storage_of(size.tokens);
    let of_kind = |(kind, per_byte): (Kind, Vec<f64>)| {
        let (typical, samples) = (median(&per_byte), per_byte.len() as u64);
        let of_part = |part: &crate::model_spec::Part| PartCost {
            part: part.name.to_string(),
            kind: kind.letter().to_string(),
            sequences: size.sequences as u32,
            tokens: size.tokens as u32,
            slice: None,
            duration_ns: (typical * part.left(Kind::F, size, &storage) as f64).round() as u64,
            samples,
        };
        spec.parts.iter().map(of_part).collect::<Vec<_>>()
    };
    Ok(per_byte.into_iter().flat_map(of_kind).collect())
}
