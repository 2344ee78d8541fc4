//! Batches of sends and receives, and what Megatron-LM and PyTorch make of a schedule: their loops' order of sends and receives, written
//! down here once more, against the queues; verdicts for all schedules against the link's queues and threads.

use crate::check::{execute, stepped};
use crate::support::{Dice, gpipe, graph, one_f_one_b, one_stage_a_device, schedule, zero_bubble};
use pipesim::internals::lowering::{Holds, Lowering};
use pipesim::schedules::{PyTorch, QueueCount, Receives};
use pipesim::training::SessionError;
use pipesim::{ChannelOptions, Delivery, Kind, Op, Placement, TaskGraph, check};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// With those of which the page tells.
const PRESETS: [Delivery; 4] =
    [Delivery::Batched, Delivery::Megatron, Delivery::PyTorch(PyTorch::Newest), Delivery::PyTorch(PyTorch::V2_11)];

fn linear(rows: &[Vec<Op>], m: u32) -> TaskGraph {
    TaskGraph::new(schedule(&Placement::linear(rows.len() as u32), m, rows)).unwrap()
}

/// The groups of a device's queue.
fn groups(graph: &TaskGraph, delivery: Delivery, device: u32) -> Vec<String> {
    let lowering = Lowering::new(graph, delivery);
    let queue = lowering.queues().iter().find(|queue| queue.device == device).unwrap();
    (0..queue.groups()).map(|number| queue.group_name(graph, number)).collect()
}

/// What a stage of 1F1B sends and receives in `forward_backward_pipelining_without_interleaving` of Megatron-LM (core 0.20) and in
/// `Schedule1F1B._step_microbatches` of PyTorch (2.11 to 2.15), which agree where some forward is left after the warm-up.
fn as_megatron_sends(r: u32, p: u32, m: u32) -> Vec<String> {
    let (first, last, mut groups) = (r == 0, r == p - 1, Vec::new());
    let warmup = (p - 1 - r).min(m);
    let mut communicate = |parts: &[(bool, &str, u32)]| {
        let parts: Vec<String> = parts
            .iter()
            .filter(|(previous, ..)| !if *previous { first } else { last })
            .map(|(_, what, i)| format!("{r}{what}{i}"))
            .collect();
        groups.extend((!parts.is_empty()).then(|| parts.join(" with ")));
    };
    for i in 0..warmup {
        communicate(&[(true, "RECV_F", i)]);
        communicate(&[(false, "SEND_F", i)]);
    }
    if warmup < m {
        communicate(&[(true, "RECV_F", warmup)]);
    }
    for i in 0..m - warmup {
        communicate(&[(false, "SEND_F", warmup + i), (false, "RECV_B", i)]); // send_forward_recv_backward
        if i == m - warmup - 1 {
            communicate(&[(true, "SEND_B", i)]);
        } else {
            communicate(&[(true, "SEND_B", i), (true, "RECV_F", warmup + i + 1)]); // send_backward_recv_forward
        }
    }
    for i in m - warmup..m {
        communicate(&[(false, "RECV_B", i)]);
        communicate(&[(true, "SEND_B", i)]);
    }
    groups
}

#[test]
fn one_f_one_b_is_batched_as_megatron_and_pytorch_batch_it() {
    for p in 2..=8 {
        for m in p..=2 * p + 1 {
            let graph = linear(&one_f_one_b(p, m), m);
            for delivery in PRESETS {
                assert!(
                    (0..p).all(|r| groups(&graph, delivery, r) == as_megatron_sends(r, p, m)),
                    "p={p} m={m} {delivery}"
                );
                assert_eq!(check(&graph, delivery), Ok(()), "p={p} m={m} {delivery}");
            }
        }
    }
    let graph = linear(&one_f_one_b(2, 3), 3);
    let first = ["0SEND_F0", "0SEND_F1 with 0RECV_B0", "0SEND_F2 with 0RECV_B1", "0RECV_B2"];
    assert_eq!(groups(&graph, Delivery::Batched, 0), first);
}

/// Micro-batch and chunk of each virtual micro-batch, as `get_schedule_table` of Megatron-LM lists them.
fn virtual_microbatches(v: u32, m: u32, n: u32) -> Vec<(u32, u32)> {
    let group = |first: u32| (0..v).flat_map(move |chunk| (first..m.min(first + n)).map(move |i| (i, chunk)));
    (0..m).step_by(n as usize).flat_map(group).collect()
}

