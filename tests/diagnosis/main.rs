//! Faults are put into synthetic runs by a simulator that shares nothing with the diagnosis; the diagnosis must name the one that cost
//! most, and by how much. `PIPESIM_FAULTS=1000` runs as many.

mod faults;
mod runs;

use faults::Fault;
use pipesim_diagnosis::{Finding, MeasuredStep, findings};
use runs::{Draw, Run};

/// Whether a finding is about a fault.
fn is_about(finding: &Finding, fault: &Fault, run: &Run) -> bool {
    match (finding, fault) {
        (Finding::SlowStage { stage, .. }, Fault::Stage(slow, _)) => stage == slow,
        // With one stage per device they are the same.
        (Finding::SlowStage { device, .. }, Fault::Device(slow, _)) => run.chunks == 1 && device == slow,
        (Finding::SlowDevice { device, .. }, Fault::Device(slow, _)) => device == slow,
        (Finding::SlowNode { first_device, last_device, .. }, Fault::Node(first, last, _)) => {
            (first_device, last_device) == (first, last)
        }
        (Finding::SlowLink { devices, .. }, Fault::Link(link, _)) => devices == link,
        // With two devices there is one link.
        (Finding::Messages { .. }, Fault::Link(..)) => run.devices == 2,
        (Finding::SlowHost { device, .. }, Fault::Host(slow, _)) => device == slow,
        (Finding::Messages { .. }, Fault::AllLinks(_)) | (Finding::HostDelays { .. }, Fault::AllHosts(_)) => true,
        (Finding::Pause { device, before, .. }, Fault::Pause(at, _)) => {
            (*device, before.clone()) == (run.ops[*at].device, run.ops[*at].name())
        }
        (Finding::Stragglers { op, .. }, Fault::Op(at, _)) => *op == run.ops[*at].name(),
        _ => false,
    }
}

/// A run whose worst fault costs at least 3 % of the step, and 2 % more than the next one.
fn drawn(seed: u64) -> (Run, Vec<(Fault, f64)>) {
    let mut draw = Draw(seed);
    loop {
        let run = Run::draw(&mut draw);
        let faults: Vec<Fault> = (0..1 + draw.below(2)).map(|_| Fault::draw(&mut draw, &run)).collect();
        let whole = run.makespan(&faults);
        let saves = |fault: &Fault| 1.0 - run.makespan_without(&faults, fault) as f64 / whole as f64;
        let mut costs: Vec<(Fault, f64)> = faults.iter().map(|fault| (fault.clone(), saves(fault))).collect();
        costs.sort_by(|one, other| other.1.total_cmp(&one.1));
        let next = costs.get(1).map_or(0.0, |(_, saves)| *saves);
        if costs[0].1 >= 0.03 && costs[0].1 - next >= 0.02 && !costs.iter().any(|(fault, _)| fault.hides(&costs[0].0)) {
            return (run, costs);
        }
    }
}

#[test]
fn the_fault_that_cost_most_comes_first() {
    let count: u64 = std::env::var("PIPESIM_FAULTS").ok().and_then(|count| count.parse().ok()).unwrap_or(48);
    let (mut right, mut close) = (0, 0);
    let mut by_kind = std::collections::BTreeMap::<&str, [u64; 3]>::new();
    for seed in 0..count {
        let (run, costs) = drawn(seed * 7919 + 1);
        let faults: Vec<Fault> = costs.iter().map(|(fault, _)| fault.clone()).collect();
        let step = MeasuredStep::new(&run.timeline(&faults)).unwrap();
        let found = findings(&step);
        assert!(found.windows(2).all(|pair| pair[0].saves() >= pair[1].saves()));
        let (fault, saves) = &costs[0];
        let is_right = is_about(&found[0], fault, &run);
        let is_close = is_right && (found[0].saves() - saves).abs() <= 0.01;
        (right, close) = (right + u64::from(is_right), close + u64::from(is_close));
        let row = by_kind.entry(fault.kind()).or_default();
        *row = [row[0] + 1, row[1] + u64::from(is_right), row[2] + u64::from(is_close)];
        if !is_close {
            println!("{seed}: {} {costs:?}\n   found {:?}", run.described(), &found[..found.len().min(3)]);
        }
    }
    println!("{count} runs: first finding right {right}, saving within 1 % of the step {close}\n{by_kind:#?}");
    assert!(right * 100 >= count * 97 && close * 100 >= count * 95, "{right} {close} of {count}");
}
