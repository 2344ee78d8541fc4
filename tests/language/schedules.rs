//! Schedules against facts that others state: PyTorch's op orders and figures, closed forms, and refusals.

use crate::support::{GoldenSchedule, cells, costs, graph, graph_with, metrics, numbers, order, predict, root};
use petgraph::Direction;
use petgraph::visit::{EdgeRef, IntoEdgeReferences, IntoEdgesDirected};
use pipesim::schedules::{Order, order_ops};
use pipesim::{Kind, Op, Overlap, Placement, TaskGraph, schedules};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

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
const OPEN: [&str; 9] = [
    "interleaved-1f1b",
    "interleaved-overlap",
    "kimi-k2",
    "looped-bfs",
    "interleaved-zb",
    "group-interleaved",
    "pipeoffload",
    "seq1f1b-interleaved",
    "slimpipe",
];

/// The case of an entry: our schedule, p, v, m; its chunks, where the schedule leaves them open.
fn case(golden: &GoldenSchedule) -> (&'static str, u32, u32, u32, Option<u32>) {
    let name = CLASSES.iter().find(|(theirs, _)| *theirs == golden.class()).unwrap().1;
    let [p, v, m] = golden.sizes();
    (name, p, v, m, OPEN.contains(&name).then_some(v))
}

#[test]
fn op_orders_are_the_originals_cell_for_cell() {
    let mut compared = BTreeMap::new();
    for golden in GoldenSchedule::all().iter().filter(|golden| golden.entry["costset"] == "unit") {
        if golden.overlap() != Overlap::Atomic {
            continue;
        }
        let (name, p, v, m, chunks) = case(golden);
        let graph = graph(name, p, m, chunks).unwrap();
        for (device, row) in golden.text().lines().enumerate() {
            // their files know no direction
            let theirs = cells(row, &Placement::linear(p), m);
            let ours: Vec<Op> = graph.schedule().program(device as u32).iter().map(|op| op.in_direction(0)).collect();
            assert_eq!(ours, theirs, "{name} p={p} v={v} m={m} device {device}");
        }
        *compared.entry(golden.class().to_string()).or_insert(0) += 1;
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
    for golden in GoldenSchedule::all() {
        let (name, p, v, m, chunks) = case(&golden);
        let overlap = golden.overlap();
        let found = predict(&graph_with(name, p, m, chunks, overlap).unwrap(), &golden.costs()).metrics;
        let close = |ours: f64, theirs: f64, what: &str| {
            let same = (ours - theirs).abs() < 1e-9;
            assert!(same, "{name} p={p} v={v} m={m} {overlap:?} {what}: ours {ours}, theirs {theirs}");
        };
        close(found.makespan, golden.number("makespan"), "makespan");
        close(found.bubble, golden.number("bubble"), "bubble");
        let theirs = ["busy_per_rank", "peak_activations_per_rank"].map(|key| numbers(&golden.entry[key]));
        for (device, ours) in found.per_device.iter().enumerate() {
            close(ours.busy, theirs[0][device], "busy");
            close(ours.peak_activations * f64::from(v), theirs[1][device], "peak");
        }
        let windows = numbers(&golden.entry["window_per_rank"]);
        close(found.span, windows.into_iter().fold(0.0, f64::max), "span");
    }
}

#[test]
fn closed_forms_at_unit_costs() {
    for p in 1..=8_u32 {
        for m in 1..=16_u32 {
            let (pf, mf) = (f64::from(p), f64::from(m));
            let makespan = |name: &str| metrics(name, p, m, None, "").makespan;
            assert_eq!(makespan("naive"), 3.0 * mf * pf, "naive {p} {m}");
            assert_eq!(makespan("gpipe"), 3.0 * (mf + pf - 1.0), "gpipe {p} {m}");
            assert_eq!(makespan("1f1b"), 3.0 * (mf + pf - 1.0), "1f1b {p} {m}");
            let bubble = metrics("1f1b", p, m, None, "").bubble;
            assert!((bubble - (pf - 1.0) / (mf + pf - 1.0)).abs() < 1e-12, "1f1b bubble {p} {m}");
            let naive = metrics("naive", p, m, None, "").bubble;
            assert!((naive - (1.0 - 1.0 / pf)).abs() < 1e-12, "naive bubble {p} {m}");
            if m >= p {
                assert_eq!(makespan("zb-h1"), 3.0 * mf + pf - 1.0, "zb-h1 {p} {m}");
            }
            if m >= 2 * p {
                let zbv = metrics("zb-v", p, m, None, "");
                assert_eq!(zbv.makespan, 3.0 * mf + (pf - 1.0) / 2.0, "zb-v {p} {m}");
                assert_eq!(zbv.span, 3.0 * mf, "zb-v span {p} {m}");
                let h2 = metrics("zb-h2", p, m, None, "");
                assert_eq!(h2.span, 3.0 * mf, "zb-h2 span {p} {m}");
            }
            for v in 1..=4 {
                if m % p == 0 {
                    let found = metrics("interleaved-1f1b", p, m, Some(v), "").makespan;
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
        metrics(name, 4, 8, v, "").per_device.iter().map(|d| d.peak_activations).collect()
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
    matches!(order(name, 2, 4, None).unwrap(), Order::Fixed(_))
}

/// Schedules that a search settles, which takes up to a second each.
const SEARCHED: [&str; 7] = ["zb-1p", "zb-2p", "zb-v-greedy", "v-half", "v-min", "v-zb", "1f1b-v"];

/// Compiles, settles and simulates; true where that is a schedule, false where it is refused with a reason.
fn is_valid_or_refused(name: &str, p: u32, m: u32, v: Option<u32>) -> bool {
    match graph(name, p, m, v) {
        Ok(graph) => {
            let metrics = predict(&graph, "").metrics;
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
    for name in schedules::names() {
        let open = OPEN.contains(&name);
        let few = SEARCHED.contains(&name);
        // What divides, what does not, fewer than p and more than twice as many.
        for p in 1..=12 {
            for m in (1..=8).chain([11, 12, 16, 24]).filter(|m| !few || [1, 2, 7].contains(m)) {
                for v in if open { 1..=4 } else { 1..=1 } {
                    let count =
                        if is_valid_or_refused(name, p, m, open.then_some(v)) { &mut valid } else { &mut refused };
                    *count += 1;
                }
            }
        }
    }
    assert!(valid > 3000 && refused > 250, "{valid} valid, {refused} refused");
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
    let hanayo = |waves: u32| order(&format!("hanayo waves={waves}"), 4, 4, None).unwrap().placement().clone();
    assert_eq!((hanayo(1).chunks(), hanayo(3).chunks()), (2, 6));
    let devices: Vec<u32> = (0..8).map(|stage| hanayo(1).device_of_stage(stage, 0)).collect();
    assert_eq!(devices, [0, 1, 2, 3, 3, 2, 1, 0]);
}

/// Li & Hoefler 2021, table 2: at m = p and B = F Chimera leaves p - 2 slots of a device idle.
#[test]
fn chimera_leaves_the_published_bubble() {
    for p in [2, 4, 6, 8, 12, 16] {
        let Order::Open(open) = order("chimera", p, p, None).unwrap() else { panic!("it floats") };
        let graph = TaskGraph::new(order_ops(&open, &costs("F=1,B=1", &open.placement, p)).unwrap()).unwrap();
        let found = predict(&graph, "F=1,B=1").metrics;
        assert_eq!(found.makespan, f64::from(2 * p + p - 2), "p = {p}");
        assert!(found.per_device.iter().all(|d| d.peak_activations <= f64::from(p)), "p = {p}");
    }
}

#[test]
fn files_are_short() {
    for name in schedules::names() {
        let lines = fs::read_to_string(root().join(format!("schedules/{name}.star"))).unwrap().lines().count();
        assert!(lines <= 30, "{name} has {lines} lines");
    }
}

#[test]
fn a_makespan_is_never_below_its_bound_and_scales_with_the_costs() {
    for name in schedules::names() {
        for (p, m) in [(1, 1), (2, 4), (3, 6), (4, 8), (5, 5), (8, 16)] {
            if !is_fixed(name) || graph(name, p, m, None).is_err() {
                continue;
            }
            let once = metrics(name, p, m, None, "F=1,I=1.1,W=0.7,comm=0.2");
            let thrice = metrics(name, p, m, None, "F=3,I=3.3,W=2.1,comm=0.6");
            assert!((3.0 * once.makespan - thrice.makespan).abs() < 1e-9, "{name} {p} {m}");
            assert!(once.lower_bound.unwrap() <= once.makespan, "{name} {p} {m}: {once:?}");
            let longer = metrics(name, p, m, None, "F=1,I=1.1,W=0.8,comm=0.2");
            assert!(longer.makespan >= once.makespan, "{name} {p} {m}: a longer op shortened a fixed order");
        }
    }
}

#[test]
fn petgraph_agrees_with_the_order_of_the_task_graph() {
    for (name, p, m, v) in
        [("1f1b", 4, 6, None), ("zb-v", 3, 5, None), ("dualpipe", 4, 8, None), ("interleaved-1f1b", 2, 4, Some(3))]
    {
        for overlap in Overlap::ALL {
            let graph = graph_with(name, p, m, v, overlap).unwrap();
            let order = petgraph::algo::toposort(&graph, None).unwrap();
            assert_eq!(order.len(), graph.len());
            assert_eq!(petgraph::algo::tarjan_scc(&graph).len(), graph.len(), "{name}: an op is in no circle");
            let mut place = vec![0; graph.len()];
            graph.order().into_iter().enumerate().for_each(|(number, index)| place[index] = number);
            let waits: BTreeSet<_> = graph.edge_references().map(|edge| edge.id()).collect();
            assert!(waits.iter().all(|&(from, to)| place[from] < place[to]), "{name}");
            let incoming = |to| graph.edges_directed(to, Direction::Incoming).map(|edge| edge.id());
            let backwards: Vec<_> = (0..graph.len()).flat_map(incoming).collect();
            assert_eq!(backwards.len(), waits.len(), "{name} {overlap:?}: an edge per pair of ops");
            assert_eq!(backwards.into_iter().collect::<BTreeSet<_>>(), waits, "{name} {overlap:?}: the same both ways");
            let ancestors = graph.ancestors();
            for (from, to) in [(0, graph.len() - 1), (graph.len() / 2, 1), (graph.len() / 3, graph.len() / 2)] {
                let number = from - graph.schedule().range(graph.device_of(from)).start;
                let known = ancestors[to][graph.device_of(from) as usize] as usize > number;
                assert_eq!(petgraph::algo::has_path_connecting(&graph, from, to, None), known, "{name} {from} {to}");
            }
        }
    }
}

#[test]
fn petgraph_writes_the_graph_for_graphviz() {
    let graph = graph("1f1b", 2, 1, None).unwrap();
    let dot = petgraph::dot::Dot::new(&graph).to_string();
    assert!(dot.starts_with("digraph {") && dot.contains("[ label = \"0F0\" ]"), "{dot}");
    assert!(dot.contains("0 -> 2 [ label = \"transfer\" ]"), "{dot}");
}

#[test]
fn ops_of_the_kinds_that_a_schedule_uses() {
    let graph = graph("zb-h1", 2, 3, None).unwrap();
    assert!(graph.schedule().splits_backward());
    assert!(graph.schedule().ops().iter().all(|op| op.kind() != Kind::B));
}

/// The authors of PipeOffload write whole groups; fewer micro-batches are theirs with the surplus left out. So are ours, where the
/// group divides m or not, and the first of a group too many costs no other micro-batch a wait.
#[test]
fn groups_that_are_not_full_are_full_ones_without_the_surplus() {
    for (p, v, group) in [(2, 2, 2_u32), (2, 2, 1), (3, 2, 3), (4, 2, 4), (4, 3, 3), (4, 2, 6), (5, 3, 5)] {
        let name = format!("group-interleaved group={group}");
        for m in 1..=2 * group + 1 {
            let whole = m.next_multiple_of(group);
            let [cut, full] = [m, whole].map(|m| graph(&name, p, m, Some(v)).unwrap());
            for device in 0..p {
                let of_full = full.schedule().program(device).iter().filter(|op| op.microbatch() < m).copied();
                let cut = cut.schedule().program(device).to_vec();
                assert_eq!(cut, of_full.collect::<Vec<Op>>(), "p={p} v={v} group={group} m={m} device {device}");
            }
        }
    }
    // with groups of p, p dividing m, the bubble is that of interleaved 1F1B: (p - 1)(F + I) / v, arXiv 2503.01328 section 4
    for (p, v, m) in [(4, 2, 8), (4, 3, 12), (3, 2, 9)] {
        let found = metrics("group-interleaved", p, m, Some(v), "");
        let expected = 3.0 * f64::from(m) + 2.0 * f64::from(p - 1) / f64::from(v);
        assert!((found.makespan - expected).abs() < 1e-9, "{p} {v} {m}: {}, {expected}", found.makespan);
    }
}

#[test]
fn prints_and_parses_as_pytorch_does() {
    for text in ["0F0", "7B12", "3I1", "1048575W4294967295", "0F3.1", "2R3", "1OFFLOAD3.62", "0RELOAD3"] {
        assert_eq!(text.parse::<Op>().unwrap().to_string(), text);
    }
    let op = Op::new(Kind::I, 5, 7).in_direction(1).opening_pair();
    assert_eq!((op.kind(), op.stage(), op.microbatch(), op.direction()), (Kind::I, 5, 7, 1));
    assert_eq!((op.slot(), op.opens_pair(), op.alone().opens_pair()), (5 * Op::SLOTS_PER_STAGE + 4 + 1, true, false));
    for text in [
        "",
        "F0",
        "0",
        "0F",
        "0X1",
        "0F-1",
        "0F1 ",
        "-1F0",
        "1048576F0",
        "0F3.",
        "0F3.63",
        "0F.1",
        "0O3",
        "0F4294967296",
        "0é1",
    ] {
        assert!(text.parse::<Op>().is_err(), "{text} must be refused");
    }
}
