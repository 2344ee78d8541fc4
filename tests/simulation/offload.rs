//! Copies to and from the host and vocabularies that all devices share: orders, plans and figures of the original programs and of an
//! independent simulation.

use crate::support::{Dice, cells, costs_of, golden_json, graph, predict};
use pipesim::internals::sim::event::{Record, simulate};
use pipesim::internals::sim::sweep_lasting;
use pipesim::simulation::{Config, Processor, memory, plan_offload};
use pipesim::{Kind, Op, Placement, TaskGraph};
use serde_json::Value;

/// A fraction as the files write it.
fn fraction(value: &Value) -> f64 {
    let text = value.as_str().unwrap();
    let (a, b) = text.split_once('/').unwrap_or((text, "1"));
    a.parse::<f64>().unwrap() / b.parse::<f64>().unwrap()
}

fn number(case: &Value, key: &str) -> u32 {
    case[key].as_u64().unwrap() as u32
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

/// Start and end of all ops by both engines, which must agree; links to the host are not shared.
fn times(graph: &TaskGraph, costs: &str) -> Vec<(u64, u64)> {
    let costs = costs_of(graph, costs);
    let mut swept = vec![(0, 0); graph.len()];
    let devices =
        sweep_lasting(graph, &costs, |_, _, _, duration| duration, |index, start, end| swept[index] = (start, end));
    let alone = |device| Processor { devices: vec![device], cores: 1, ..Processor::default() };
    let processors = (0..graph.schedule().devices()).map(alone).collect();
    let mut record = Record::new(graph);
    let config = Config { processors, ..Config::default() };
    assert_eq!(simulate(graph, &costs, &config, &mut record).unwrap(), devices, "{}", graph.schedule().name);
    assert_eq!(record.ops, swept, "{}", graph.schedule().name);
    swept
}

fn close(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < 1e-6, "{what}: found {found}, expected {expected}");
}

#[test]
fn copies_beside_1f1b_are_those_of_an_independent_simulation() {
    let all = golden_json("slices/offload-1f1b.json");
    for case in all["cases"].as_array().unwrap() {
        let (p, m) = (number(case, "p"), number(case, "m"));
        let asked = format!("1f1b-offload ahead={} least={}", case["ahead"], case["least"]);
        let graph = graph(&asked, p, m, None).unwrap();
        for (device, theirs) in texts(&case["programs"]).into_iter().enumerate() {
            let theirs = cells(theirs, &Placement::linear(p), m);
            assert_eq!(graph.schedule().program(device as u32), theirs, "{asked}, device {device}");
        }
        for (setting, costs) in [("unit", "F=1,I=1,W=1"), ("uneven", "F=1,I=1.2,W=0.7,comm=0.05")] {
            let costs = format!("{costs},copy={}", fraction(&case["copy_time"]));
            let (found, expected) = (predict(&graph, &costs).metrics, &case["expected"][setting]);
            close(found.makespan, fraction(&expected["makespan"]), &asked);
            for (device, ours) in found.per_device.iter().enumerate() {
                close(ours.busy, fraction(&expected["busy"][device]), &asked);
                close(ours.peak_activations, fraction(&expected["peak"][device]), &asked);
            }
            assert!(found.lower_bound.unwrap() <= found.makespan + 1e-9, "{asked}");
            times(&graph, &costs);
        }
    }
}

