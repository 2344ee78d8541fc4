//! From measured steps to costs: one schedule's run yields the atoms that predict every other.

use super::{Error, Measured, Observer, Training, measure, provenance};
use crate::anatomy::{Anatomy, BLOCK, EMBEDDING, Part, Stage};
use crate::cost::{CostFile, CostTable, LinkCost, MEASURED_SCHEMA_VERSION, PartCost, Speed, StepRates, TYPICAL};
use crate::delivery::Delivery;
use crate::exec::{DeviceRecord, OpRecord, StepOp, StepRecord};
use crate::graph::TaskGraph;
use crate::model;
use crate::op::Kind;
use crate::statistics::typical;
use std::collections::BTreeMap;

/// Costs from some steps of `graph` alone, and what ended those early or spoils them.
pub fn profile(
    training: &Training,
    graph: TaskGraph,
    steps: (u32, u32),
    observer: Observer<'_>,
) -> Result<(CostFile, Option<Error>), Error> {
    let mut runs = vec![Measured::new(training, graph, Delivery::OneSided)?];
    let ended = measure(training, &mut runs, steps, observer)?;
    Ok((calibrate_on(training, &runs[0])?, ended))
}

/// The cost file of one measured run. A B is timed as I then W, so any schedule yields every kind.
pub fn calibrate_on(training: &Training, run: &Measured) -> Result<CostFile, Error> {
    let (graph, records, anatomy) = (&*run.graph, &run.records[..], training.anatomy());
    let (schedule, stages, outline) = (graph.schedule(), training.stages(graph)?, anatomy.outline());
    let mut provenance = provenance::of(training);
    provenance.insert("schedule".to_string(), schedule.name.clone());
    provenance.insert("devices".to_string(), schedule.devices().to_string());
    provenance.insert("microbatches".to_string(), schedule.microbatches.to_string());
    provenance.insert("steps".to_string(), records.len().to_string());
    let devices = || records.iter().flat_map(|record| record.devices.iter());
    let (sequences, tokens) = (training.micro_batch.sequences as u32, training.micro_batch.tokens as u32);
    let mut laps: BTreeMap<(model::Part, Kind), Vec<u64>> = BTreeMap::new();
    for (_, lap) in devices().flat_map(|device| &device.laps) {
        laps.entry((lap.part, lap.kind)).or_default().push(lap.duration_ns);
    }
    let parts = laps.iter().map(|(&(part, kind), durations)| PartCost {
        part: part.name().to_string(),
        kind: kind.letter().to_string(),
        sequences,
        tokens,
        duration_ns: typical(durations),
        samples: durations.len() as u64,
    });
    let mut costs = CostFile {
        schema_version: MEASURED_SCHEMA_VERSION,
        provenance,
        layers: outline.layers() as u32,
        tied: outline.tied.is_some(),
        parts: parts.collect(),
        op_overhead_ns: overheads(graph, records),
        gap_ns: gap(records),
        link: link(graph, records, anatomy.edge(training.micro_batch) as u64 * 4),
        step: step_rates(graph, records, &anatomy, &stages),
        keep: training.keep(),
        speeds: Vec::new(),
    };
    let table = costs.table(&schedule.placement, &stages, (sequences, tokens)).map_err(crate::resolve::Error::from)?;
    costs.speeds = records.iter().map(|record| speed(graph, record, &table)).collect();
    Ok(costs)
}

/// How long the ops of one step took against what they typically take. A wait counts to the op after it.
fn speed(graph: &TaskGraph, record: &StepRecord, table: &CostTable) -> Speed {
    let stretch = |op: &OpRecord| {
        let typical = table.of(graph.op(op.index)).duration.max(1);
        (op.end, ((op.end - op.start) as u128 * u128::from(TYPICAL) / u128::from(typical)) as u64)
    };
    let of_device = |device: &DeviceRecord| {
        let mut stretches: Vec<(u64, u64)> = device.ops.iter().map(stretch).collect();
        stretches.dedup_by_key(|&mut (end, _)| end);
        stretches
    };
    Speed { devices: record.devices.iter().map(of_device).collect() }
}

/// What ops take beyond their parts; a B's is shared by its I and its W.
fn overheads(graph: &TaskGraph, records: &[StepRecord]) -> BTreeMap<String, u64> {
    let mut samples: BTreeMap<Kind, Vec<u64>> = BTreeMap::new();
    for device in records.iter().flat_map(|record| &record.devices) {
        let mut inside = vec![0; device.ops.len()];
        device.laps.iter().for_each(|(number, lap)| inside[*number as usize] += lap.duration_ns);
        for (op, inside) in device.ops.iter().zip(inside) {
            let rest = (op.end - op.start).saturating_sub(inside);
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

fn link(graph: &TaskGraph, records: &[StepRecord], bytes: u64) -> LinkCost {
    let (mut puts, mut latencies) = (Vec::new(), Vec::new());
    for record in records {
        let mut by_index: Vec<Option<&OpRecord>> = vec![None; graph.len()];
        record.devices.iter().flat_map(|device| &device.ops).for_each(|op| by_index[op.index] = Some(op));
        for op in by_index.iter().flatten() {
            if op.put_end > op.put_start {
                puts.push(op.put_end - op.put_start);
            }
            let producer = graph.transfer(op.index).and_then(|up| by_index[up]);
            if let Some(producer) = producer.filter(|producer| producer.put_end > op.turn) {
                latencies.push(op.start.saturating_sub(producer.put_end));
            }
        }
    }
    let beside_compute = records.iter().flat_map(|record| &record.devices).any(|device| device.puts_beside_compute);
    LinkCost { put_ns: typical(&puts), beside_compute, bytes, latency_ns: typical(&latencies) }
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
