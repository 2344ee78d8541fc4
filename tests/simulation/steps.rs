//! Figures of a step and the step ops after its last backward, by hand.

use crate::support::{costs_of, graph};
use pipesim::costs::{GradientSync, Mesh, StepCosts, StepEpilogue, StepOp};
use pipesim::graphs::TaskGraph;
use pipesim::simulation::{Activity, Config, Network, Put, Queue, Reference, Span};
use pipesim::{Metrics, Placement, Setup, simulation};
use std::collections::BTreeMap;

#[test]
fn two_devices_by_hand() {
    let devices = [(6, 0, 10), (8, 1, 9)].map(|(busy, first_start, last_end)| Activity {
        busy,
        first_start,
        last_end,
        free: last_end,
        gated: 0,
    });
    let bound = |ticks: u64| Reference { lower_bound: Some(ticks), ..Reference::default() };
    let m = Metrics::new(&devices, &[1.0, 2.0], bound(9), 2.0);
    assert_eq!((m.makespan, m.span, m.ideal, m.bubble), (5.0, 5.0, 4.0, 6.0 / 20.0));
    assert_eq!((m.span_bubble, m.bubble_over_ideal), (0.2, 0.25));
    assert_eq!((m.lower_bound, m.gap_to_bound), (Some(4.5), Some(1.0 / 9.0)));
    assert_eq!(m.per_device[1].idle, 1.0);
    assert_eq!((m.gap(), m.typical_speed), (m.gap_to_bound, None));
    let noisy = Reference { typical_makespan: Some(12), ..bound(8) };
    let noisy = Metrics::new(&devices, &[1.0, 2.0], noisy, 2.0);
    assert_eq!((noisy.gap_to_bound, noisy.gap()), (Some(0.25), Some(0.5)), "a gap is between times at one speed");
    let beaten = Metrics::new(&devices, &[1.0, 2.0], bound(20), 2.0);
    assert_eq!((beaten.lower_bound, beaten.gap_to_bound), (Some(10.0), Some(-0.5)), "a bound is not hidden");
}

fn ops(epilogue: &StepEpilogue, device: u32) -> Vec<&'static str> {
    epilogue.of(device).map(|node| node.op.name()).collect()
}

#[test]
fn a_norm_is_a_barrier_and_the_tied_gradient_waits_for_the_other_end() {
    let epilogue = StepEpilogue::new(&Placement::linear(3), 1, Some([0, 2]), true);
    assert_eq!(ops(&epilogue, 0), ["put", "reduce", "norm", "optimizer"]);
    assert_eq!(ops(&epilogue, 1), ["norm", "optimizer"]);
    let lasts = |number: usize| match epilogue.nodes()[number].op {
        StepOp::Put => (1, 2),
        StepOp::Reduce | StepOp::Norm => (4, 0),
        _ => (10, 0),
    };
    let mut free = [100, 90, 50];
    let times = epilogue.run(&mut free, lasts);
    // device 2 waits for device 0's put, which ends at 101 and arrives at 103; the norm is whole at 111
    let last = |device: u32| {
        let nodes = epilogue.nodes().iter().zip(&times).filter(|(node, _)| node.device == device);
        nodes.map(|(node, &times)| (node.op.name(), times)).collect::<Vec<_>>()
    };
    assert_eq!(last(2), [("put", (50, 51)), ("reduce", (103, 107)), ("norm", (107, 111)), ("optimizer", (111, 121))]);
    assert_eq!(last(1), [("norm", (90, 94)), ("optimizer", (111, 121))]);
    assert_eq!(free, [121, 121, 121]);
}

#[test]
fn stages_that_stand_twice_exchange_their_gradients() {
    let epilogue = StepEpilogue::new(&Placement::bidirectional(4, 1).unwrap(), 1, None, false);
    for device in 0..4 {
        assert_eq!(ops(&epilogue, device), ["put", "put", "reduce", "reduce", "optimizer"]);
        for node in epilogue.of(device).filter(|node| node.op == StepOp::Reduce) {
            let [put] = node.needs[..] else { panic!("{node:?}") };
            assert_eq!(epilogue.nodes()[put].device, 3 - device);
        }
    }
}

