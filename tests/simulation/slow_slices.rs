//! What `explain` calls slow, stages or slices of the sequence, against what equal stages and equal slices would save.

use crate::support::Dice;
use pipesim::simulation::{OpTimes, SlowOps, explain};
use pipesim::{Costs, GivenCosts, Selection};

const SCHEDULES: [&str; 5] = ["seq1f1b", "terapipe", "slimpipe", "seq1f1b-zb", "seq1f1b-interleaved"];

/// A case: a schedule over slices, layers by stage, and the share of attention in tenths.
struct Case {
    schedule: String,
    devices: u32,
    microbatches: u32,
    /// Durations of F by stage; I and W take as long.
    times: Vec<usize>,
    attention: usize,
}

impl Case {
    fn random(dice: &mut Dice, unequal: bool, attention: bool) -> Case {
        let name = SCHEDULES[dice.below(SCHEDULES.len())];
        let (mut devices, mut slices) = (3 + dice.below(3) as u32, 2 + dice.below(3)); // F=1/2 is a half, not two stages
        if name == "seq1f1b-interleaved" {
            (devices, slices) = (2 * (devices / 2), 2); // groups of p slices hold whole micro-batches
        }
        let stages = devices as usize * if name == "seq1f1b-interleaved" { 2 } else { 1 };
        let times = (0..stages).map(|_| if unequal { 60 + 20 * dice.below(6) } else { 100 }).collect();
        let microbatches = devices * (1 + dice.below(3) as u32);
        let attention = if attention { 1 + dice.below(9) } else { 0 };
        Case { schedule: format!("{name}:slices={slices}"), devices, microbatches, times, attention }
    }

    /// Returns the makespan, the ticks of imbalance, and what is called slow.
    fn explained(&self, equal_stages: bool, equal_slices: bool) -> (u64, u64, SlowOps) {
        let (count, sum) = (self.times.len() as f64, self.times.iter().sum::<usize>() as f64);
        let time = |own: &usize| if equal_stages { sum / count } else { *own as f64 };
        let times = self.times.iter().map(|own| format!("{}", time(own))).collect::<Vec<_>>().join("/");
        let tenths = if equal_slices { 0 } else { self.attention };
        let costs: GivenCosts = format!("F={times},I={times},W={times},attention=0.{tenths}").parse().expect("costs");
        let selection = Selection::new(self.devices, self.microbatches);
        let resolved = selection.resolve(&self.schedule, &Costs::given(costs)).expect("the schedule exists");
        let (graph, costs) = (&resolved.graph, &resolved.costs);
        let found = explain(graph, costs, &OpTimes::swept(graph, costs), None);
        let report = found.report(graph, costs);
        ((report.makespan * 1e6) as u64, (report.total.imbalance * 1e6) as u64, report.slow)
    }
}

#[test]
fn equal_stages_are_never_called_slow() {
    let (mut dice, mut waits) = (Dice(51), 0);
    for _ in 0..200 {
        let case = Case::random(&mut dice, false, true);
        let (_, imbalance, slow) = case.explained(false, false);
        if imbalance > 0 {
            waits += 1;
            assert_eq!(slow, SlowOps::Slices, "{} {:?} 0.{}", case.schedule, case.times, case.attention);
        }
        // Without attention nothing is slow.
        assert_eq!(case.explained(false, true).1, 0, "{}", case.schedule);
    }
    assert!(waits > 150, "{waits}");
}

#[test]
fn equal_slices_are_never_called_slow() {
    let (mut dice, mut waits) = (Dice(52), 0);
    for _ in 0..200 {
        let case = Case::random(&mut dice, true, false);
        let (_, imbalance, slow) = case.explained(false, false);
        if imbalance > 0 {
            waits += 1;
            assert_eq!(slow, SlowOps::Stages, "{} {:?}", case.schedule, case.times);
        }
    }
    assert!(waits > 150, "{waits}");
}

/// With both, what saves several times as much as the other is named.
#[test]
fn what_would_save_most_is_named() {
    let (mut dice, mut named) = (Dice(53), [0, 0]);
    let mut wrong = Vec::new();
    for _ in 0..300 {
        let case = Case::random(&mut dice, true, true);
        let (makespan, imbalance, slow) = case.explained(false, false);
        let saves = |equal: (u64, u64, SlowOps)| makespan.saturating_sub(equal.0);
        let (stages, slices) = (saves(case.explained(true, false)), saves(case.explained(false, true)));
        if imbalance == 0 {
            continue;
        }
        let told = || format!("{} {:?} 0.{}: {stages} {slices} {slow:?}", case.schedule, case.times, case.attention);
        if stages > 4 * slices.max(makespan / 1000) {
            named[0] += 1;
            wrong.extend((slow == SlowOps::Slices).then(told));
        } else if slices > 4 * stages.max(makespan / 1000) {
            named[1] += 1;
            wrong.extend((slow == SlowOps::Stages).then(told));
        }
    }
    assert!(wrong.is_empty(), "{} of {named:?}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(named[0] > 20 && named[1] > 5, "{named:?}");
}
