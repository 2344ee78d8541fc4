//! Export of a schedule as JSON, and of its task graph for Graphviz.

use crate::graph::TaskGraph;
use crate::op::Kind;
use crate::schedule::{Schedule, unit_name, units};
use serde::Serialize;

/// Version of the JSON of [`json`].
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Json<'a> {
    schema_version: u32,
    schedule: &'a str,
    devices: u32,
    chunks: u32,
    microbatches: u32,
    placement: Place<'a>,
    /// The costs that determined the order, if any did.
    #[serde(skip_serializing_if = "Option::is_none")]
    made_with: Option<&'a str>,
    /// By device. An overlapped pair is one entry, `(0F7;3B2)OVERLAP_F_B`.
    programs: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct Place<'a> {
    name: &'a str,
    /// By direction, the device of each stage.
    device_of_stage: Vec<Vec<u32>>,
}

/// Returns placement and programs as one JSON object. `made_with` names the costs that determined the order.
pub fn json(schedule: &Schedule, made_with: Option<&str>) -> String {
    let placement = &schedule.placement;
    let devices_of = |direction| (0..placement.stages()).map(|s| placement.device_of_stage(s, direction)).collect();
    let json = Json {
        schema_version: SCHEMA_VERSION,
        schedule: &schedule.name,
        devices: schedule.devices(),
        chunks: placement.chunks(),
        microbatches: schedule.microbatches,
        placement: Place {
            name: placement.name(),
            device_of_stage: (0..placement.directions()).map(devices_of).collect(),
        },
        made_with,
        programs: (0..schedule.devices()).map(|d| units(schedule.program(d)).map(unit_name).collect()).collect(),
    };
    serde_json::to_string_pretty(&json).expect("numbers and texts are JSON") + "\n"
}

/// Returns the graph in the DOT language of Graphviz: one row per device, its order as grey arrows, transfers between devices as
/// blue arrows, data that stays on its device dashed. A comment names the costs that determined the order (`made_with`).
pub fn dot(graph: &TaskGraph, made_with: Option<&str>) -> String {
    let schedule = graph.schedule();
    let mut text = made_with.map_or_else(String::new, |costs| format!("// order made with {costs}\n"));
    text += "digraph schedule {\n  rankdir=LR;\n  node [shape=box, style=filled, fontname=\"sans-serif\"];\n";
    for device in 0..schedule.devices() {
        text += &format!("  subgraph cluster_{device} {{\n    label=\"device {device}\";\n");
        for index in schedule.range(device) {
            let op = graph.op(index);
            text += &format!("    n{index} [label=\"{op}\", fillcolor=\"{}\"];\n", color(op.kind()));
        }
        text += "  }\n";
    }
    for index in 0..graph.len() {
        if let Some(next) = graph.after(index) {
            let style = if graph.op(index).opens_pair() { ", penwidth=3" } else { "" };
            text += &format!("  n{index} -> n{next} [color=\"gray60\"{style}];\n");
        }
        if let Some(user) = graph.consumer(index) {
            let style = if graph.device_of(user) == graph.device_of(index) { "dashed" } else { "solid" };
            text += &format!("  n{index} -> n{user} [color=\"blue\", style={style}, constraint=false];\n");
        }
    }
    text + "}\n"
}

fn color(kind: Kind) -> &'static str {
    match kind {
        Kind::F => "lightskyblue",
        Kind::I => "lightsalmon",
        Kind::W => "palegreen",
        Kind::B => "plum",
        _ => "lightgray",
    }
}
