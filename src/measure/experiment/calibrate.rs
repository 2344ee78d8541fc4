//! From measured steps to costs: the run of one schedule yields the atoms that predict every other.

use super::calibration_graphs::Calibrator;
use super::contention::Neighbours;
use super::sessions::open_sessions;
use super::{Error, Extent, Observer, Role, Steps, Training, measure};
use pipesim_answer::resolve::{self, Selection};
use pipesim_cost::{
    Contention, CostFile, CostTable, GroupRates, LinkCost, MEASURED_SCHEMA_VERSION, PartCost, Slowdown, StepRates,
    TYPICAL, slice_bounds,
};
use pipesim_exec::{DeviceRecord, OpRecord, StepRecord};
use pipesim_models::model_spec::{BLOCK, EMBEDDING, MicroBatch, ModelSpec, Part, Stage};
use pipesim_schedule::epilogue::{GradientSync, StepEpilogue, StepNode, StepOp, stage_group};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::statistics::{median, typical};
use pipesim_train::model;
use std::collections::BTreeMap;

/// Measures costs from steps of the schedule `name` alone, for the micro-batches of `training` and of each of `sizes`.
///
/// Returns the costs, and what ended the measurement early or spoils it.
pub fn profile(
    training: &Training,
    sizes: &[Training],
    name: &str,
    selection: &Selection,
    extent: Extent,
    observer: Observer<'_>,
) -> Result<(CostFile, Option<Error>), Error> {
    let graphs = Calibrator { training, name, selection }.graphs(sizes)?;
    let planned = |(graph, role)| {
        let of_role = if let Role::CalibratesSize(number) = role { &sizes[number] } else { training };
        (of_role, graph, role)
    };
    let mut runs = open_sessions(graphs.into_iter().map(planned).collect())?;
    let ended = measure(&mut runs, extent, observer)?;
    let runs: Vec<Steps> = runs.into_iter().map(|run| run.steps).collect();
    Ok((Calibrating::new(training, &runs).costs(training, sizes)?, ended))
}

/// The steps that costs are made of.
pub struct Calibrating<'a> {
    main: &'a Steps,
    /// The same schedule with micro-batches of other sizes, or cut into slices.
    sizes: Vec<&'a Steps>,
    /// The same schedule with copies to the host.
    copied: Option<&'a Steps>,
    /// Shared cores, and what devices that compute at the same time cost each other; `None` if no cores are shared.
    neighbours: Option<(u32, Neighbours)>,
}

impl<'a> Calibrating<'a> {
    /// Picks the runs that calibrate.
    ///
    /// # Panics
    /// None of them calibrates.
    pub fn new(training: &Training, runs: &'a [Steps]) -> Calibrating<'a> {
        let of_role = |role| runs.iter().find(|run| run.role == role);
        let main = of_role(Role::Calibrates).expect("something calibrates");
        let alone = of_role(Role::CalibratesAlone).filter(|alone| !alone.records.is_empty());
        let devices = main.graph.schedule().devices() as usize;
        let neighbours = || {
            let Some(alone) = alone else { return Neighbours::none(devices) };
            let pairs = main.records.iter().zip(&alone.records);
            let pair = |(among, by_itself)| [(&*main.graph, among), (&*alone.graph, by_itself)];
            Neighbours::of(devices, &pairs.map(pair).collect::<Vec<_>>())
        };
        Calibrating {
            main,
            sizes: runs
                .iter()
                .filter(|run| matches!(run.role, Role::CalibratesSize(_) | Role::CalibratesSlices))
                .collect(),
            copied: of_role(Role::CalibratesCopies),
            neighbours: training.shares_cores().map(|cores| (cores, neighbours())),
        }
    }

    /// The steps of the schedule that calibrates.
    pub fn main(&self) -> &'a Steps {
        self.main
    }

