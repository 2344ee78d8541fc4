//! The checker's verdicts against a cycle search on the graph of all waits, against the link's own queues stepped by hand, and
//! against sessions of real threads.

use crate::support::{
    Dice, cells, golden_json, gpipe, graph_of, one_f_one_b, order, random_rows, schedule, zero_bubble,
};
use petgraph::visit::{EdgeRef, IntoEdgeReferences};
use pipesim::costs::Mesh;
use pipesim::graphs::{Awaited, Party, fewest_slots, standard_deliveries};
use pipesim::internals::communicators::rounds as communicator_rounds;
use pipesim::internals::exec::{Device, Host, Settings, Shared, Sizes, start_session};
use pipesim::internals::lowering::{Entry, Lowering};
use pipesim::schedules::{PyTorch, QueueCount, Receives};
use pipesim::training::{Batch, PartTiming, Ranks, SessionError, State};
use pipesim::{ChannelOptions, Deadlock, Delivery, Kind, Op, Overlap, Placement, Schedule, TaskGraph, check};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

fn channel(queues: QueueCount, receives: Receives) -> Delivery {
    Delivery::Channel(ChannelOptions { queues, receives })
}

/// A schedule on a linear placement from the rows' texts.
fn linear(rows: &[&str]) -> TaskGraph {
    let placement = Placement::linear(rows.len() as u32);
    let microbatches = cells(rows[0], &placement, 1).iter().map(|op| op.microbatch() + 1).max().unwrap();
    graph_of(placement, microbatches, rows, Overlap::Atomic)
}

/// Small schedules from the library.
fn library() -> Vec<Schedule> {
    let names = ["zb-v", "zb-h2", "interleaved-1f1b", "looped-bfs", "dualpipe", "dualpipe-v"];
    let mut schedules = Vec::new();
    for (name, p, m) in names.iter().flat_map(|name| (2..=4).flat_map(move |p| (2..=4).map(move |m| (name, p, m)))) {
        schedules.extend(order(name, p, m, None).ok().map(|order| order.fixed().unwrap()));
    }
    assert!(schedules.len() > 30);
    schedules
}

/// A schedule that runs, under one-sided delivery at least, to begin with.
fn base(library: &[Schedule], dice: &mut Dice) -> (Placement, u32, Vec<Vec<Op>>) {
    let (p, m, split) = (2 + dice.below(3) as u32, 1 + dice.below(4) as u32, dice.below(2) == 1);
    let line = Placement::linear(p);
    match dice.below(10) {
        7.. => {
            let schedule = &library[dice.below(library.len())];
            let rows = (0..schedule.devices()).map(|device| schedule.program(device).to_vec()).collect();
            (schedule.placement.clone(), schedule.microbatches, rows)
        }
        0 => (line, m, gpipe(p, m)),
        1 | 2 => (line, m, if split { zero_bubble(p, m, 1) } else { one_f_one_b(p, m) }),
        kind => {
            let placement = match kind {
                3 => line,
                4 => Placement::looped("loop", p, 2),
                5 => Placement::zigzag("V", p, 2),
                _ => Placement::bidirectional(2 * (p / 2), 1).unwrap(),
            };
            let pairs = dice.below(3) == 0;
            let rows = random_rows(&placement, m, (u32::MAX, pairs), |_, _| split, &mut |n| dice.below(n)).unwrap();
            (placement, m, rows)
        }
    }
}

/// Swaps neighbours or moves an op, leaving pairs alone.
fn mutate(rows: &mut [Vec<Op>], dice: &mut Dice) {
    let row = dice.below(rows.len());
    let row = &mut rows[row];
    let (from, distance) = (dice.below(row.len()), dice.below(5));
    let op = row.remove(from);
    row.insert((from + distance).saturating_sub(2).min(row.len()), op);
}

