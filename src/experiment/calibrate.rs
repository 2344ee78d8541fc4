//! From measured steps to costs: one schedule's run yields the atoms that predict every other.

use super::contention::Neighbours;
use super::measure::CALIBRATING;
use super::{Backend, Error, Extent, Measured, Observer, Role, Steps, Training, measure, provenance};
use crate::anatomy::{Anatomy, BLOCK, EMBEDDING, MicroBatch, Part, Stage};
use crate::cost::{
    Contention, CostFile, CostTable, LinkCost, MEASURED_SCHEMA_VERSION, PartCost, Speed, StepRates, TYPICAL,
};
use crate::delivery::Delivery;
use crate::ending::StepOp;
use crate::exec::{DeviceRecord, OpRecord, StepRecord};
use crate::graph::TaskGraph;
use crate::model;
use crate::op::Kind;
use crate::resolve::{self, Selection, unknown_costs};
use crate::statistics::typical;
use std::collections::BTreeMap;

/// Costs from some steps of `name` alone, for the micro-batches of `training` and those of each of `sizes`, and what ended those early
/// or spoils them.
pub fn profile(
    training: &Training,
    sizes: &[Training],
    (name, selection): (&str, &Selection),
    extent: Extent,
    observer: Observer<'_>,
) -> Result<(CostFile, Option<Error>), Error> {
    let mut graphs = calibrating_graphs(training, name, selection)?;
    let (asked_for, role) = graphs.remove(0);
    graphs.insert(0, (asked_for.renamed(|name| name.trim_end_matches(CALIBRATING).to_string()), role));
    let session = |(graph, role)| {
        let of_role = if let Role::CalibratesSize(number) = role { &sizes[number] } else { training };
        Measured::new(of_role, graph, Delivery::OneSided, role)
    };
    let sized = sized_graphs(sizes, name, selection)?;
    let mut runs = graphs.into_iter().chain(sized).map(session).collect::<Result<Vec<_>, Error>>()?;
    let ended = measure(&mut runs, extent, observer)?;
    let runs: Vec<Steps> = runs.into_iter().map(|run| run.steps).collect();
    Ok((Calibrating::new(training, &runs).costs(training, sizes)?, ended))
}

/// The schedule to calibrate on with the micro-batches of each of `sizes`: no more of them than fill the pipeline twice.
pub(super) fn sized_graphs(
    sizes: &[Training],
    name: &str,
    selection: &Selection,
) -> Result<Vec<(TaskGraph, Role)>, Error> {
    let microbatches = selection.microbatches.min(2 * selection.devices);
    let of_size = |(number, training): (usize, &Training)| {
        let selection = Selection { microbatches, ..selection.clone() };
        let graph = selection.graph::<resolve::Error>(name, &unknown_costs)?.graph;
        training.stages(&graph).map_err(|error| error.of(&format!("calibrating on {name}")))?;
        let sequences = training.micro_batch.sequences;
        Ok((graph.renamed(|name| format!("{name}, batch={sequences}{CALIBRATING}")), Role::CalibratesSize(number)))
    };
    sizes.iter().enumerate().map(of_size).collect()
}

/// The schedule to calibrate on and its probe: the same with one micro-batch, so that each op runs alone; none where the schedule
/// has no such step, or one device has no neighbours. And a schedule under which all devices send at the same time.
pub(super) fn calibrating_graphs(
    training: &Training,
    name: &str,
    selection: &Selection,
) -> Result<Vec<(TaskGraph, Role)>, Error> {
    let of = |microbatches| {
        let selection = Selection { microbatches, ..selection.clone() };
        let graph = selection.graph::<resolve::Error>(name, &unknown_costs)?.graph;
        training.stages(&graph).map_err(|error| error.of(&format!("calibrating on {name}")))?;
        Ok::<_, Error>(graph)
    };
    let graph = of(selection.microbatches)?;
    let has_neighbours = training.shares_cores().is_some() && graph.schedule().devices() > 1;
    let probe = has_neighbours.then(|| of(1).ok()).flatten();
    let calibrating = graph.renamed(|name| format!("{name}{CALIBRATING}"));
    let mut graphs = vec![(calibrating, Role::Calibrates)];
    graphs.extend(probe.map(|probe| (probe.renamed(|name| format!("{name}, alone{CALIBRATING}")), Role::Calibrates)));
    if has_neighbours && matches!(training.backend, Backend::Cpu) {
        let all_send = Selection::new(selection.devices, PUTS * selection.devices);
        let graph = all_send.graph::<resolve::Error>("1f1b", &unknown_costs)?.graph;
        graphs.push((graph.renamed(|name| format!("{name}, links{CALIBRATING}")), Role::CalibratesLinks));
    }
    Ok(graphs)
}