/// The interleaved schedule in groups of n micro-batches, as `forward_backward_pipelining_with_interleaving` of Megatron-LM runs it.
fn interleaved(p: u32, v: u32, m: u32, n: u32) -> TaskGraph {
    let table = virtual_microbatches(v, m, n);
    let row = |r: u32| {
        let forward = |k: usize| Op::new(Kind::F, table[k].1 * p + r, table[k].0);
        let backward = |k: usize| Op::new(Kind::B, (v - 1 - table[k].1) * p + r, table[k].0);
        let warmup = table.len().min((2 * (p - 1 - r) + (v - 1) * n) as usize);
        let left = table.len() - warmup;
        let steady = (0..left).flat_map(|k| [forward(warmup + k), backward(k)]);
        (0..warmup).map(forward).chain(steady).chain((left..table.len()).map(backward)).collect()
    };
    let rows: Vec<Vec<Op>> = (0..p).map(row).collect();
    TaskGraph::new(schedule(&Placement::looped("loop", p, v), m, &rows)).unwrap()
}

/// What a device of the interleaved schedule, in groups of n micro-batches, sends and receives, by peer's queue, in
/// `forward_backward_pipelining_with_interleaving` of Megatron-LM (core 0.18 to 0.20) with `overlap_p2p_comm`.
fn as_megatron_interleaves(r: u32, p: u32, v: u32, m: u32, n: u32) -> BTreeMap<Holds, Vec<String>> {
    let table = virtual_microbatches(v, m, n);
    let (all, warmup) = (v * m, (2 * (p - 1 - r) + (v - 1) * n).min(v * m));
    let chunk = |k: u32, forward: bool| if forward { table[k as usize].1 } else { v - 1 - table[k as usize].1 };
    let microbatch = |k: u32| table[k as usize].0;
    let mut queues: BTreeMap<Holds, Vec<String>> = BTreeMap::new();
    let mut enter = |sends: bool, next: bool, name: String| {
        let peer = (if next { r + 1 } else { r + p - 1 }) % p;
        let holds = match (p, sends) {
            (2, true) => Holds::SendsTo(peer),
            (2, false) => Holds::ReceivesFrom(peer),
            _ => Holds::Peer(peer),
        };
        queues.entry(holds).or_default().push(name);
    };
    let send = |k: u32, forward: bool, enter: &mut dyn FnMut(bool, bool, String)| {
        let (stage, letter) = (chunk(k, forward) * p + r, if forward { 'F' } else { 'B' });
        if stage != if forward { v * p - 1 } else { 0 } {
            enter(true, forward, format!("{stage}SEND_{letter}{}", microbatch(k)));
        }
    };
    // `recv_tensor_from_previous_stage`: what comes while virtual micro-batch `k` is being done.
    let receive = |k: u32, forward: bool, enter: &mut dyn FnMut(bool, bool, String)| {
        let leads = r == if forward { 0 } else { p - 1 };
        let (from, letter) = (if leads { k.checked_sub(p - 1) } else { Some(k + 1) }, if forward { 'F' } else { 'B' });
        let Some(from) = from.filter(|&from| from < all) else { return };
        let stage = match (leads, forward) {
            (false, _) => chunk(from, forward) * p + r,
            (true, true) if chunk(from, true) == v - 1 => return,
            (true, true) => (chunk(from, true) + 1) * p,
            (true, false) if chunk(from, false) == 0 => return,
            (true, false) => chunk(from, false) * p - 1,
        };
        enter(false, !forward, format!("{stage}RECV_{letter}{}", microbatch(from)));
    };
    if r > 0 {
        enter(false, false, format!("{r}RECV_F0"));
    }
    for k in 0..warmup {
        send(k, true, &mut enter);
        if k < all - 1 {
            receive(k, true, &mut enter);
        }
        if k == warmup - 1 && warmup < all && r < p - 1 {
            enter(false, true, format!("{}RECV_B0", (v - 1) * p + r));
        }
    }
    for k in 0..all - warmup {
        send(warmup + k, true, &mut enter);
        if k < all - warmup - 1 {
            receive(warmup + k, true, &mut enter);
        }
        send(k, false, &mut enter);
        receive(k, false, &mut enter);
    }
    if warmup == all && r < p - 1 {
        enter(false, true, format!("{}RECV_B0", (v - 1) * p + r));
    }
    for k in all - warmup..all {
        send(k, false, &mut enter);
        if k < all - 1 {
            receive(k, false, &mut enter);
        }
    }
    queues
}