/// Valid mutated schedules that have no cycle of their own, `count` of them, and how many were refused for one.
fn mutated(count: usize, seed: u64) -> (Vec<Arc<TaskGraph>>, usize) {
    let (library, mut dice, mut graphs, mut cycles) = (library(), Dice(seed), Vec::new(), 0);
    while graphs.len() < count {
        let (placement, m, mut rows) = base(&library, &mut dice);
        for _ in 0..dice.below(6) {
            mutate(&mut rows, &mut dice);
        }
        let schedule = schedule(&placement, m, &rows);
        if schedule.validate().is_err() {
            continue;
        }
        match TaskGraph::with_overlap(schedule, Overlap::ALL[dice.below(4)]) {
            Ok(graph) => graphs.push(Arc::new(graph)),
            Err(_) => cycles += 1,
        }
    }
    (graphs, cycles)
}

/// Whether the waits form a cycle once those of the queues are added to the task graph's: an op's start and end are nodes, a transfer is
/// one node for both its sides; a group of a queue begins and is done.
fn has_cycle(graph: &TaskGraph, delivery: Delivery) -> bool {
    let n = graph.len();
    let (start, end, transfer) = (|i: usize| i, move |i: usize| n + i, move |i: usize| 2 * n + i);
    let mut waits = petgraph::Graph::<(), ()>::new();
    let nodes: Vec<_> = (0..9 * n).map(|_| waits.add_node(())).collect();
    let mut edge = |from: usize, to: usize| {
        waits.add_edge(nodes[from], nodes[to], ());
    };
    let last = |i: usize| graph.pair(i).map_or(i, |(_, second)| second);
    let together = graph.overlap() != Overlap::Runtime;
    let starts_with = |i: usize| graph.pair(i).filter(|_| together).map_or(i, |(first, _)| first);
    (0..n).for_each(|i| edge(start(i), end(i)));
    for wait in graph.edge_references() {
        edge(end(wait.source()), start(wait.target()));
    }
    if delivery != Delivery::OneSided {
        for (i, user) in (0..n).filter_map(|i| Some((i, graph.consumer(i)?))) {
            edge(end(last(i)), transfer(i));
            edge(transfer(i), start(starts_with(user)));
        }
    }
    let (lowering, mut groups) = (Lowering::new(graph, delivery), 3 * n);
    for queue in lowering.queues() {
        for number in 0..queue.groups() {
            let (begins, done) = (groups, groups + 1);
            groups += 2;
            for entry in queue.group(number) {
                edge(begins, transfer(entry.message()));
                edge(transfer(entry.message()), done);
                match graph.consumer(entry.message()).filter(|_| entry.is_receive()) {
                    Some(user) => edge(done, start(starts_with(user))),
                    None => edge(end(last(entry.message())), begins),
                }
            }
            if number > 0 {
                edge(begins - 1, begins);
            }
        }
    }
    if let Some(slots) = lowering.slots() {
        let channel = |i: usize| (graph.op(i).kind() == Kind::F, graph.op(i).stage(), graph.op(i).direction());
        let (mut sent, mut used) = (BTreeMap::<_, Vec<usize>>::new(), BTreeMap::<_, Vec<usize>>::new());
        for user in 0..n {
            if let Some(maker) = graph.transfer(user) {
                used.entry(channel(maker)).or_default().push(user);
            }
            if graph.consumer(user).is_some_and(|other| graph.transfer(other).is_some()) {
                sent.entry(channel(user)).or_default().push(user);
            }
        }
        for (channel, sent) in sent {
            // However the slots are dealt, message k + n finds one once n messages were used.
            let used = &used[&channel];
            sent.iter().skip(slots as usize).zip(used).for_each(|(&maker, &user)| edge(end(user), transfer(maker)));
        }
    }
    petgraph::algo::is_cyclic_directed(&waits)
}

