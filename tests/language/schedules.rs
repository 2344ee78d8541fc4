//! Schedules against facts that others state: PyTorch's op orders and figures, closed forms, and refusals.

use pipesim::internals::cost::{GivenCosts, Slow, StepCosts};
use pipesim::internals::dsl::{self, Budget, Request};
use pipesim::internals::graph::TaskGraph;
use pipesim::internals::op::{Kind, Op};
use pipesim::internals::open::Order;
use pipesim::internals::schedule::Overlap;
use pipesim::internals::settle::settle;
use pipesim::internals::sim::{self, Prediction};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn request(devices: u32, microbatches: u32, chunks: Option<u32>) -> Request {
    Request { devices, microbatches, chunks, options: BTreeMap::new(), budget: Budget::default() }
}

fn graph(name: &str, p: u32, m: u32, v: Option<u32>) -> Result<TaskGraph, String> {
    graph_with(name, p, m, v, Overlap::Atomic)
}

fn graph_with(name: &str, p: u32, m: u32, v: Option<u32>, overlap: Overlap) -> Result<TaskGraph, String> {
    let path = dsl::resolve(name).map_err(|e| e.to_string())?;
    let compiled = dsl::compile(&path, &request(p, m, v)).map_err(|e| e.to_string())?;
    let schedule = match compiled.order {
        Order::Fixed(schedule) => schedule,
        Order::Open(open) => {
            let costs = GivenCosts::default().table(&open.placement, m, &Slow::new()).unwrap();
            settle(&open, &costs).map_err(|e| format!("{name} does not exist for p = {p}, m = {m}: {e}"))?
        }
    };
    schedule.validate().map_err(|e| e.to_string())?;
    TaskGraph::with_overlap(schedule, overlap).map_err(|e| e.to_string())
}

fn predict(name: &str, p: u32, m: u32, v: Option<u32>, costs: &str) -> Prediction {
    predict_with(name, p, m, v, costs, Overlap::Atomic)
}

fn predict_with(name: &str, p: u32, m: u32, v: Option<u32>, costs: &str, overlap: Overlap) -> Prediction {
    let graph = graph_with(name, p, m, v, overlap).unwrap();
    let costs: GivenCosts = costs.parse().unwrap();
    let table = costs.table(&graph.schedule().placement, m, &Slow::new()).unwrap();
    sim::predict(&graph, &table, &StepCosts::default()).0
}

fn golden(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder)
}

/// PyTorch's classes and DeepSeek's.
const CLASSES: [(&str, &str); 9] = [
    ("DualPipe", "dualpipe"),
    ("DualPipeV", "dualpipe-v"),
    ("ScheduleGPipe", "gpipe"),
    ("Schedule1F1B", "1f1b"),
    ("ScheduleInterleaved1F1B", "interleaved-1f1b"),
    ("ScheduleZBVZeroBubble", "zb-v"),
    ("ScheduleLoopedBFS", "looped-bfs"),
    ("ScheduleInterleavedZeroBubble", "interleaved-zb"),
    ("ScheduleDualPipeV", "dualpipe-v"),
];

/// Schedules that leave the number of chunks open.
const OPEN: [&str; 4] = ["interleaved-1f1b", "looped-bfs", "interleaved-zb", "group-interleaved"];

/// The file's op orders, idle slots left out.
fn orders(file: &Path) -> Vec<Vec<Op>> {
    let text = std::fs::read_to_string(file).unwrap();
    let cell = |cell: &str| -> Vec<Op> {
        match cell.strip_suffix("OVERLAP_F_B") {
            None => vec![cell.parse().unwrap()],
            Some(pair) => {
                let (first, second) = pair.trim_matches(['(', ')']).split_once(';').unwrap();
                vec![first.parse::<Op>().unwrap().opening_pair(), second.parse().unwrap()]
            }
        }
    };
    text.lines().map(|line| line.split(',').filter(|text| !text.is_empty()).flat_map(cell).collect()).collect()
}

fn expected(folder: &str) -> Vec<serde_json::Value> {
    serde_json::from_str(&std::fs::read_to_string(golden(folder).join("expected.json")).unwrap()).unwrap()
}