#[track_caller]
fn sends_as_megatron(graph: &TaskGraph, p: u32, v: u32, n: u32) {
    let lowering = Lowering::new(graph, Delivery::Megatron);
    let m = graph.schedule().microbatches;
    for r in 0..p {
        let mut expected = as_megatron_interleaves(r, p, v, m, n);
        for queue in lowering.queues().iter().filter(|queue| queue.device == r) {
            let names: Vec<String> = queue.entries.iter().map(|entry| entry.name(graph)).collect();
            assert_eq!(Some(names), expected.remove(&queue.holds), "p={p} v={v} m={m} n={n} r={r}");
        }
        assert!(expected.is_empty());
    }
    assert_eq!(check(graph, Delivery::Megatron), Ok(()), "p={p} v={v} m={m} n={n}");
}

#[test]
fn the_interleaved_schedule_is_sent_as_megatron_sends_it() {
    for (p, v) in (2..=8).flat_map(|p| (2..=4).map(move |v| (p, v))) {
        for m in [p, 2 * p, 3 * p] {
            sends_as_megatron(&graph("interleaved-1f1b", p, m, Some(v)).unwrap(), p, v, p);
        }
    }
}

/// The text whose hash `tests/frameworks/megatron_sends.py` writes for the real Megatron-LM.
fn described(graph: &TaskGraph) -> String {
    let lowering = Lowering::new(graph, Delivery::Megatron);
    let mut text = String::new();
    for device in 0..graph.schedule().devices() {
        let ops: Vec<String> = graph.schedule().program(device).iter().map(Op::to_string).collect();
        text += &format!("{device}: {}\n", ops.join(" "));
        let mut queues = BTreeMap::new();
        for queue in lowering.queues().iter().filter(|queue| queue.device == device) {
            let holds = match queue.holds {
                Holds::SendsTo(peer) => (peer, "sends"),
                Holds::ReceivesFrom(peer) => (peer, "receives"),
                Holds::Peer(peer) => (peer, "both"),
                other => panic!("{other:?}"),
            };
            queues.insert(holds, queue.entries.iter().map(|entry| entry.name(graph)).collect::<Vec<_>>());
        }
        for ((peer, holds), entries) in queues {
            text += &format!("{device} {peer} {holds}: {}\n", entries.join(" "));
        }
    }
    text
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Order of ops, sends and receives, and the verdict, of groups of more than p micro-batches, against the real Megatron-LM.
#[test]
fn groups_of_any_size_are_sent_as_megatron_sends_them() {
    let lines: Vec<&str> = include_str!("../frameworks/megatron-sends.txt").lines().collect();
    let accepted: Vec<&&str> = lines.iter().filter(|line| !line.contains("refused")).collect();
    assert_eq!((lines.len(), accepted.len()), (1800, 648));
    for line in accepted {
        let words: Vec<&str> = line.split(' ').collect();
        let [p, v, m, n] = [0, 1, 2, 3].map(|at| words[at].parse::<u32>().unwrap());
        let graph = interleaved(p, v, m, n);
        assert_eq!(format!("{:016x}", hash(&described(&graph))), words[5], "{line}\n{}", described(&graph));
        assert_eq!(check(&graph, Delivery::Megatron).is_ok(), words[4] == "runs", "{line}");
        sends_as_megatron(&graph, p, v, n);
    }
}

#[test]
fn a_preset_is_what_its_framework_does_with_the_schedule() {
    let on = |delivery: Delivery, graph: &TaskGraph| delivery.on(graph.schedule()).to_string();
    let [batched, megatron, newest, older] = PRESETS;
    for p in 2..=5 {
        for m in 2 * p..=2 * p + 2 {
            let whole = [linear(&one_f_one_b(p, m), m), linear(&gpipe(p, m), m)];
            assert_eq!(whole.each_ref().map(|graph| on(newest, graph)), ["batched", "channel:per-peer"]);
            assert_eq!(whole.each_ref().map(|graph| on(older, graph)), ["batched", "channel"]);
            // one communicator per edge: the batch of 1F1B falls apart
            for per_edge in [PyTorch::PerEdge, PyTorch::PerEdgeDeferred].map(Delivery::PyTorch) {
                assert_eq!(whole.each_ref().map(|graph| on(per_edge, graph)), ["channel:per-direction"; 2]);
            }
            let eager = linear(&one_stage_a_device(p, m, |r| (2 * (p - 1 - r)).min(m)), m);
            for graph in [eager, linear(&zero_bubble(p, m, 1), m)] {
                assert_eq!(
                    [megatron, newest, older].map(|delivery| on(delivery, &graph)),
                    ["batched", "channel:per-peer,front-loaded", "channel:front-loaded"]
                );
            }
        }
        let looped = graph("interleaved-1f1b", p, 2 * p, None).unwrap();
        let ahead = if p == 2 { "channel:per-direction,ahead" } else { "channel:per-peer,ahead" };
        assert_eq!([batched, megatron].map(|delivery| on(delivery, &looped)), ["batched", ahead]);
        assert_eq!(on(newest, &looped), "channel:per-peer,front-loaded");
        let settings = [PyTorch::PerEdge, PyTorch::Deferred, PyTorch::PerEdgeDeferred].map(Delivery::PyTorch);
        assert_eq!(
            settings.map(|delivery| on(delivery, &looped)),
            ["channel:per-direction,front-loaded", "channel:per-peer,deferred", "channel:per-direction,deferred"]
        );
    }
    let dual = graph("dualpipe", 4, 8, None).unwrap();
    assert_eq!(on(megatron, &dual), "channel:per-peer,ahead");
}

/// The library's schedules of whole micro-batches, which devices run.
fn names() -> Vec<String> {
    pipesim::schedules::names_of_whole().into_iter().map(str::to_string).collect()
}

#[test]
fn verdicts_for_all_schedules_are_those_of_the_link() {
    let (mut dice, mut hangs, mut cases) = (Dice(1), 0, 0);
    let mut dead: BTreeMap<(String, Delivery), Vec<u32>> = BTreeMap::new();
    for name in names() {
        for p in 2..=8 {
            // Few and many micro-batches.
            for graph in [p, 2 * p].into_iter().filter_map(|m| graph(&name, p, m, None).ok()) {
                let graph = Arc::new(graph);
                for delivery in PRESETS {
                    let verdict = check(&graph, delivery);
                    let complete = stepped(&graph, delivery, &mut dice).iter().sum::<usize>() == graph.len();
                    assert_eq!(verdict.is_ok(), complete, "{name} p={p} {delivery}");
                    cases += 1;
                    match verdict {
                        Ok(()) if graph.schedule().microbatches > p => {}
                        Ok(()) => execute(&graph, delivery, Duration::from_secs(60)).unwrap(),
                        Err(deadlock) => {
                            let found = dead.entry((name.clone(), delivery)).or_default();
                            if found.is_empty() {
                                let outcome = execute(&graph, delivery, Duration::from_millis(100));
                                assert!(
                                    matches!(outcome, Err(SessionError::Hang { .. })),
                                    "{name} p={p} runs, although {deadlock}"
                                );
                                hangs += 1;
                            }
                            found.push(p);
                        }
                    }
                }
            }
        }
    }
    println!("{cases} cases");
    dead.iter().for_each(|((name, delivery), p)| println!("{name} {delivery} {p:?}"));
    assert!(cases > 1000 && hangs > 5, "{cases} cases, {hangs} hangs");
    let pytorch = dead.keys().filter(|(_, delivery)| matches!(delivery, Delivery::PyTorch(_))).count();
    assert_eq!(pytorch, 0, "PyTorch's order of transfers is the same on all devices");
}

#[test]
fn the_page_lists_what_fails() {
    let page = include_str!("../../docs/src/deliveries.md");
    for delivery in PRESETS {
        let dead = names().into_iter().filter(|name| check(&graph(name, 4, 8, None).unwrap(), delivery).is_err());
        let dead: Vec<String> = dead.collect::<BTreeSet<String>>().into_iter().collect();
        let list = if dead.is_empty() { "none".to_string() } else { dead.join(", ") };
        let row = format!("| `{delivery}` | {list} |");
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn the_text_names_the_groups() {
    // Two forwards ahead of the next stage: the batch's partners are in two batches.
    let graph = graph("zb-h2", 2, 8, None).unwrap();
    let text = check(&graph, Delivery::Batched).unwrap_err().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "under batched delivery the devices wait for one another in a circle:",
            "  device 0, 0SEND_F3 with 0RECV_B1 at the head of its communication queue waits for 1RECV_F3, behind 1SEND_B2 at the head of \
         device 1's communication queue",
            "  device 1, 1SEND_B2 at the head of its communication queue waits for 0RECV_B2, behind 0SEND_F3 with 0RECV_B1 at the head of \
         device 0's communication queue"
        ]
    );
    let options = ChannelOptions { queues: QueueCount::PerDirection, receives: Receives::JustInTime };
    assert_eq!(check(&graph, Delivery::Channel(options)), Ok(()));
}