/// How often each device puts either way while all devices do, in a step that is measured for its links.
const PUTS: u32 = 4;

/// Steps that costs are made of, through the whole of a measurement.
pub struct Calibrating<'a> {
    main: &'a Steps,
    probe: Option<&'a Steps>,
    /// The same schedule with micro-batches of other sizes.
    sizes: Vec<&'a Steps>,
    /// What neighbours cost, over the whole measurement; none where this process does not know who computes beside whom.
    neighbours: Option<(u32, Neighbours)>,
    /// What puts cost each other, likewise.
    puts: Option<Neighbours>,
}

impl<'a> Calibrating<'a> {
    /// Those of `runs` that calibrate, the schedule and then its probe.
    ///
    /// # Panics
    /// None of them calibrates.
    pub fn new(training: &Training, runs: &'a [Steps]) -> Calibrating<'a> {
        let mut calibrating = runs.iter().filter(|run| run.role == Role::Calibrates);
        let sizes = runs.iter().filter(|run| matches!(run.role, Role::CalibratesSize(_))).collect();
        let main = calibrating.next().expect("something calibrates");
        let probe = calibrating.next().filter(|probe| !probe.records.is_empty());
        let links = runs.iter().find(|run| run.role == Role::CalibratesLinks);
        let among = Calibrating { main, probe, sizes, neighbours: None, puts: None };
        let devices = main.graph.schedule().devices() as usize;
        let Some(cores) = training.shares_cores() else { return among };
        let neighbours = Some((cores, among.neighbours(devices)));
        Calibrating { neighbours, puts: Neighbours::of_puts(devices, &links.unwrap_or(main).records), ..among }
    }

    fn neighbours(&self, devices: usize) -> Neighbours {
        let Some(probe) = self.probe else { return Neighbours::none(devices) };
        let pairs = self.main.records.iter().zip(&probe.records);
        let pair =
            |(among, alone): (&'a StepRecord, &'a StepRecord)| [(&*self.main.graph, among), (&*probe.graph, alone)];
        Neighbours::of(devices, &pairs.map(pair).collect::<Vec<_>>())
    }

    /// The same where neighbours are taken to cost nothing.
    pub fn without_neighbours(&self) -> Calibrating<'a> {
        Calibrating { neighbours: None, puts: None, sizes: self.sizes.clone(), ..*self }
    }