    /// Returns the cost file: typical costs over the whole measurement, and the machine's speed in each step. A B is timed as I
    /// then W, so any schedule yields every kind. `sizes` are the trainings with micro-batches of other sizes.
    pub fn costs(&self, training: &Training, sizes: &[Training]) -> Result<CostFile, Error> {
        let (graph, records, spec) = (&*self.main.graph, &self.main.records[..], training.spec());
        let (schedule, stages, outline) = (graph.schedule(), training.stages(graph)?, spec.outline());
        let steps: Vec<UncontendedStep<'_>> = records.iter().map(|record| self.alone(record)).collect();
        let size = training.micro_batch;
        let at_pace: Vec<(&UncontendedStep<'_>, f64)> = steps.iter().map(|step| (step, 1.0)).collect();
        let slices = training.slices(graph)?;
        let mut parts = part_costs(&at_pace, size, graph, &slices);
        for run in &self.sizes {
            let of_size = match run.role {
                Role::CalibratesSize(number) => sizes.get(number),
                _ => Some(training),
            };
            let Some(training) = of_size else { continue };
            let alone: Vec<UncontendedStep<'_>> = run.records.iter().map(|record| self.alone(record)).collect();
            let at_pace: Vec<(&UncontendedStep<'_>, f64)> =
                alone.iter().zip(&run.records).map(|(alone, record)| (alone, self.pace(record))).collect();
            let slices = training.slices(&run.graph)?;
            parts.extend(part_costs(&at_pace, training.micro_batch, &run.graph, &slices));
        }
        if slices.len() > 1 {
            parts.splice(0..0, whole_costs(&parts));
        }
        parts.extend(copy_costs(training, self.copied.unwrap_or(self.main), |record| self.pace(record))?);
        let contention = self.neighbours.as_ref();
        let mut costs = CostFile {
            schema_version: MEASURED_SCHEMA_VERSION,
            provenance: self.provenance(training),
            layers: outline.layers() as u32,
            mesh: training.mesh(),
            tied: outline.tied.is_some(),
            parts,
            op_overhead_ns: overheads(graph, &steps),
            gap_ns: gap(records),
            link: whole_link(link(graph, records, training.message_bytes() as u64), slices.len()),
            step: step_rates(graph, records, &spec, &stages, training.mesh()),
            keep: training.keep(),
            speeds: Vec::new(),
            stages: Vec::new(),
            contention: contention.map(|&(cores, ref found)| Contention { cores, per_mille: found.contention() }),
        };
        let table = costs.sliced_table(&schedule.placement, &stages, size, &slices).map_err(resolve::Error::from)?;
        costs.speeds = steps.iter().map(|step| speed(graph, step, &table)).collect();
        Ok(costs)
    }

    fn provenance(&self, training: &Training) -> BTreeMap<String, String> {
        let (schedule, mut provenance) = (self.main.graph.schedule(), training.provenance());
        let facts = [
            ("schedule", schedule.name.clone()),
            ("devices", schedule.devices().to_string()),
            ("microbatches", schedule.microbatches.to_string()),
            ("steps", self.main.records.len().to_string()),
        ];
        provenance.extend(facts.map(|(key, value)| (key.to_string(), value)));
        provenance
    }

    /// How slow the machine was at the time of `other`, by the calibrating steps just before and after it; 1 is typical.
    fn pace(&self, other: &StepRecord) -> f64 {
        let all: Vec<u64> = self.main.records.iter().map(StepRecord::busy_ns).collect();
        let around = self.main.around(other).map(|number| all.get(number).copied().unwrap_or_default());
        let pace = (around[0] + around[1]) as f64 / 2.0 / typical(&all).max(1) as f64;
        if pace > 0.0 { pace } else { 1.0 }
    }

    fn alone<'r>(&self, record: &'r StepRecord) -> UncontendedStep<'r> {
        let as_it_ran = || record.devices.iter().map(|device| vec![1.0; device.ops.len()]).collect();
        let shares = self.neighbours.as_ref().map_or_else(as_it_ran, |(_, neighbours)| neighbours.alone(record));
        UncontendedStep { record, shares }
    }
}