/// The link's queues under devices that take turns at random: how far each device comes in a step.
pub fn stepped(graph: &TaskGraph, delivery: Delivery, dice: &mut Dice) -> Vec<usize> {
    let (schedule, shared) = (graph.schedule(), shared(&Arc::new(graph.clone()), settings(delivery, Duration::MAX)));
    let crosses = |message: &usize| graph.consumer(*message).is_some_and(|user| graph.transfer(user).is_some());
    let together = graph.overlap() != Overlap::Runtime;
    let mut arrived: BTreeMap<usize, u64> = BTreeMap::new();
    let mut next = Vec::new();
    for step in 0..2 {
        next = (0..schedule.devices()).map(|device| schedule.range(device).start).collect();
        loop {
            let can_go = |device: &u32| {
                let index = next[*device as usize];
                if index == schedule.range(*device).end {
                    return false;
                }
                let last = graph.pair(index).filter(|_| together).map_or(index, |(_, second)| second);
                let mut inputs = (index..=last).filter_map(|op| graph.upstream(op)).filter(crosses);
                inputs.all(|input| arrived.get(&input) > Some(&step))
            };
            let ready: Vec<u32> = (0..schedule.devices()).filter(can_go).collect();
            if ready.is_empty() {
                break;
            }
            let device = ready[dice.below(ready.len())];
            let index = next[device as usize];
            next[device as usize] += 1;
            let mut come = |messages: Vec<(usize, u64)>| {
                messages.into_iter().for_each(|(message, step)| {
                    assert_eq!(
                        arrived.insert(message, step + 1).unwrap_or(0),
                        step,
                        "each message arrives once a step"
                    );
                });
            };
            if let Some(input) = graph.upstream(index).filter(crosses) {
                come(shared.release(device, input).unwrap().unwrap_or_default());
            }
            if graph.pair(index).is_some_and(|(first, _)| first == index) {
                continue;
            }
            for op in graph.pair(index).map_or(index, |(first, _)| first)..=index {
                if crosses(&op) {
                    come(shared.post(device, op).unwrap().unwrap_or_else(|| vec![(op, step)]));
                }
            }
        }
        if next.iter().zip(0..).any(|(&next, device)| next < schedule.range(device).end) {
            break;
        }
    }
    next.iter().zip(0..).map(|(next, device)| next - schedule.range(device).start).collect()
}

/// The verdict under each of the standard deliveries.
fn survives(graph: &TaskGraph) -> Vec<(Delivery, Result<(), Deadlock>)> {
    let deferred = [PyTorch::Deferred, PyTorch::PerEdgeDeferred].map(Delivery::PyTorch);
    standard_deliveries().into_iter().chain(deferred).map(|delivery| (delivery, check(graph, delivery))).collect()
}

/// Each party of the circle stands where the stepped devices stand, and waits for what the next party would have to do.
fn is_a_circle(graph: &TaskGraph, delivery: Delivery, deadlock: &Deadlock, stands: &[usize]) {
    let lowering = Lowering::new(graph, delivery);
    for (number, wait) in deadlock.waits.iter().enumerate() {
        let next = &deadlock.waits[(number + 1) % deadlock.waits.len()].party;
        assert_eq!(wait.on, *next, "{deadlock}");
        if let Party::Device { device, number, op: Some(op) } = wait.party {
            assert_eq!((stands[device as usize], graph.schedule().program(device)[number]), (number, op));
        }
        match (&wait.awaited, next) {
            (Awaited::Op(op) | Awaited::Slot(op), Party::Device { device, number, .. }) => {
                assert!(graph.schedule().program(*device)[number.saturating_sub(1)..].contains(op), "{deadlock}");
            }
            (Awaited::Entry(entry), Party::Queue { device, queue, head }) => {
                let queue = lowering.queues().iter().find(|q| q.device == *device && q.name() == *queue).unwrap();
                let at = |name: &String| queue.entries.iter().position(|&e: &Entry| e.name(graph) == *name);
                let heads: Vec<String> = head.split(" with ").map(String::from).collect();
                assert!(heads.contains(entry) || at(&heads[0]).unwrap() < at(entry).unwrap(), "{deadlock}");
            }
            other => panic!("{other:?} in {deadlock}"),
        }
    }
}