#[test]
fn plans_of_copies_are_those_of_the_authors() {
    let all = golden_json("slices/offload.json");
    for case in all["cases"].as_array().unwrap() {
        let (p, m, v, group) = (number(case, "p"), number(case, "m"), number(case, "v"), number(case, "group"));
        let what = format!("{}", serde_json::json!([p, m, v, group, case["offload_chunks"], case["offload_time"]]));
        let computed = graph(&format!("group-interleaved group={group}"), p, m, Some(v)).unwrap();
        let offloads =
            graph(&format!("pipeoffload group={group} offloaded={}", case["offload_chunks"]), p, m, Some(v)).unwrap();
        let placement = Placement::looped("loop", p, v);
        for (device, theirs) in texts(&case["compute"]).into_iter().enumerate() {
            let theirs = cells(theirs, &placement, m);
            assert_eq!(computed.schedule().program(device as u32), theirs, "{what}, device {device}");
            let ours = offloads.schedule().program(device as u32).iter().copied();
            assert_eq!(
                ours.filter(|op| op.kind().is_compute()).collect::<Vec<Op>>(),
                theirs,
                "{what}, device {device}"
            );
        }
        // Costs are per device: a chunk's op takes 1.
        let costs = costs_of(&computed, &format!("F={v},I={v},W={v},comm={}", case["comm"]));
        let time = case["offload_time"].as_f64().unwrap();
        let plan = match plan_offload(&computed, &costs, number(case, "offload_chunks"), time) {
            Ok(plan) => plan,
            Err(error) => {
                assert!(case["d2h"].is_null(), "{what}: {error}");
                continue;
            }
        };
        for device in 0..p as usize {
            for (key, ours) in [("d2h", &plan.to_host[device]), ("h2d_start", &plan.from_host[device])] {
                let mut theirs: Vec<&Value> = case[key][device].as_array().unwrap().iter().collect();
                theirs.sort_by(|one, other| one[1].as_f64().unwrap().total_cmp(&other[1].as_f64().unwrap()));
                assert_eq!(ours.len(), theirs.len(), "{what}, device {device}, {key}");
                for (ours, theirs) in ours.iter().zip(theirs) {
                    assert_eq!(ours.op.to_string(), theirs[0].as_str().unwrap(), "{what}, device {device}, {key}");
                    close(ours.start, theirs[1].as_f64().unwrap(), &what);
                    theirs[2].as_f64().into_iter().for_each(|end| close(ours.end, end, &what));
                }
            }
            let peaks = ["peak_before", "peak_after"].map(|key| case[key][device].as_i64().unwrap());
            assert_eq!(plan.peaks[device], peaks, "{what}, device {device}");
        }
        close(plan.slot, case["copy_time_parallel"].as_f64().unwrap(), &what);
        // As a schedule it is valid, and copies as long as a slot do not delay it beyond a few slots.
        let planned = plan.schedule(&computed);
        planned.validate().unwrap();
        let planned = TaskGraph::new(planned).unwrap();
        let costs = format!("F={v},I={v},W={v},copy={}", plan.slot * f64::from(v));
        times(&planned, &costs);
    }
}

#[test]
fn copies_that_cannot_keep_up_are_refused() {
    let computed = graph("group-interleaved", 4, 8, Some(2)).unwrap();
    let costs = costs_of(&computed, "F=1,I=1,W=1");
    let plan = |time: f64| plan_offload(&computed, &costs, 2, time);
    assert!(plan(0.2).is_ok());
    // In slots longer than that, every activation stays where it is.
    assert!(plan(50.0).unwrap().to_host.iter().all(Vec::is_empty));
    assert!(plan(0.0).unwrap_err().to_string().contains("above 0"));
}

/// Random rules of offloading on several orders: both engines agree, nothing deadlocks, and every device holds at the end what it held at the start.
#[test]
fn random_offloads_agree_in_both_engines() {
    let mut dice = Dice(7);
    for _ in 0..40 {
        let (p, m) = (2 + dice.below(4) as u32, 2 + dice.below(9) as u32);
        let name = ["1f1b-offload", "pipeoffload"][dice.below(2)];
        let asked = format!("{name} ahead={} least={}", 1 + dice.below(4), 1 + dice.below(6));
        let chunks = (name == "pipeoffload").then(|| 1 + dice.below(3) as u32);
        let graph = graph(&asked, p, m, chunks).unwrap();
        let costs = format!("F=1.1,I=1,W=0.{},comm=0.0{},copy={}.3", 1 + dice.below(9), dice.below(9), dice.below(4));
        let times = times(&graph, &costs);
        let index_of = |op: Op| graph.schedule().ops().iter().position(|&other| other == op);
        for (index, &op) in graph.schedule().ops().iter().enumerate().filter(|(_, op)| op.kind() == Kind::L) {
            let back = index_of(op.of_kind(Kind::B)).or(index_of(op.of_kind(Kind::I))).unwrap();
            let gone = index_of(op.of_kind(Kind::O)).unwrap();
            assert!(times[gone].1 <= times[index].0 && times[index].1 <= times[back].0, "{asked}: {op}");
        }
        let costs = costs_of(&graph, &costs);
        let mut op_times = pipesim::simulation::OpTimes::of(&graph);
        times.iter().enumerate().for_each(|(index, &(start, end))| {
            (op_times.start[index], op_times.end[index]) = (start, end);
        });
        for curve in memory(&graph, &costs, &op_times, None) {
            assert!(curve.levels.iter().all(|level| level.held >= 0.0));
            assert_eq!(curve.levels.last().unwrap().held, 0.0);
        }
    }
}

