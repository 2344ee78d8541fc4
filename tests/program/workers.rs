//! On a mesh, timelines, traces and pages have the spans of every worker; pictures and figures show one worker per device.

use crate::support::*;
use pipesim::Timeline;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Runs two stages of two replicas of two tensor ranks and returns the folder of its report.
fn report(at: &Path, more: &str) -> std::path::PathBuf {
    let arguments = "run --stages 2 --micro 2 --tp 2 --dp 2 --blocks 4 --heads 2 --channels 32 --seq 16 -s 1f1b --steps 2 --warmup 0 \
                     --device cpu -q";
    let report = at.join("report");
    let mut command = Command::new(PROGRAM);
    command.args(arguments.split_whitespace()).args(more.split_whitespace()).arg("-o").arg(report.join(""));
    let (code, _, told) = finish(&mut command);
    assert_eq!(code, Some(0), "{told}");
    report
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The ops of each device, in the order of their starts.
fn programs(timeline: &Timeline) -> BTreeMap<u32, Vec<String>> {
    let mut programs: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    timeline.ops().for_each(|(op, span)| programs.entry(span.device).or_default().push(op.to_string()));
    programs
}

#[test]
fn a_timeline_has_all_workers_once_and_each_runs_its_devices_program() {
    let folder = tempfile::tempdir().unwrap();
    for more in ["", "-n 2"] {
        let report = report(folder.path(), more);
        let text = read(&report.join("1f1b-measured.json"));
        let timeline = Timeline::from_json(&text).unwrap();
        let workers = timeline.workers.as_ref().unwrap();
        let others = workers.others.iter().map(|other| (other.data, other.tensor));
        let found: BTreeSet<(u32, u32)> = others.chain([(workers.data, workers.tensor)]).collect();
        assert_eq!(found, BTreeSet::from([(0, 0), (0, 1), (1, 0), (1, 1)]));
        let last = |timeline: &Timeline| timeline.ops().map(|(_, span)| span.end_ns).max().unwrap();
        for (name, other) in timeline.other_workers() {
            assert_eq!(programs(&other), programs(&timeline), "{name}");
            assert!(last(&other) <= last(&timeline), "{name} is slower than the one that is shown");
            assert_ne!(other.spans, timeline.spans, "{name}");
        }
        let predicted = Timeline::from_json(&read(&report.join("1f1b-predicted.json"))).unwrap();
        assert!(predicted.workers.is_none());
        let figures: Value = serde_json::from_str(&read(&report.join("report.json"))).unwrap();
        let notes = figures["schedules"][0]["notes"].to_string();
        assert!(notes.contains(&format!("its worker of {}", workers.shown())), "{notes}");
    }
}

#[test]
fn a_trace_has_a_process_per_worker_with_its_coordinate() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "");
    let timeline = Timeline::from_json(&read(&report.join("1f1b-measured.json"))).unwrap();
    let packed = std::fs::File::open(report.join("trace.json.gz")).unwrap();
    let trace: Value = serde_json::from_reader(flate2::read::GzDecoder::new(packed)).unwrap();
    let events: Vec<Value> = trace["traceEvents"].as_array().cloned().unwrap_or_default();
    let of = |name: &str| events.iter().filter(|event| event["name"] == name).cloned().collect::<Vec<Value>>();
    let labels: BTreeSet<String> =
        of("process_labels").iter().map(|event| event["args"]["labels"].to_string()).collect();
    let all = (0..2).flat_map(|data| (0..2).flat_map(move |device| (0..2).map(move |tensor| (data, device, tensor))));
    let expected = all.map(|(data, device, tensor)| format!("\"data {data}, pipeline {device}, tensor {tensor}\""));
    assert_eq!(labels, expected.collect());
    // 2 predicted devices and 8 workers, each with its own process
    let processes: BTreeSet<u64> = of("process_name").iter().map(|event| event["pid"].as_u64().unwrap()).collect();
    assert_eq!((of("process_name").len(), processes.len()), (10, 10));
    let ops = |process: u64| {
        let is_op = |event: &&Value| {
            event["ph"] == "X"
                && event["pid"] == process
                && event["args"]["kind"].is_string()
                && event["cat"] == "compute"
        };
        events.iter().filter(is_op).count()
    };
    let each = timeline.ops().filter(|(_, span)| span.device == 0).count();
    assert!(processes.into_iter().all(|process| ops(process) == each), "{each} ops each");
}

#[test]
fn workers_that_contradict_the_mesh_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "");
    let text = read(&report.join("1f1b-measured.json"));
    let whole: Value = serde_json::from_str(&text).unwrap();
    let mut missing = whole.clone();
    missing["workers"]["others"].as_array_mut().unwrap().pop();
    let mut twice = whole.clone();
    twice["workers"]["others"][0]["data"] = whole["workers"]["data"].clone();
    twice["workers"]["others"][0]["tensor"] = whole["workers"]["tensor"].clone();
    let mut huge = whole.clone();
    huge["workers"]["mesh"]["data"] = Value::from(4_000_000_000_u32);
    let mut reversed = whole.clone();
    reversed["workers"]["others"][1]["spans"][0]["end_ns"] = Value::from(0);
    reversed["workers"]["others"][1]["spans"][0]["start_ns"] = Value::from(5);
    for (broken, words) in [
        (missing, "each once, found 3 of 3"),
        (twice, "each once, found 4 of 3"),
        (huge, "each once"),
        (reversed, "workers.others[1].spans[0]"),
    ] {
        let error = Timeline::from_json(&broken.to_string()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