/// A step, with the share of each op's time that the op would have taken alone, by device.
struct UncontendedStep<'a> {
    record: &'a StepRecord,
    shares: Vec<Vec<f64>>,
}

impl UncontendedStep<'_> {
    fn devices(&self) -> impl Iterator<Item = (&DeviceRecord, &Vec<f64>)> {
        self.record.devices.iter().zip(&self.shares)
    }
}

/// What is timed alone: ops of a kind, for a part of the model, and for a slice with tokens from here to there if sequences are cut.
type Timed = (model::Part, Kind, Option<[u32; 2]>);

/// Returns the costs of the model's parts in `steps` of a graph, for micro-batches of this size or their `slices`. With
/// each step comes the slowness of the machine in it; 1 is typical.
fn part_costs(
    steps: &[(&UncontendedStep<'_>, f64)],
    MicroBatch { sequences, tokens }: MicroBatch,
    graph: &TaskGraph,
    slices: &[usize],
) -> Vec<PartCost> {
    let slices: Vec<[u32; 2]> = slice_bounds(slices).collect();
    let mut timings: BTreeMap<Timed, Vec<u64>> = BTreeMap::new();
    for (step, pace) in steps {
        for (device, shares) in step.devices() {
            for (number, timing) in device.timings.iter().filter(|(_, timing)| timing.kind.is_costed()) {
                let alone_ns = scaled(timing.duration_ns, shares[*number as usize] / pace);
                let op = graph.op(device.ops[*number as usize].index);
                let slice = op.slice().and_then(|slice| slices.get(slice as usize).copied());
                timings.entry((timing.part, timing.kind, slice)).or_default().push(alone_ns);
            }
        }
    }
    let cost = |(&(part, kind, slice), durations): (&Timed, &Vec<u64>)| PartCost {
        part: part.name().to_string(),
        kind: kind.letter().to_string(),
        sequences: sequences as u32,
        tokens: tokens as u32,
        slice,
        duration_ns: typical(durations),
        samples: durations.len() as u64,
    };
    timings.iter().map(cost).collect()
}

/// Returns the costs of whole micro-batches as the sums over their slices.
fn whole_costs(slices: &[PartCost]) -> Vec<PartCost> {
    let mut sums: Vec<PartCost> = Vec::new();
    for cost in slices.iter().filter(|cost| cost.slice.is_some()) {
        match sums.iter_mut().find(|sum| (&sum.part, &sum.kind) == (&cost.part, &cost.kind)) {
            Some(sum) => sum.duration_ns += cost.duration_ns,
            None => sums.push(PartCost { slice: None, ..cost.clone() }),
        }
    }
    sums
}

fn scaled(duration_ns: u64, share: f64) -> u64 {
    (duration_ns as f64 * share).round() as u64
}

/// The slowness of the machine in one step: how long each op took compared with its typical time. A wait counts to the op after
/// it.
fn speed(graph: &TaskGraph, step: &UncontendedStep<'_>, table: &CostTable) -> Slowdown {
    let stretch = |(op, &share): (&OpRecord, &f64)| {
        let typical = table.of(graph.op(op.index)).duration.max(1);
        (op.end, (u128::from(scaled(op.end - op.start, share)) * u128::from(TYPICAL) / u128::from(typical)) as u64)
    };
    let of_device = |(device, shares): (&DeviceRecord, &Vec<f64>)| {
        let mut stretches: Vec<(u64, u64)> = device.ops.iter().zip(shares).map(stretch).collect();
        stretches.dedup_by_key(|&mut (end, _)| end);
        stretches
    };
    Slowdown { devices: step.devices().map(of_device).collect() }
}

/// Typical time of ops beyond their parts, by kind; the time of a B is split between its I and its W.
fn overheads(graph: &TaskGraph, steps: &[UncontendedStep<'_>]) -> BTreeMap<String, u64> {
    let mut samples: BTreeMap<Kind, Vec<u64>> = BTreeMap::new();
    for (device, shares) in steps.iter().flat_map(UncontendedStep::devices) {
        let mut inside = vec![0; device.ops.len()];
        device.timings.iter().for_each(|(number, timing)| inside[*number as usize] += timing.duration_ns);
        for ((op, inside), &share) in device.ops.iter().zip(inside).zip(shares) {
            let rest = scaled((op.end - op.start).saturating_sub(inside), share);
            match graph.op(op.index).kind() {
                Kind::B => {
                    [Kind::I, Kind::W].into_iter().for_each(|kind| samples.entry(kind).or_default().push(rest / 2))
                }
                kind if kind.is_costed() => samples.entry(kind).or_default().push(rest),
                _ => {}
            }
        }
    }
    samples.into_iter().map(|(kind, rest)| (kind.letter().to_string(), typical(&rest))).collect()
}

/// Typical host time between the end of an op (or of its put) and the next op's turn, if no sum of gradients is between.
fn gap(records: &[StepRecord]) -> u64 {
    let mut gaps = Vec::new();
    for device in records.iter().flat_map(|record| &record.devices) {
        let free = |op: &OpRecord| if device.puts_beside_compute { op.end } else { op.put_end };
        let sums = |from: u64, to: u64| device.steps.iter().any(|&(_, start, _)| (from..to).contains(&start));
        let pairs = device.ops.windows(2).filter(|pair| !sums(pair[0].end, pair[1].turn));
        // Within an overlapped pair the first op's put follows the second op.
        gaps.extend(pairs.filter_map(|pair| pair[1].turn.checked_sub(free(&pair[0]))));
    }
    typical(&gaps)
}

/// What a put costs its sender, and how long a waiting receiver takes to notice it.
fn link(graph: &TaskGraph, records: &[StepRecord], bytes: u64) -> LinkCost {
    let (mut puts, mut latencies) = (Vec::new(), Vec::new());
    for record in records {
        let mut by_index: Vec<Option<&OpRecord>> = vec![None; graph.len()];
        record.devices.iter().flat_map(|device| &device.ops).for_each(|op| by_index[op.index] = Some(op));
        for op in by_index.iter().flatten() {
            puts.extend((op.put_end > op.put_start).then(|| op.put_end - op.put_start));
            // One that waits for a copy, too, does not say how long it waited for the link.
            let producer = graph.transfer(op.index).filter(|_| graph.waits(op.index).is_empty());
            let producer = producer.and_then(|up| by_index[up]);
            if let Some(producer) = producer.filter(|producer| producer.put_end > op.turn) {
                latencies.push(op.start.saturating_sub(producer.put_end));
            }
        }
    }
    let beside_compute = records.iter().flat_map(|record| &record.devices).any(|device| device.puts_beside_compute);
    let (put_ns, latency_ns) = (typical(&puts), typical(&latencies));
    LinkCost { put_ns, beside_compute, bytes, latency_ns, per_mille: Vec::new() }
}

/// Returns the link's cost for messages of whole micro-batches from that for `slices` slices.
fn whole_link(link: LinkCost, slices: usize) -> LinkCost {
    LinkCost { put_ns: link.put_ns * slices as u64, ..link }
}

/// Durations of the step ops of `device` for which `counts` holds: by node, one per step.
fn step_durations(
    epilogue: &StepEpilogue,
    records: &[StepRecord],
    device: usize,
    counts: impl Fn(&StepNode) -> bool,
) -> Vec<Vec<u64>> {
    let mut durations: Vec<Vec<u64>> = epilogue.of(device as u32).map(|_| Vec::new()).collect();
    for steps in records.iter().filter_map(|record| record.devices.get(device)).map(|device| &device.steps) {
        // Without clipping, no norm is computed.
        let has_norm = steps.iter().any(|(op, ..)| *op == StepOp::Norm);
        let nodes = epilogue.of(device as u32).enumerate().filter(|(_, node)| has_norm || node.op != StepOp::Norm);
        for ((number, _), (_, start, end)) in nodes.zip(steps) {
            durations[number].push(end - start);
        }
    }
    epilogue.of(device as u32).zip(durations).filter(|(node, _)| counts(node)).map(|(_, ns)| ns).collect()
}

fn step_rates(graph: &TaskGraph, records: &[StepRecord], spec: &ModelSpec, stages: &[Stage], mesh: Mesh) -> StepRates {
    let placement = &graph.schedule().placement;
    let epilogue = StepEpilogue::of_graph(graph, mesh, spec.outline().exchange(placement, stages), true);
    let devices = 0..graph.schedule().devices() as usize;
    let durations = |device, counts: &dyn Fn(&StepNode) -> bool| step_durations(&epilogue, records, device, counts);
    let total = |counts: &dyn Fn(&StepNode) -> bool| {
        devices.clone().flat_map(|device| durations(device, counts)).map(|ns| typical(&ns)).sum::<u64>() as f64
    };
    let parameters = |device: usize| {
        let held = placement.stages_of(device as u32);
        spec.device_elements(held.map(|stage| &stages[stage as usize]).collect::<Vec<_>>(), |elements| elements)
    };
    let all = devices.clone().map(parameters).sum::<u64>().max(1) as f64;
    // Proportional to the number of parameters.
    let rate = |op: StepOp| total(&|node| node.op == op) / all;
    let any = |op: StepOp| {
        let is_tied = |node: &StepNode| node.op == op && node.gradients == [GradientSync::Tied];
        typical(&devices.clone().flat_map(|device| durations(device, &is_tied)).flatten().collect::<Vec<_>>())
    };
    let elements = |name: &str| spec.parts.iter().find(|part| part.name == name).map_or(0, Part::elements);
    let (embedding, block) = (elements(EMBEDDING) as f64, elements(BLOCK) as f64);
    // A head without parameters of its own sends its side of the embedding's gradient.
    let of_part = |(part, count): (&str, usize)| count as f64 * if part == BLOCK { block } else { embedding };
    let held = devices.clone().flat_map(|device| placement.stages_of(device as u32));
    let exchanged = held.map(|stage| stages[stage as usize].counts().map(of_part).sum::<f64>()).sum::<f64>().max(1.0);
    let of_stages = |op: StepOp| {
        let is_stage = |node: &StepNode| node.op == op && matches!(node.gradients[..], [GradientSync::Stage(_), ..]);
        total(&is_stage) / exchanged
    };
    let group_rates = |size| {
        let [put, add, put_values, gather] =
            [StepOp::Put, StepOp::Reduce, StepOp::PutValues, StepOp::Gather].map(of_stages);
        GroupRates {
            size,
            put_embedding_ns: (put * embedding) as u64,
            put_block_ns: (put * block) as u64,
            add_embedding_ns: (add * embedding) as u64,
            add_block_ns: (add * block) as u64,
            put_values_embedding_ns: (put_values * embedding) as u64,
            put_values_block_ns: (put_values * block) as u64,
            gather_embedding_ns: (gather * embedding) as u64,
            gather_block_ns: (gather * block) as u64,
        }
    };
    StepRates {
        optimizer_embedding_ns: (rate(StepOp::Optimizer) * embedding) as u64,
        optimizer_block_ns: (rate(StepOp::Optimizer) * block) as u64,
        norm_block_ns: (rate(StepOp::Norm) * block) as u64,
        reduce_put_ns: any(StepOp::Put),
        reduce_add_ns: any(StepOp::Reduce),
        stages: Some(stage_group(placement, mesh.data)).filter(|&size| size > 1).map(group_rates),
    }
}

/// Returns the costs of copies of each part of the model, by the typical time per byte in measured steps; none if these have no
/// copies. `pace` is the slowness of the machine in a step; 1 is typical.
fn copy_costs(training: &Training, steps: &Steps, pace: impl Fn(&StepRecord) -> f64) -> Result<Vec<PartCost>, Error> {
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
        let of_part = |part: &Part| PartCost {
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