    /// The schedule that calibrates.
    pub fn main(&self) -> &'a Steps {
        self.main
    }

    /// The cost file: typical costs over the whole measurement, and how the machine went in each step. A B is timed as I then W, so
    /// any schedule yields every kind. `sizes` are the trainings with micro-batches of other sizes.
    pub fn costs(&self, training: &Training, sizes: &[Training]) -> Result<CostFile, Error> {
        let (graph, records, anatomy) = (&*self.main.graph, &self.main.records[..], training.anatomy());
        let (schedule, stages, outline) = (graph.schedule(), training.stages(graph)?, anatomy.outline());
        let steps: Vec<Alone<'_>> = records.iter().map(|record| self.alone(record)).collect();
        let size = (training.micro_batch.sequences as u32, training.micro_batch.tokens as u32);
        let at_pace: Vec<(&Alone<'_>, f64)> = steps.iter().map(|step| (step, 1.0)).collect();
        let mut parts = part_costs(&at_pace, size);
        for (steps, training) in self.sizes.iter().filter_map(|run| Some((run, sizes.get(run.role.number()?)?))) {
            let alone: Vec<Alone<'_>> = steps.records.iter().map(|record| self.alone(record)).collect();
            let at_pace: Vec<(&Alone<'_>, f64)> =
                alone.iter().zip(&steps.records).map(|(alone, record)| (alone, self.pace(record))).collect();
            let MicroBatch { sequences, tokens } = training.micro_batch;
            parts.extend(part_costs(&at_pace, (sequences as u32, tokens as u32)));
        }
        let mut costs = CostFile {
            schema_version: MEASURED_SCHEMA_VERSION,
            provenance: self.provenance(training),
            layers: outline.layers() as u32,
            tied: outline.tied.is_some(),
            parts,
            op_overhead_ns: overheads(graph, &steps),
            gap_ns: gap(records),
            link: link(graph, records, self.puts.as_ref(), training.message_bytes() as u64),
            step: step_rates(graph, records, &anatomy, &stages),
            keep: training.keep(),
            speeds: Vec::new(),
            contention: self.contention(),
        };
        let table = costs.table(&schedule.placement, &stages, size).map_err(resolve::Error::from)?;
        costs.speeds = steps.iter().map(|step| speed(graph, step, &table)).collect();
        Ok(costs)
    }

    fn provenance(&self, training: &Training) -> BTreeMap<String, String> {
        let (schedule, mut provenance) = (self.main.graph.schedule(), provenance::of(training));
        let name = schedule.name.trim_end_matches(CALIBRATING).to_string();
        provenance.insert("schedule".to_string(), name);
        provenance.insert("devices".to_string(), schedule.devices().to_string());
        provenance.insert("microbatches".to_string(), schedule.microbatches.to_string());
        provenance.insert("steps".to_string(), self.main.records.len().to_string());
        provenance
    }

    /// How slow the machine was at `other`'s time, by the calibrating steps just before and after it, against typical.
    fn pace(&self, other: &StepRecord) -> f64 {
        let all: Vec<u64> = self.main.records.iter().map(StepRecord::busy_ns).collect();
        let beside = self.main.beside(other).map(|number| all.get(number).copied().unwrap_or_default());
        let pace = (beside[0] + beside[1]) as f64 / 2.0 / typical(&all).max(1) as f64;
        if pace > 0.0 { pace } else { 1.0 }
    }

    fn contention(&self) -> Option<Contention> {
        let (cores, neighbours) = self.neighbours.as_ref()?;
        Some(Contention { cores: *cores, per_mille: neighbours.contention() })
    }

    fn alone<'r>(&self, record: &'r StepRecord) -> Alone<'r> {
        let as_it_ran = || record.devices.iter().map(|device| vec![1.0; device.ops.len()]).collect();
        let shares = self.neighbours.as_ref().map_or_else(as_it_ran, |(_, neighbours)| neighbours.alone(record));
        Alone { record, shares }
    }
}

/// A step, with the share of each op's time, by device, that it would have taken alone.
struct Alone<'a> {
    record: &'a StepRecord,
    shares: Vec<Vec<f64>>,
}

impl Alone<'_> {
    fn devices(&self) -> impl Iterator<Item = (&DeviceRecord, &Vec<f64>)> {
        self.record.devices.iter().zip(&self.shares)
    }
}

