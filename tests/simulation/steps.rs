//! Figures of a step and the step ops after its last backward, by hand.

use pipesim::costs::{StepEpilogue, StepOp};
use pipesim::simulation::{Activity, Reference};
use pipesim::{Metrics, Placement};

#[test]
fn two_devices_by_hand() {
    let devices = [(6, 0, 10), (8, 1, 9)].map(|(busy, first_start, last_end)| Activity {
        busy,
        first_start,
        last_end,
        free: last_end,
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
