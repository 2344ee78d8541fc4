//! What does not fit into memory, and the smallest change of the layout that makes it fit: found by predicting them.

use crate::cost::analytic::Analytic;
use crate::forecast::Forecast;
use crate::graph::TaskGraph;
use crate::layout::{Layout, Recompute, Zero};
use crate::memory::Memory;
use crate::misfit::{MOST_CHANGES, Misfit, Remedy};

/// A layout, and what of it was changed.
#[derive(Clone)]
struct Candidate {
    layout: Layout,
    change: Vec<String>,
}

/// Layouts one change away.
fn neighbours(Candidate { layout, change }: &Candidate) -> Vec<Candidate> {
    let mut found = Vec::new();
    // an option that was changed is changed no second time
    let mut add = |option: &str, value: String, layout: Layout| {
        if !change.iter().any(|old| old.split(' ').next() == Some(option)) {
            let one = if value.is_empty() { option.to_string() } else { format!("{option} {value}") };
            found.push(Candidate { layout, change: [change.as_slice(), &[one]].concat() });
        }
    };
    for recompute in [Recompute::Selective, Recompute::Full] {
        if recompute > layout.recompute {
            add("--recompute", recompute.to_string(), Layout { recompute, ..layout.clone() });
        }
    }
    for zero in [Zero::Optimizer, Zero::Gradients, Zero::Weights] {
        if zero > layout.zero && layout.data * layout.context > 1 {
            add("--zero", zero.to_string(), Layout { zero, ..layout.clone() });
        }
    }
    if layout.tensor > 1 && !layout.sequence_parallel {
        add("--sequence-parallel", String::new(), Layout { sequence_parallel: true, ..layout.clone() });
    }
    let mut size = layout.micro_batch_size;
    while size.is_multiple_of(2) {
        size /= 2;
        let Some(micro) = layout.micro.checked_mul(layout.micro_batch_size / size) else { break };
        add("--micro-batch-size", size.to_string(), Layout { micro_batch_size: size, micro, ..layout.clone() });
    }
    // of the same GPUs where pipelines can be given up: each of those left then has more micro-batches
    let wider = |data: u32, times: u32| match data.is_multiple_of(times) {
        true => Some((data / times, layout.micro.checked_mul(times)?)),
        false => Some((data, layout.micro)),
    };
    for times in [2, 4, 8] {
        let Some((data, micro)) = wider(layout.data, times) else { continue };
        let given_up = if data == layout.data { String::new() } else { format!(" --dp {data}") };
        if let Some(tensor) = layout.tensor.checked_mul(times) {
            add("--tp", format!("{tensor}{given_up}"), Layout { tensor, data, micro, ..layout.clone() });
        }
        if let Some(devices) = layout.devices.checked_mul(times) {
            let layout = Layout { devices, data, micro, layers: None, ..layout.clone() };
            add("--stages", format!("{devices}{given_up}"), layout);
        }
    }
    found
}

/// Whether `graph` fits under these costs; none where it does.
pub fn misfit(analytic: &Analytic, graph: &TaskGraph, memory: &Memory) -> Option<Misfit> {
    if memory.fits {
        return None;
    }
    let fullest = memory.fullest();
    Some(Misfit {
        schedule: graph.schedule().name.clone(),
        device: fullest.device,
        bytes: fullest.total,
        capacity_bytes: memory.capacity_bytes,
        remedy: remedy(analytic, graph),
        fullest,
    })
}

fn remedy(analytic: &Analytic, graph: &TaskGraph) -> Option<Remedy> {
    let mut level = vec![Candidate { layout: analytic.layout.clone(), change: Vec::new() }];
    for _ in 0..MOST_CHANGES {
        level = level.iter().flat_map(neighbours).collect();
        level.retain(|candidate| candidate.change.is_sorted());
        let fitting = level.iter().filter_map(|candidate| fitting(analytic, candidate, graph));
        let costs = |remedy: &Remedy| remedy.iteration_s * remedy.gpus as f64;
        let best = fitting.min_by(|one, other| costs(one).total_cmp(&costs(other)));
        if best.is_some() {
            return best;
        }
    }
    None
}

/// What a layout takes, if it can be and fits.
fn fitting(analytic: &Analytic, candidate: &Candidate, graph: &TaskGraph) -> Option<Remedy> {
    let Candidate { layout, change } = candidate;
    let of = |layout: &Layout| Analytic::new(analytic.model, analytic.machine.clone(), layout.clone()).ok();
    let one = of(layout)?;
    let same_order = (layout.devices, layout.micro) == (analytic.layout.devices, analytic.layout.micro);
    if same_order {
        // an order may be searched for: only where there is room for it
        let stages = one.stages(graph.schedule().placement.stages()).ok()?;
        let bytes = one.machine.hardware.memory_bytes();
        if !one.ledger().memory(bytes, &stages, graph.schedule()).fits {
            return None;
        }
    }
    let Forecast { memory, iteration_s, gpus, .. } = one.forecast(&graph.schedule().name).ok()?;
    memory.fits.then(|| Remedy { change: change.join(" "), bytes: memory.fullest().total, iteration_s, gpus })
}