/// Passes of a shared vocabulary wait for all devices, under every delivery. Megatron-LM and PyTorch have none.
#[test]
fn verdicts_on_a_shared_vocabulary_are_those_of_a_cycle_search() {
    let (mut dice, mut dead, mut proven, mut cycles) = (Dice(5), 0, 0, 0);
    let sizes = [(2, 3, 1), (3, 3, 1), (4, 5, 1), (3, 4, 2), (4, 4, 2)];
    for (p, m, barriers) in sizes.into_iter().flat_map(|size| std::iter::repeat_n(size, 30)) {
        let name = format!("1f1b-vocab barriers={barriers}");
        let whole = order(&name, p, m, None).unwrap().fixed().unwrap();
        let mut rows: Vec<Vec<Op>> = (0..p).map(|device| whole.program(device).to_vec()).collect();
        (0..dice.below(5)).for_each(|_| mutate(&mut rows, &mut dice));
        let changed = schedule(&whole.placement, m, &rows);
        let Some(changed) = changed.validate().is_ok().then_some(changed) else { continue };
        let Ok(graph) = TaskGraph::new(changed) else {
            cycles += 1;
            continue;
        };
        for (delivery, verdict) in survives(&graph) {
            assert_eq!(verdict.is_err(), has_cycle(&graph, delivery), "{delivery}: {:?}", graph.schedule());
            (dead, proven) = (dead + usize::from(verdict.is_err()), proven + usize::from(verdict.is_ok()));
            let is_framework = matches!(delivery, Delivery::PyTorch(_) | Delivery::Megatron);
            assert_eq!(delivery.refuses(graph.schedule()).is_some(), is_framework, "{delivery}");
        }
    }
    assert!(dead > 100 && proven > 100 && cycles > 5, "{dead} {proven} {cycles}");
}

#[test]
fn verdicts_are_those_of_a_cycle_search_and_of_the_links_queues() {
    let (graphs, cycles) = mutated(2500, 1);
    assert!(cycles > 100, "mutation must be able to break a schedule");
    let mut dice = Dice(2);
    let mut dead = BTreeMap::new();
    for graph in &graphs {
        for (delivery, verdict) in survives(graph) {
            assert_eq!(verdict.is_err(), has_cycle(graph, delivery), "{delivery}: {:?}", graph.schedule());
            let stands = stepped(graph, delivery, &mut dice);
            let complete = stands.iter().sum::<usize>() == graph.len();
            assert_eq!(verdict.is_ok(), complete, "{delivery}: {:?}", graph.schedule());
            *dead.entry(delivery).or_insert(0) += usize::from(!complete);
            if let Err(deadlock) = verdict {
                is_a_circle(graph, delivery, &deadlock, &stands);
            }
        }
    }
    for (delivery, dead) in &dead {
        println!("{delivery}: {dead} of {} deadlock", graphs.len());
        // PyTorch's lowering keeps all lists in one global order of transfers, so no circle can close.
        let never = matches!(
            delivery,
            Delivery::OneSided
                | Delivery::PyTorch(PyTorch::Newest | PyTorch::PerEdge)
                | Delivery::Channel(ChannelOptions { receives: Receives::FrontLoaded, .. })
        );
        // What moves the receives back may bring circles back; how many is no promise.
        let is_open = matches!(delivery, Delivery::PyTorch(PyTorch::PerEdgeDeferred));
        assert!(is_open || if never { *dead == 0 } else { *dead > 20 }, "{delivery}: {dead} deadlocks");
    }
}

#[test]
fn fewest_slots_is_the_least_that_survives() {
    let (graphs, _) = mutated(300, 3);
    for graph in graphs {
        let verdicts: Vec<bool> =
            (1..=graph.schedule().microbatches).map(|k| check(&graph, Delivery::Buffered(k)).is_ok()).collect();
        assert_eq!(verdicts.iter().position(|&survives| survives).unwrap() as u32 + 1, fewest_slots(&graph));
        assert!(verdicts.is_sorted(), "more slots never hurt");
    }
}

/// A device whose ops say who they are and look who is handed to them.
struct Courier {
    stages: u32,
    step: u32,
}