/// The atoms that were timed in `steps`, of micro-batches of `size`, each step with how slow the machine was in it.
fn part_costs(steps: &[(&Alone<'_>, f64)], (sequences, tokens): (u32, u32)) -> Vec<PartCost> {
    let mut laps: BTreeMap<(model::Part, Kind), Vec<u64>> = BTreeMap::new();
    for (step, pace) in steps {
        for (device, shares) in step.devices() {
            for (number, lap) in &device.laps {
                let alone_ns = scaled(lap.duration_ns, shares[*number as usize] / pace);
                laps.entry((lap.part, lap.kind)).or_default().push(alone_ns);
            }
        }
    }
    let cost = |(&(part, kind), durations): (&(model::Part, Kind), &Vec<u64>)| PartCost {
        part: part.name().to_string(),
        kind: kind.letter().to_string(),
        sequences,
        tokens,
        duration_ns: typical(durations),
        samples: durations.len() as u64,
    };
    laps.iter().map(cost).collect()
}

fn scaled(duration_ns: u64, share: f64) -> u64 {
    (duration_ns as f64 * share).round() as u64
}

/// How long the ops of one step took against what they typically take. A wait counts to the op after it.
fn speed(graph: &TaskGraph, step: &Alone<'_>, table: &CostTable) -> Speed {
    let stretch = |(op, &share): (&OpRecord, &f64)| {
        let typical = table.of(graph.op(op.index)).duration.max(1);
        (op.end, (u128::from(scaled(op.end - op.start, share)) * u128::from(TYPICAL) / u128::from(typical)) as u64)
    };
    let of_device = |(device, shares): (&DeviceRecord, &Vec<f64>)| {
        let mut stretches: Vec<(u64, u64)> = device.ops.iter().zip(shares).map(stretch).collect();
        stretches.dedup_by_key(|&mut (end, _)| end);
        stretches
    };
    Speed { devices: step.devices().map(of_device).collect() }
}

/// What ops take beyond their parts; a B's is shared by its I and its W.
fn overheads(graph: &TaskGraph, steps: &[Alone<'_>]) -> BTreeMap<String, u64> {
    let mut samples: BTreeMap<Kind, Vec<u64>> = BTreeMap::new();
    for (device, shares) in steps.iter().flat_map(Alone::devices) {
        let mut inside = vec![0; device.ops.len()];
        device.laps.iter().for_each(|(number, lap)| inside[*number as usize] += lap.duration_ns);
        for ((op, inside), &share) in device.ops.iter().zip(inside).zip(shares) {
            let rest = scaled((op.end - op.start).saturating_sub(inside), share);
            match graph.op(op.index).kind() {
                Kind::B => {
                    [Kind::I, Kind::W].into_iter().for_each(|kind| samples.entry(kind).or_default().push(rest / 2))
                }
                kind => samples.entry(kind).or_default().push(rest),
            }
        }
    }
    samples.into_iter().map(|(kind, rest)| (kind.letter().to_string(), typical(&rest))).collect()
}

/// Host time between one op's last act and the next op's turn.
fn gap(records: &[StepRecord]) -> u64 {
    let mut gaps = Vec::new();
    for device in records.iter().flat_map(|record| &record.devices) {
        let free = |op: &OpRecord| if device.puts_beside_compute { op.end } else { op.put_end };
        // within an overlapped pair nothing is put between the two
        gaps.extend(device.ops.windows(2).filter_map(|pair| pair[1].turn.checked_sub(free(&pair[0]))));
    }
    typical(&gaps)
}

fn link(graph: &TaskGraph, records: &[StepRecord], shared: Option<&Neighbours>, bytes: u64) -> LinkCost {
    let (mut puts, mut latencies) = (Vec::new(), Vec::new());
    let none = Neighbours::none(graph.schedule().devices() as usize);
    for record in records {
        puts.extend(shared.unwrap_or(&none).puts_alone(record));
        let mut by_index: Vec<Option<&OpRecord>> = vec![None; graph.len()];
        record.devices.iter().flat_map(|device| &device.ops).for_each(|op| by_index[op.index] = Some(op));
        for op in by_index.iter().flatten() {
            let producer = graph.transfer(op.index).and_then(|up| by_index[up]);
            if let Some(producer) = producer.filter(|producer| producer.put_end > op.turn) {
                latencies.push(op.start.saturating_sub(producer.put_end));
            }
        }
    }
    let beside_compute = records.iter().flat_map(|record| &record.devices).any(|device| device.puts_beside_compute);
    let per_mille = shared.map(Neighbours::contention).unwrap_or_default();
    LinkCost { put_ns: typical(&puts), beside_compute, bytes, latency_ns: typical(&latencies), per_mille }
}

fn step_rates(graph: &TaskGraph, records: &[StepRecord], anatomy: &Anatomy, stages: &[Stage]) -> StepRates {
    let durations = |name: StepOp, device: usize| -> Vec<u64> {
        let steps = records.iter().filter_map(|record| record.devices.get(device)).flat_map(|device| &device.steps);
        steps.filter(|step| step.0 == name).map(|(_, start, end)| end - start).collect()
    };
    let devices = 0..graph.schedule().devices() as usize;
    let parameters = |device: usize| {
        let held = graph.schedule().placement.stages_of(device as u32);
        anatomy.device_elements(held.map(|stage| &stages[stage as usize]).collect::<Vec<_>>(), |elements| elements)
    };
    let all = devices.clone().map(parameters).sum::<usize>().max(1);
    // Time goes with the number of parameters.
    let rate = |name: StepOp| devices.clone().map(|d| typical(&durations(name, d))).sum::<u64>() as f64 / all as f64;
    let any = |name: StepOp| typical(&devices.clone().flat_map(|d| durations(name, d)).collect::<Vec<_>>());
    let elements = |name: &str| anatomy.parts.iter().find(|part| part.name == name).map_or(0, Part::elements);
    let (embedding, block) = (elements(EMBEDDING), elements(BLOCK));
    StepRates {
        optimizer_embedding_ns: (rate(StepOp::Optimizer) * embedding as f64) as u64,
        optimizer_block_ns: (rate(StepOp::Optimizer) * block as f64) as u64,
        norm_block_ns: (rate(StepOp::Norm) * block as f64) as u64,
        reduce_put_ns: any(StepOp::Put),
        reduce_add_ns: any(StepOp::Reduce),
    }
}