fn number(value: &serde_json::Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// The case of an entry: our schedule, p, v, m; its chunks, where the schedule leaves them open.
fn case(entry: &serde_json::Value) -> (&'static str, u32, f64, u32, Option<u32>) {
    let class = entry["cls"].as_str().unwrap();
    let name = CLASSES.iter().find(|(theirs, _)| *theirs == class).unwrap().1;
    let v = number(entry, "v");
    (name, number(entry, "p") as u32, v, number(entry, "m") as u32, OPEN.contains(&name).then_some(v as u32))
}

#[test]
fn op_orders_are_the_originals_cell_for_cell() {
    let mut compared = BTreeMap::new();
    for folder in ["pytorch", "dualpipe"] {
        for entry in expected(folder).iter().filter(|entry| entry["costset"] == "unit") {
            if entry["overlap_mode"].as_str().is_some_and(|mode| mode != "atomic") {
                continue;
            }
            let (name, p, v, m, chunks) = case(entry);
            let graph = graph(name, p, m, chunks).unwrap();
            let theirs = orders(&golden(folder).join(format!("{}.csv", entry["name"].as_str().unwrap())));
            for (device, program) in theirs.iter().enumerate() {
                // their files know no direction
                let ours: Vec<Op> =
                    graph.schedule().program(device as u32).iter().map(|op| op.in_direction(0)).collect();
                assert_eq!(&ours, program, "{name} p={p} v={v} m={m} device {device}");
            }
            *compared.entry(entry["cls"].as_str().unwrap().to_string()).or_insert(0) += 1;
        }
    }
    let counts: Vec<(&str, i32)> = compared.iter().map(|(class, count)| (class.as_str(), *count)).collect();
    let expected = [
        ("DualPipe", 10),
        ("DualPipeV", 10),
        ("Schedule1F1B", 18),
        ("ScheduleDualPipeV", 14),
        ("ScheduleGPipe", 20),
        ("ScheduleInterleaved1F1B", 45),
        ("ScheduleInterleavedZeroBubble", 45),
        ("ScheduleLoopedBFS", 60),
        ("ScheduleZBVZeroBubble", 20),
    ];
    assert_eq!(counts, expected);
}

#[test]
fn figures_are_the_originals() {
    for entry in expected("pytorch").into_iter().chain(expected("dualpipe")) {
        let (name, p, v, m, chunks) = case(&entry);
        let overlap = match entry["overlap_mode"].as_str() {
            Some("serial") => Overlap::Serial,
            Some("runtime") => Overlap::Runtime,
            Some("overlap") => Overlap::Max,
            _ => Overlap::Atomic,
        };
        let cost = |key: &str| number(&entry["costs"], key);
        // Their costs are per op; ours are per device, and a chunk's op costs 1/v.
        let costs = format!(
            "F={},I={:.3},W={:.3},B={:.3},comm={}",
            cost("F") * v,
            cost("I") * v,
            cost("W") * v,
            cost("B") * v,
            cost("comm")
        );
        let found = predict_with(name, p, m, chunks, &costs, overlap);
        let close = |ours: f64, theirs: f64, what: &str| {
            let same = (ours - theirs).abs() < 1e-9;
            assert!(same, "{name} p={p} v={v} m={m} {overlap:?} {what}: ours {ours}, theirs {theirs}");
        };
        close(found.metrics.makespan, number(&entry, "makespan"), "makespan");
        close(found.metrics.bubble, number(&entry, "bubble"), "bubble");
        for (device, ours) in found.metrics.per_device.iter().enumerate() {
            close(ours.busy, entry["busy_per_rank"][device].as_f64().unwrap(), "busy");
            close(ours.peak_activations * v, entry["peak_activations_per_rank"][device].as_f64().unwrap(), "peak");
        }
        let span = entry["window_per_rank"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap()).fold(0.0, f64::max);
        close(found.metrics.span, span, "span");
    }
}

#[test]
fn closed_forms_at_unit_costs() {
    for p in 1..=8_u32 {
        for m in 1..=16_u32 {
            let (pf, mf) = (f64::from(p), f64::from(m));
            let makespan = |name: &str| predict(name, p, m, None, "").metrics.makespan;
            assert_eq!(makespan("naive"), 3.0 * mf * pf, "naive {p} {m}");
            assert_eq!(makespan("gpipe"), 3.0 * (mf + pf - 1.0), "gpipe {p} {m}");
            assert_eq!(makespan("1f1b"), 3.0 * (mf + pf - 1.0), "1f1b {p} {m}");
            let bubble = predict("1f1b", p, m, None, "").metrics.bubble;
            assert!((bubble - (pf - 1.0) / (mf + pf - 1.0)).abs() < 1e-12, "1f1b bubble {p} {m}");
            let naive = predict("naive", p, m, None, "").metrics.bubble;
            assert!((naive - (1.0 - 1.0 / pf)).abs() < 1e-12, "naive bubble {p} {m}");
            if m >= p {
                assert_eq!(makespan("zb-h1"), 3.0 * mf + pf - 1.0, "zb-h1 {p} {m}");
            }
            if m >= 2 * p {
                let zbv = predict("zb-v", p, m, None, "").metrics;
                assert_eq!(zbv.makespan, 3.0 * mf + (pf - 1.0) / 2.0, "zb-v {p} {m}");
                assert_eq!(zbv.span, 3.0 * mf, "zb-v span {p} {m}");
                let h2 = predict("zb-h2", p, m, None, "").metrics;
                assert_eq!(h2.span, 3.0 * mf, "zb-h2 span {p} {m}");
            }
            for v in 1..=4 {
                if m % p == 0 {
                    let found = predict("interleaved-1f1b", p, m, Some(v), "").metrics.makespan;
                    let expected = 3.0 * mf + 3.0 * (pf - 1.0) / f64::from(v);
                    assert!((found - expected).abs() < 1e-9, "interleaved {p} {m} {v}: {found} {expected}");
                }
            }
        }
    }
}

#[test]
fn peaks_at_p_4_m_8() {
    let peaks = |name: &str, v| -> Vec<f64> {
        predict(name, 4, 8, v, "").metrics.per_device.iter().map(|d| d.peak_activations).collect()
    };
    assert_eq!(peaks("naive", None), [1.0; 4]);
    assert_eq!(peaks("gpipe", None), [8.0; 4]);
    assert_eq!(peaks("1f1b", None), [4.0, 3.0, 2.0, 1.0]);
    assert_eq!(peaks("zb-v", None), [4.0; 4]);
    assert_eq!(peaks("zb-h1", None), [4.0; 4]);
    assert_eq!(peaks("zb-h2", None), [7.0; 4]);
    assert_eq!(peaks("interleaved-1f1b", Some(2)), [5.5, 4.5, 3.5, 2.5]);
}

/// Whether costs decide the order of a schedule.
fn is_fixed(name: &str) -> bool {
    let compiled = dsl::compile(&dsl::resolve(name).unwrap(), &request(2, 4, None)).unwrap();
    matches!(compiled.order, Order::Fixed(_))
}

/// Schedules that a search settles, which takes up to a second each.
const SEARCHED: [&str; 7] = ["zb-1p", "zb-2p", "zb-v-greedy", "v-half", "v-min", "v-zb", "1f1b-v"];

/// Compiles, settles and simulates; true where that is a schedule, false where it is refused with a reason.
fn is_valid_or_refused(name: &str, p: u32, m: u32, v: Option<u32>) -> bool {
    match graph(name, p, m, v) {
        Ok(graph) => {
            let costs = GivenCosts::default().table(&graph.schedule().placement, m, &Slow::new()).unwrap();
            let metrics = sim::predict(&graph, &costs, &StepCosts::default()).0.metrics;
            assert_eq!(graph.order().len(), graph.len());
            assert!(metrics.makespan >= metrics.lower_bound.unwrap(), "{name} p={p} m={m} {v:?}");
            true
        }
        Err(reason) => {
            assert!(reason.contains("does not exist for"), "{name} p={p} m={m} {v:?}: {reason}");
            assert!(reason.len() > 60, "{name} p={p} m={m} {v:?} gives no reason: {reason}");
            false
        }
    }
}

#[test]
fn every_file_is_valid_or_refused_with_a_reason() {
    let (mut valid, mut refused) = (0, 0);
    for name in dsl::names() {
        let open = OPEN.contains(&name);
        let few = SEARCHED.contains(&name);
        for p in 1..=12 {
            for m in (1..=24).filter(|m| !few || [1, 2, 7].contains(m)) {
                for v in if open { 1..=4 } else { 1..=1 } {
                    let count =
                        if is_valid_or_refused(name, p, m, open.then_some(v)) { &mut valid } else { &mut refused };
                    *count += 1;
                }
            }
        }
    }
    assert!(valid > 6000 && refused > 500, "{valid} valid, {refused} refused");
}

/// The same for all numbers of micro-batches under the searched schedules: some minutes, `cargo test --release -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn every_search_is_valid_for_all_small_numbers() {
    let numbers: Vec<(u32, u32)> = (1..=12).flat_map(|p| (1..=24).map(move |m| (p, m))).collect();
    let half = |part: usize| {
        for &(p, m) in numbers.iter().skip(part).step_by(2) {
            for name in SEARCHED {
                assert!(is_valid_or_refused(name, p, m, None), "{name} p={p} m={m} is refused");
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| half(0));
        scope.spawn(|| half(1));
    });
}

