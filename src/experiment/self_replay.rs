//! A step simulated again with its own durations.

use crate::cost::CostTable;
use crate::exec::StepRecord;
use crate::graph::TaskGraph;
use crate::sim::replay;
use crate::statistics::{median, relative_error};

/// Returns for each of `ops` ops how long its device summed gradients behind it in a step, waits for other replicas included: these
/// are not part of the graph. Empty if none did.
fn pauses(record: &StepRecord, ops: usize) -> Vec<u64> {
    let mut pauses = Vec::new();
    for device in &record.devices {
        for pair in device.ops.windows(2) {
            let is_between = |start: u64| (pair[0].end..pair[1].turn).contains(&start);
            let ends = device.steps.iter().filter(|(_, start, _)| is_between(*start)).map(|&(.., end)| end);
            if let Some(end) = ends.max() {
                pauses.resize(ops, 0);
                pauses[pair[0].index] = end.saturating_sub(pair[0].put_end);
            }
        }
    }
    pauses
}

/// Returns the makespan error when each step's own durations are fed back into the simulation, the median over steps.
pub(super) fn self_replay(graph: &TaskGraph, costs: &CostTable, records: &[StepRecord]) -> f64 {
    let replayed = |record: &StepRecord| {
        let mut own = vec![0; graph.len()];
        let ops = record.devices.iter().flat_map(|device| device.ops.iter().chain(&device.host_copies));
        ops.for_each(|op| own[op.index] = op.end - op.start);
        let replayed = match pauses(record, graph.len()) {
            pauses if pauses.is_empty() => replay(graph, costs, &own),
            pauses => {
                let mut costs = costs.clone();
                costs.pauses = pauses;
                replay(graph, &costs, &own)
            }
        };
        relative_error(replayed as f64, record.makespan_ns() as f64)
    };
    median(&records.iter().map(replayed).collect::<Vec<_>>())
}