#[test]
fn replicas_sum_a_stage_once_all_of_their_parts_have_arrived() {
    let epilogue = StepEpilogue::new(&Placement::linear(2), 2, Some([0, 1]), false);
    for device in 0..2 {
        assert_eq!(ops(&epilogue, device), ["put", "reduce", "put", "reduce", "optimizer"]);
    }
    let mut free = [10, 40];
    let times = epilogue.run(&mut free, |number| match epilogue.nodes()[number].op {
        StepOp::Put => (2, 3),
        _ => (5, 0),
    });
    let of = |device| {
        let nodes = epilogue.nodes().iter().zip(&times);
        nodes.filter(|(node, _)| node.device == device).map(|(_, times)| *times).collect::<Vec<_>>()
    };
    // Replicas are alike: the part of the other replica of device 0 arrives at 12 + 3.
    assert_eq!(of(0), [(10, 12), (15, 20), (20, 22), (55, 60), (60, 65)]);
    assert_eq!(of(1), [(40, 42), (45, 50), (50, 52), (52, 57), (57, 62)]);
}

#[test]
fn replicas_of_two_directions_are_one_group() {
    let epilogue = StepEpilogue::new(&Placement::bidirectional(4, 1).unwrap(), 2, None, false);
    for device in 0..4 {
        assert_eq!(ops(&epilogue, device), ["put", "put", "reduce", "reduce", "optimizer"]);
        for node in epilogue.of(device).filter(|node| node.op == StepOp::Reduce) {
            let mut holders: Vec<u32> = node.needs.iter().map(|&put| epilogue.nodes()[put].device).collect();
            holders.sort_unstable();
            assert_eq!(holders, [device.min(3 - device), device.max(3 - device)]);
        }
    }
}

#[test]
fn without_norm_or_exchange_devices_end_on_their_own() {
    let epilogue = StepEpilogue::optimizers(2);
    let mut free = [5, 9];
    let times = epilogue.run(&mut free, |_| (3, 0));
    assert_eq!((times, free), (vec![(5, 8), (9, 12)], [8, 12]));
}

/// Two replicas that share the optimizer, or not.
fn replicated(graph: &TaskGraph, zero: bool) -> StepEpilogue {
    let placement = &graph.schedule().placement;
    StepEpilogue::on_mesh(placement, Mesh { zero, ..Mesh::new(1, 2) }, None, true)
}

#[test]
fn replicas_that_share_the_optimizer_gather_parameters_after_it() {
    let graph = graph("1f1b", 2, 4, None).unwrap();
    let epilogue = replicated(&graph, true);
    for device in 0..2 {
        assert_eq!(ops(&epilogue, device), ["put", "reduce", "norm", "optimizer", "put values", "gather"]);
    }
    assert_eq!(epilogue.begun_early(&graph).0.nodes().iter().filter(|node| node.behind.is_some()).count(), 0);
}

/// The schedules whose devices have two stages, so that one of them is complete before the device is done.
fn with_two_stages() -> Vec<TaskGraph> {
    let cases = [("interleaved-1f1b", 2, 4), ("interleaved-1f1b", 4, 8), ("interleaved-zb", 4, 8), ("zb-v", 4, 8)];
    cases.into_iter().map(|(name, p, m)| graph(name, p, m, (name != "zb-v").then_some(2)).unwrap()).collect()
}

/// A part is put right behind the last op that adds to it, and the others are added before the device next waits for another one.
#[test]
fn sums_begin_behind_the_last_backward_of_their_stage() {
    let mut early = 0;
    for graph in with_two_stages() {
        let (epilogue, _) = replicated(&graph, false).begun_early(&graph);
        let schedule = graph.schedule();
        for node in epilogue.nodes() {
            let [GradientSync::Stage(chunk)] = node.gradients[..] else { continue };
            let range = schedule.range(node.device);
            let at = node.behind.unwrap_or(range.end - 1);
            let adds = |&index: &usize| {
                let op = graph.op(index);
                op.stage() == chunk.stage && matches!(op.kind().letter(), 'W' | 'B')
            };
            let last = range.clone().rfind(adds).unwrap();
            match node.op {
                StepOp::Put => assert_eq!(at, last, "{}", schedule.name),
                _ => {
                    let waits = (last + 1..range.end).find(|&index| graph.transfer(index).is_some());
                    assert_eq!(at, waits.map_or(range.end - 1, |index| index - 1), "{}", schedule.name);
                }
            }
            early += usize::from(node.behind.is_some());
        }
        // The nodes of a device are in the order in which they run.
        for device in 0..schedule.devices() {
            let places: Vec<usize> = epilogue.of(device).map(|node| node.behind.unwrap_or(usize::MAX)).collect();
            assert!(places.is_sorted(), "{places:?}");
        }
    }
    assert!(early >= 16, "only {early}");
    let both = graph("dualpipe", 4, 8, None).unwrap();
    assert!(replicated(&both, false).begun_early(&both).0.nodes().iter().all(|node| node.behind.is_none()));
}