impl Courier {
    /// The output of an op of `stage` in this step, the same for I and B.
    fn message(&self, op: Op, stage: u32) -> f32 {
        let forward = u32::from(op.kind() == Kind::F);
        ((((self.step * 2 + forward) * 2 + op.direction()) * 64 + stage) * 64 + op.microbatch()) as f32
    }
}

impl Device for Courier {
    fn begin(&mut self, _: &Arc<Batch>, _: bool) -> anyhow::Result<()> {
        self.step += 1;
        Ok(())
    }
    fn compute(
        &mut self,
        op: Op,
        input: Option<&[f32]>,
        output: Option<&mut [f32]>,
        _: &mut Vec<PartTiming>,
    ) -> anyhow::Result<()> {
        let expected = op.upstream(self.stages).map(|stage| self.message(op, stage));
        anyhow::ensure!(input.map(|data| data[0]) == expected, "{op} is handed what is not its own");
        output.into_iter().for_each(|data| data.fill(self.message(op, op.stage())));
        Ok(())
    }
}

impl State for Courier {}

fn settings(delivery: Delivery, timeout: Duration) -> Settings {
    Settings { pin: false, spin: Duration::from_micros(5), timeout, delivery, mesh: Mesh::default() }
}

/// What threads that execute `graph` share.
fn shared(graph: &Arc<TaskGraph>, settings: Settings) -> Arc<Shared> {
    let sizes = Sizes { hidden: size_of::<f32>(), ..Sizes::default() };
    Arc::new(Shared::new(graph.clone(), &sizes, &settings, Ranks::alone()).unwrap())
}

/// Five steps on real threads, four of them without a barrier between.
pub fn execute(graph: &Arc<TaskGraph>, delivery: Delivery, timeout: Duration) -> Result<(), SessionError> {
    let stages = graph.schedule().placement.stages();
    let settings = settings(delivery, timeout);
    let shared = shared(graph, settings);
    let host = |device| Host::runner(device, Box::new(Courier { stages, step: 0 }), &shared, None).unwrap();
    let hosts = (0..graph.schedule().devices()).map(host).collect();
    let mut session = start_session(shared.clone(), hosts, settings).unwrap();
    let batch = Arc::default();
    session.step(&batch, None)?;
    session.row(&vec![(batch, None); 4]).map(|_| ())
}

#[test]
fn threads_finish_where_the_checker_says_so() {
    let (graphs, _) = mutated(300, 4);
    let mut runs = 0;
    for graph in &graphs {
        for delivery in standard_deliveries().into_iter().filter(|&delivery| check(graph, delivery).is_ok()) {
            execute(graph, delivery, Duration::from_secs(20)).unwrap();
            runs += 1;
        }
    }
    assert!(runs > 1500, "{runs} runs");
}

#[test]
fn threads_hang_where_the_checker_says_so_and_the_watchdog_names_the_circle() {
    let (graphs, _) = mutated(500, 5);
    let mut left: BTreeMap<Delivery, usize> = standard_deliveries().into_iter().map(|delivery| (delivery, 8)).collect();
    let mut hangs = 0;
    for graph in &graphs {
        for (delivery, left) in left.iter_mut().filter(|(_, left)| **left > 0) {
            let Err(deadlock) = check(graph, *delivery) else { continue };
            (*left, hangs) = (*left - 1, hangs + 1);
            let hang = |milliseconds| match execute(graph, *delivery, Duration::from_millis(milliseconds)) {
                Err(SessionError::Hang { report, .. }) => report,
                _ => panic!("{delivery}: {:?} ran to its end, although {deadlock}", graph.schedule()),
            };
            let names_all = |report: &str| deadlock.waits.iter().all(|wait| report.contains(&wait.party.to_string()));
            // on a busy machine devices may not have come so far
            let report = Some(hang(200)).filter(|report| names_all(report)).unwrap_or_else(|| hang(5000));
            assert!(names_all(&report), "{report}{deadlock}");
        }
    }
    assert_eq!(hangs, 7 * 8, "seven deliveries can deadlock");
}

