//! Steps that follow each other without a barrier, against closed forms and the zero-bubble paper's claim.

use crate::support::{costs_of, graph};
use pipesim::costs::{StepCosts, StepEpilogue, StepOp};
use pipesim::simulation::{Config, Processor};
use pipesim::{Placement, PredictionFigures, Setup, simulation};

/// A schedule at F = I = W = 1, whose devices' optimizers last so many units; devices meet for a norm or not.
fn predicted(
    name: &str,
    (p, m): (u32, u32),
    optimizers: &[u64],
    norm: bool,
    machine: Option<Config>,
) -> PredictionFigures {
    let graph = graph(name, p, m, None).unwrap();
    let costs = costs_of(&graph, "F=1,I=1,W=1");
    let epilogue = StepEpilogue::new(&Placement::linear(p), 1, None, norm);
    let steps = StepCosts::new(epilogue, |node| match node.op {
        StepOp::Optimizer => ((optimizers[node.device as usize] as f64 * costs.units.ticks_per_unit) as u64, 0),
        _ => (0, 0),
    });
    simulation::predict(&graph, &costs, &Setup { steps, machine, ..Setup::default() }).unwrap().prediction
}

fn times(name: &str, pm: (u32, u32), optimizers: &[u64], norm: bool) -> (f64, f64) {
    let prediction = predicted(name, pm, optimizers, norm, None);
    (prediction.iteration.unwrap(), prediction.period.unwrap())
}

/// 1F1B's first device is the first to begin and the last to end: its own optimizer delays the next step, nobody else's does
/// until it lasts longer than that device waits anyhow, for the last backwards to go down and the next forwards to come up.
#[test]
fn under_1f1b_the_first_devices_optimizer_delays_the_next_step_and_others_do_not() {
    for (p, m) in [(2, 4), (4, 8), (4, 9), (8, 16)] {
        let makespan = f64::from(3 * (m + p - 1));
        let last = |duration: u64| (0..p).map(|device| if device + 1 == p { duration } else { 0 }).collect::<Vec<_>>();
        let first: Vec<u64> = (0..p).map(|device| if device == 0 { 5 } else { 0 }).collect();
        assert_eq!(times("1f1b", (p, m), &first, false), (makespan + 5.0, makespan + 5.0));
        let idle = 3 * u64::from(p - 1); // 2 (p - 1) down, p - 1 up
        assert_eq!(times("1f1b", (p, m), &last(idle), false), (makespan + f64::from(p - 1), makespan));
        assert_eq!(times("1f1b", (p, m), &last(idle + 7), false), (makespan + f64::from(p - 1) + 7.0, makespan + 7.0));
    }
}

/// A norm over all devices is a barrier: where optimizers last equally long, nothing overlaps.
#[test]
fn a_norm_keeps_steps_apart() {
    for name in ["naive", "gpipe", "1f1b", "zb-h1", "zb-h2"] {
        let (iteration, period) = times(name, (4, 8), &[4; 4], true);
        assert_eq!(iteration, period, "{name}");
        assert_eq!(iteration, predicted(name, (4, 8), &[0; 4], true, None).metrics.makespan + 4.0, "{name}");
    }
}

/// Qi et al., Zero Bubble Pipeline Parallelism (2024), section 4: where no synchronisation keeps devices from beginning the next step,
/// ZB-H2's parallelogram leaves no bubble at all: a step takes what a device computes.
#[test]
fn zb_h2_without_a_barrier_has_no_bubble() {
    for (p, m) in [(2, 4), (4, 8), (4, 12), (8, 16)] {
        let (iteration, period) = times("zb-h2", (p, m), &vec![0; p as usize], false);
        assert_eq!((iteration, period), (f64::from(3 * m + p - 1), f64::from(3 * m)), "p = {p}, m = {m}");
    }
}

/// The event engine, in full, says the same as the sweep.
#[test]
fn both_engines_say_the_same_of_steps_that_follow_each_other() {
    for name in ["naive", "gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "interleaved-1f1b"] {
        for norm in [false, true] {
            let alone = |device| Processor { devices: vec![device], cores: 1, ..Processor::default() };
            let full = Config { processors: (0..4).map(alone).collect(), ..Config::default() };
            let swept = predicted(name, (4, 8), &[3, 0, 7, 1], norm, None);
            for machine in [Config::default(), full] {
                assert_eq!(predicted(name, (4, 8), &[3, 0, 7, 1], norm, Some(machine)), swept, "{name}");
            }
            assert!(swept.period.unwrap() <= swept.iteration.unwrap(), "{name}");
        }
    }
}
