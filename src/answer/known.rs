//! Which built-in schedule has the order of a run.

use crate::resolve::{Costs, Selection};
use pipesim_schedule::op::Op;
use pipesim_schedule::timeline::Timeline;
use std::collections::BTreeMap;

/// Schedules that PyTorch and Megatron-LM run, and others with a fixed order.
const CANDIDATES: [&str; 16] = [
    "gpipe",
    "1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "interleaved-zb",
    "interleaved-overlap",
    "kimi-k2",
    "zb-v",
    "dualpipe-v",
    "eager-1f1b",
    "1f1b-v",
    "group-interleaved",
    "hanayo",
    "zb-h1",
    "zb-h2",
    "naive",
];

/// Largest step that is compared, in ops.
const MOST_OPS: usize = 200_000;

/// Returns the name of the built-in schedule that runs each recorded device's ops in the order of `timeline`.
pub fn built_in_of(timeline: &Timeline) -> Option<String> {
    let mut orders: BTreeMap<u32, Vec<Op>> = BTreeMap::new();
    for (op, span) in timeline.ops() {
        orders.entry(span.device).or_default().push(op);
    }
    orders.retain(|device, _| !timeline.incomplete_devices.contains(device));
    let all = u64::from(timeline.devices) * u64::from(timeline.chunks) * u64::from(timeline.microbatches);
    if orders.is_empty() || all > MOST_OPS as u64 || orders.values().map(Vec::len).sum::<usize>() > MOST_OPS {
        return None;
    }
    let is_equal = |name: &&&str| {
        let mut selection = Selection::new(timeline.devices, timeline.microbatches);
        (selection.chunks, selection.lenient) = (Some(timeline.chunks), true);
        let Ok(resolved) = selection.resolve(name, &Costs::default()) else { return false };
        let schedule = resolved.graph.schedule();
        schedule.placement.directions() == 1
            && schedule.placement.chunks() == timeline.chunks
            && orders
                .iter()
                .all(|(&device, order)| schedule.program(device).iter().map(|op| op.alone()).eq(order.iter().copied()))
    };
    CANDIDATES.iter().find(is_equal).map(|name| (*name).to_string())
}
