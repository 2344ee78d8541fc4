//! Activations of each device over time, and whether a cap is kept.

use super::waits::OpTimes;
use pipesim_cost::CostTable;
use pipesim_schedule::activation::{self, Holding};
use pipesim_schedule::graph::TaskGraph;
use serde::Serialize;

/// Activation units that a device holds from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryLevel {
    /// In the time unit of the costs.
    pub time: f64,
    /// Activation units.
    pub held: f64,
}

/// Activations of one device over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryCurve {
    /// The device.
    pub device: u32,
    /// Levels by time; 0 before the first.
    pub levels: Vec<MemoryLevel>,
    /// The largest level.
    pub peak: f64,
    /// The op that first reaches it; `None` if nothing is held.
    pub peak_op: Option<String>,
    /// When that op starts, in time units.
    pub peak_time: f64,
    /// Maximum that is allowed, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<f64>,
    /// Whether the peak is within the cap; true without a cap.
    pub within_cap: bool,
}

/// Returns the curve of every device. F allocates a chunk's activation at its start; B frees it at its end, or I and W each free a part.
/// The peaks equal [`pipesim_schedule::schedule::Schedule::peak_activations`], except with copies, which free activations when they end.
pub fn memory(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, cap: Option<f64>) -> Vec<MemoryCurve> {
    (0..graph.schedule().devices()).map(|device| curve(graph, costs, times, device, cap)).collect()
}

fn curve(graph: &TaskGraph, costs: &CostTable, times: &OpTimes, device: u32, cap: Option<f64>) -> MemoryCurve {
    let schedule = graph.schedule();
    let chunks = schedule.whole();
    let unit = |ticks: u64| costs.in_units(ticks);
    let holding = Holding::new(costs.keep, schedule.slices());
    let mut levels: Vec<MemoryLevel> = Vec::new();
    let (mut held, mut peak, mut peak_index) = (0, 0, None);
    let changes = schedule.range(device).flat_map(|index| {
        let (start, end) = schedule.change(&holding, index);
        [(times.start[index], start, index), (times.end[index], end, index)]
    });
    let mut changes: Vec<(u64, i128, usize)> = changes.filter(|&(_, change, _)| change != 0).collect();
    if graph.schedule().has_copies() {
        // Copies run next to compute. An op that ends makes room for one that starts at the same time.
        changes.sort_unstable();
    }
    for (time, change, index) in changes {
        held += change;
        let level = activation::units(held, chunks);
        let time = unit(time);
        match levels.last_mut() {
            Some(last) if last.time == time => last.held = level,
            Some(last) if last.held == level => {}
            _ => levels.push(MemoryLevel { time, held: level }),
        }
        if held > peak {
            (peak, peak_index) = (held, Some(index));
        }
    }
    let peak_time = peak_index.map_or(0.0, |index| unit(times.start[index]));
    let peak_op = peak_index.map(|index| graph.op(index).to_string());
    let within_cap = cap.is_none_or(|cap| peak <= activation::cap(cap, chunks));
    let peak = activation::units(peak, chunks);
    MemoryCurve { device, levels, peak, peak_op, peak_time, cap, within_cap }
}