#[test]
fn one_f_one_b_blocks_itself_on_one_queue_but_not_on_two() {
    // Narayanan et al. 2021: the steady state's send and receive must be issued together (Megatron's
    // send_forward_recv_backward), or both neighbours wait in their sends.
    for p in 2..=4 {
        for m in 2..=4 {
            let graph = TaskGraph::new(schedule(&Placement::linear(p), m, &one_f_one_b(p, m))).unwrap();
            for (delivery, verdict) in survives(&graph) {
                let blocks = delivery == channel(QueueCount::One, Receives::JustInTime)
                    || delivery == channel(QueueCount::PerPeer, Receives::JustInTime);
                assert_eq!(verdict.is_err(), blocks, "p={p} m={m} {delivery}");
            }
            assert_eq!(fewest_slots(&graph), 1);
        }
    }
}

#[test]
fn a_ring_of_three_blocks_on_one_queue_a_device_but_not_on_one_a_peer() {
    // Looped breadth-first (Lamy-Poirier 2022) on stages 0 to 5 of three devices: each device still sends its first chunk's
    // outputs when the ring brings it the inputs of its second.
    let placement = Placement::looped("loop", 3, 2);
    let row = |r: u32| {
        let of = |kind| (0..4).map(move |i| move |stage| Op::new(kind, stage, i));
        let forward = [r, r + 3].into_iter().flat_map(move |stage| of(Kind::F).map(move |op| op(stage)));
        forward.chain([r + 3, r].into_iter().flat_map(move |stage| of(Kind::B).map(move |op| op(stage)))).collect()
    };
    let rows: Vec<Vec<Op>> = (0..3).map(row).collect();
    let graph = TaskGraph::new(schedule(&placement, 4, &rows)).unwrap();
    let deadlock = check(&graph, channel(QueueCount::One, Receives::JustInTime)).unwrap_err();
    let devices: BTreeSet<u32> = deadlock.waits.iter().map(|wait| wait.party.device()).collect();
    assert_eq!(devices, BTreeSet::from([0, 1, 2]), "{deadlock}");
    assert!(check(&graph, channel(QueueCount::PerPeer, Receives::JustInTime)).is_ok());
}

#[test]
fn gpipe_runs_under_every_delivery() {
    for p in 1..=5 {
        for m in 1..=5 {
            let graph = TaskGraph::new(schedule(&Placement::linear(p), m, &gpipe(p, m))).unwrap();
            assert!(survives(&graph).iter().all(|(_, verdict)| verdict.is_ok()), "p={p} m={m}");
        }
    }
}

#[test]
fn the_text_closes_the_circle() {
    let graph = linear(&["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]);
    let text = check(&graph, Delivery::Channel(ChannelOptions::default())).unwrap_err().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "under channel delivery the devices wait for one another in a circle:");
    assert_eq!(
        lines[1..3],
        [
            "  device 0, 0SEND_F1 at the head of its communication queue waits for 1RECV_F1, behind 1SEND_B0 at the head of \
             device 1's communication queue",
            "  device 1, 1SEND_B0 at the head of its communication queue waits for 0RECV_B0, behind 0SEND_F1 at the head of \
             device 0's communication queue"
        ]
    );
    assert!(text.contains("<-- here"), "{text}");
    // Two messages for one slot, and the second is wanted first.
    let graph = linear(&["0F0 0F1 0B1 0B0", "1F1 1B1 1F0 1B0"]);
    let text = check(&graph, Delivery::Buffered(1)).unwrap_err().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "under buffered(1) delivery the devices wait for one another in a circle:");
    assert_eq!(
        lines[1..3],
        [
            "  device 1 at op number 0 (1F1) waits for 0SEND_F1, at the head of device 0's communication queue",
            "  device 0, 0SEND_F1 at the head of its communication queue waits for a free slot of its channel; the next is \
             freed by 1F0, which stands later on device 1"
        ]
    );
    assert_eq!(fewest_slots(&graph), 2);
}