#[test]
fn waves_of_hanayo_and_chunks_of_a_placement() {
    let hanayo = |waves: &str| {
        let mut request = request(4, 4, None);
        request.options.insert("waves".to_string(), waves.to_string());
        let compiled = dsl::compile(&dsl::resolve("hanayo").unwrap(), &request).unwrap();
        compiled.order.placement().clone()
    };
    assert_eq!((hanayo("1").chunks(), hanayo("3").chunks()), (2, 6));
    let devices: Vec<u32> = (0..8).map(|stage| hanayo("1").device_of_stage(stage, 0)).collect();
    assert_eq!(devices, [0, 1, 2, 3, 3, 2, 1, 0]);
}

/// Li & Hoefler 2021, table 2: at m = p and B = F Chimera leaves p - 2 slots of a device idle.
#[test]
fn chimera_leaves_the_published_bubble() {
    for p in [2, 4, 6, 8, 12] {
        let path = dsl::resolve("chimera").unwrap();
        let Order::Open(open) = dsl::compile(&path, &request(p, p, None)).unwrap().order else { panic!("it floats") };
        let costs: GivenCosts = "F=1,B=1".parse().unwrap();
        let table = costs.table(&open.placement, p, &Slow::new()).unwrap();
        let graph = TaskGraph::new(settle(&open, &table).unwrap()).unwrap();
        let found = sim::predict(&graph, &table, &StepCosts::default()).0.metrics;
        assert_eq!(found.makespan, f64::from(2 * p + p - 2), "p = {p}");
        assert!(found.per_device.iter().all(|d| d.peak_activations <= f64::from(p)), "p = {p}");
    }
}