/// The simulation runs sums between ops: nothing overlaps on a device, a sum follows its stage and holds up what is behind it, and all
/// engines agree.
#[test]
fn devices_do_one_thing_at_a_time_while_they_sum() {
    for graph in with_two_stages() {
        let name = &graph.schedule().name;
        let costs = costs_of(&graph, "F=10,I=10,W=10,comm=1");
        let ticks = costs.units.ticks_per_unit as u64;
        let steps = StepCosts::new(replicated(&graph, true), |node| match node.op {
            StepOp::Put => (3 * ticks, ticks),
            StepOp::Reduce => (5 * ticks, 0),
            _ => (2 * ticks, ticks),
        });
        let late = simulation::predict(&graph, &costs, &Setup { steps: steps.clone(), ..Setup::default() }).unwrap();
        let (makespan, iteration) = (late.metrics().makespan, late.prediction.iteration.unwrap());
        let (costs, steps) = steps.begun_early(&graph, costs.clone());
        let predicted = |machine| {
            let setup = Setup { steps: steps.clone(), machine, ..Setup::default() };
            simulation::predict(&graph, &costs, &setup).unwrap()
        };
        let early = predicted(None);
        let timeline = early.timeline();
        let mut by_device: BTreeMap<u32, Vec<&Span>> = BTreeMap::new();
        for span in timeline.spans.iter().filter(|span| span.queue == Queue::Compute) {
            by_device.entry(span.device).or_default().push(span);
        }
        for (device, mut spans) in by_device {
            spans.sort_by_key(|span| (span.start_ns, span.end_ns));
            assert!(spans.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns), "{name}, device {device}");
            let of = |op: &str| spans.iter().filter(|span| span.op == op).count();
            assert_eq!([of("put"), of("reduce"), of("put values"), of("gather")], [2; 4], "{name}, device {device}");
            let early = spans.iter().position(|span| span.op == "put").unwrap();
            assert!(spans[early + 1..].iter().any(|span| span.op.contains(['B', 'W', 'I'])), "{name}, device {device}");
        }
        // What a device sums early it need not sum at the end. At worst the sum of one stage, 3 + 1 + 5, holds up others.
        let (of_early, early_makespan) = (early.prediction.iteration.unwrap(), early.metrics().makespan);
        println!("{name}: {of_early} early, {iteration} late");
        assert!(of_early <= iteration + 9.0 && early_makespan >= makespan, "{name}: {of_early}, {iteration}");
        for machine in [
            Config { slots: Some(u32::MAX), ..Config::default() },
            Config { network: Network { put: Put::Holding, ..Network::default() }, ..Config::default() },
        ] {
            let holding = machine.network.put == Put::Holding;
            let other = predicted(Some(machine)).metrics().makespan;
            assert!(
                other == early.metrics().makespan || holding && other >= early.metrics().makespan,
                "{name}: {other}"
            );
        }
    }
}

#[test]
fn workers_of_one_stage_are_numbered_by_worker() {
    use pipesim::internals::epilogue::group_member;
    let line = Placement::linear(2);
    let mesh = Mesh::new(2, 3);
    for worker in 0..mesh.world(2) {
        assert_eq!(group_member(&line, mesh, worker), (mesh.coordinate(worker).data, 3));
    }
    let both = Placement::bidirectional(4, 1).unwrap();
    let members: Vec<u32> = (0..8).map(|worker| group_member(&both, Mesh::new(1, 2), worker).0).collect();
    assert_eq!(members, [0, 1, 0, 1, 2, 3, 2, 3]);
}