#[test]
fn receives_are_loaded_as_pytorch_lowers_them() {
    // `_add_send_recv` on 1F1B, p = 2, m = 3, by hand: the devices take turns, an op each, and each send puts the receive
    // into the other's list at once.
    let graph = linear(&["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]);
    let names = |delivery| -> Vec<Vec<String>> {
        let lowering = Lowering::new(&graph, delivery);
        lowering.queues().iter().map(|queue| queue.entries.iter().map(|entry| entry.name(&graph)).collect()).collect()
    };
    let front = names(channel(QueueCount::One, Receives::FrontLoaded));
    assert_eq!(front[0], ["0SEND_F0", "0SEND_F1", "0RECV_B0", "0SEND_F2", "0RECV_B1", "0RECV_B2"]);
    assert_eq!(front[1], ["1RECV_F0", "1RECV_F1", "1SEND_B0", "1RECV_F2", "1SEND_B1", "1SEND_B2"]);
    let late = names(channel(QueueCount::One, Receives::JustInTime));
    assert_eq!(late[1], ["1RECV_F0", "1SEND_B0", "1RECV_F1", "1SEND_B1", "1RECV_F2", "1SEND_B2"]);
    let split = names(channel(QueueCount::PerDirection, Receives::JustInTime));
    assert_eq!(split[0], ["0SEND_F0", "0SEND_F1", "0SEND_F2"]);
    assert_eq!(split[3], ["1RECV_F0", "1RECV_F1", "1RECV_F2"]);
    assert_eq!(names(Delivery::Buffered(1))[0], ["0SEND_F0", "0SEND_F1", "0SEND_F2"]);
    assert!(names(Delivery::OneSided).is_empty());
}

/// The program of pytorch/pytorch issue 172668 under `defer_pp_recv`, by hand: the lower device posts what it has passed before each send,
/// the higher one receives just before use. On one queue per peer that is the deadlock that the thread reports, on one per edge it runs.
#[test]
fn deferred_receives_need_a_communicator_per_edge() {
    let rows = ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"];
    let graph = graph_of(Placement::looped("loop", 2, 2), 2, &rows, Overlap::Atomic);
    let lowering = Lowering::new(&graph, "channel:deferred".parse().unwrap());
    let name = |entry: &Entry| entry.name(&graph);
    let queues: Vec<String> =
        lowering.queues().iter().map(|queue| queue.entries.iter().map(name).collect::<Vec<_>>().join(" ")).collect();
    let by_hand = [
        "0SEND_F0 2RECV_F0 0SEND_F1 2RECV_F1 2SEND_F0 2SEND_F1 2RECV_B0 2SEND_B0 2RECV_B1 2SEND_B1 0RECV_B0 0RECV_B1",
        "1RECV_F0 1SEND_F0 1RECV_F1 1SEND_F1 3RECV_F0 3SEND_B0 3RECV_F1 3SEND_B1 1RECV_B0 1SEND_B0 1RECV_B1 1SEND_B1",
    ];
    assert_eq!(queues, by_hand);
    let verdict = |text: &str| check(&graph, text.parse().unwrap());
    let report = verdict("pytorch:deferred").unwrap_err().to_string();
    assert!(report.contains("2SEND_F1") && report.contains("3SEND_B0"), "{report}");
    assert_eq!(verdict("pytorch:per-edge,deferred"), Ok(()));
}

/// `_directed_edge_split_rounds` of torch 2.15.
#[test]
fn communicators_are_created_in_pytorchs_rounds() {
    let golden = golden_json("slices/p2p-edges.json");
    for case in golden["cases"].as_array().unwrap() {
        let numbers =
            |value: &serde_json::Value| value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect();
        let device_of: Vec<u32> = numbers(&case["device_of_stage"]);
        let placement = Placement::new("any", case["p"].as_u64().unwrap() as u32, device_of).unwrap();
        let rounds: Vec<Vec<Vec<u32>>> = case["rounds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|round| round.as_array().unwrap().iter().map(numbers).collect())
            .collect();
        let found: Vec<Vec<Vec<u32>>> = communicator_rounds(&placement)
            .iter()
            .map(|round| round.iter().map(|edge| edge.to_vec()).collect())
            .collect();
        assert_eq!(found, rounds, "{case}");
    }
}