#[test]
fn files_are_short() {
    for name in dsl::names() {
        let lines = dsl::resolve(name).unwrap().text.lines().count();
        assert!(lines <= 30, "{name} has {lines} lines");
    }
}

#[test]
fn a_makespan_is_never_below_its_bound_and_scales_with_the_costs() {
    for name in dsl::names() {
        for (p, m) in [(1, 1), (2, 4), (3, 6), (4, 8), (5, 5), (8, 16)] {
            if !is_fixed(name) || graph(name, p, m, None).is_err() {
                continue;
            }
            let once = predict(name, p, m, None, "F=1,I=1.1,W=0.7,comm=0.2").metrics;
            let thrice = predict(name, p, m, None, "F=3,I=3.3,W=2.1,comm=0.6").metrics;
            assert!((3.0 * once.makespan - thrice.makespan).abs() < 1e-9, "{name} {p} {m}");
            assert!(once.lower_bound.unwrap() <= once.makespan, "{name} {p} {m}: {once:?}");
            let longer = predict(name, p, m, None, "F=1,I=1.1,W=0.8,comm=0.2").metrics;
            assert!(longer.makespan >= once.makespan, "{name} {p} {m}: a longer op shortened a fixed order");
        }
    }
}

#[test]
fn petgraph_agrees_that_the_order_is_topological() {
    let graph = graph("zb-v", 3, 5, None).unwrap();
    let order = petgraph::algo::toposort(&graph, None).unwrap();
    assert_eq!(order.len(), graph.len());
    let longest = petgraph::algo::is_cyclic_directed(&graph);
    assert!(!longest);
}

#[test]
fn ops_of_the_kinds_that_a_schedule_uses() {
    let graph = graph("zb-h1", 2, 3, None).unwrap();
    assert!(graph.schedule().splits_backward());
    assert!(graph.schedule().ops().iter().all(|op| op.kind() != Kind::B));
}