#[test]
fn neighbours_that_share_a_link_take_turns() {
    let graph = graph("1f1b-offload ahead=1 least=2", 4, 12, None).unwrap();
    let costs = costs_of(&graph, "F=1,copy=1.5");
    let mut record = Record::new(&graph);
    let config = Config { devices_per_host_link: 2, ..Config::default() };
    simulate(&graph, &costs, &config, &mut record).unwrap();
    let mut shared = 0;
    for kind in [Kind::O, Kind::L] {
        for first in [0, 2] {
            let copies = graph.schedule().ops().iter().enumerate().filter(|(_, op)| op.kind() == kind);
            let here = copies.filter(|(_, op)| op.stage() / 2 == first / 2);
            let mut spans: Vec<(u64, u64)> = here.map(|(index, _)| record.ops[index]).collect();
            spans.sort_unstable();
            shared += spans.len();
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }
    }
    assert!(shared > 20);
}

#[test]
fn vocabulary_passes_are_those_of_the_authors() {
    let all = golden_json("slices/vocabulary.json");
    let balanced = "F=1,B=2,S=0.25,S_rest=0.25,IF=0.05,IB=0.05";
    let slow = "F=1,B=2,S=0.5,S_rest=0.5,IF=0.1,IB=0.1,barrier=0.1,comm=0.05";
    for case in all["cases"].as_array().unwrap() {
        let (p, m) = (number(case, "p"), number(case, "m"));
        let asked = format!("1f1b-vocab barriers={}", case["barriers"]);
        let last = format!("IF{m}");
        let beyond = texts(&case["programs"]).iter().filter(|row| row.split(',').any(|op| op == last)).count() as u32;
        let graph = graph(&asked, p, m, None).unwrap();
        for (device, theirs) in texts(&case["programs"]).into_iter().enumerate() {
            let ours: Vec<String> = graph.schedule().program(device as u32).iter().map(Op::to_string).collect();
            let of_device = |op: &str| op.trim_start_matches(|c: char| c.is_ascii_digit()).to_string();
            let ours: Vec<String> = ours.iter().map(|op| of_device(op)).collect();
            // The program has IF of micro-batches that do not exist.
            let exists =
                |op: &&str| op.trim_start_matches("IF").parse::<u32>().is_ok_and(|k| k < m) || !op.starts_with("IF");
            let theirs: Vec<&str> = theirs.split(',').filter(exists).collect();
            assert_eq!(ours, theirs, "{asked}, p = {p}, m = {m}, device {device}");
        }
        for (setting, costs) in [("balanced", balanced), ("slow", slow)] {
            let (found, expected) = (predict(&graph, costs).metrics, &case["expected"][setting]);
            let what = format!("{asked}, p = {p}, m = {m}, {setting}");
            // It also takes the time for them.
            let more = if beyond > 0 { 0.1 * f64::from(beyond) } else { 1e-6 };
            let late = fraction(&expected["makespan"]) - found.makespan;
            assert!((-1e-6..=more).contains(&late), "{what}: {late}");
            for (device, ours) in found.per_device.iter().enumerate() {
                close(ours.peak_activations, expected["peak"][device].as_f64().unwrap(), &what);
            }
            assert!(found.lower_bound.unwrap() <= found.makespan + 1e-9, "{what}");
            times(&graph, costs);
        }
    }
}
