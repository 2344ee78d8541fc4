//! Checks for every schedule: its graphs, their timelines, bounds, verdicts and files.

use super::reference;
use pipesim::costs::Slow;
use pipesim::graphs::{Awaited, Party, fewest_slots, standard_deliveries};
use pipesim::schedules::{CsvFormat, Keep, OpenSchedule, Program, QueueCount, Receives, SearchError, order_ops};
use pipesim::simulation::{Config, OpTimes};
use pipesim::{
    ChannelOptions, CostTable, Deadlock, Delivery, GivenCosts, Kind, Metrics, Op, Overlap, Schedule, Setup, TaskGraph,
    Timeline, check, schedules, simulation,
};

/// Unit costs, and costs that are all different.
const COSTS: [&str; 2] = ["", "F=1,I=2,W=3,B=4.5,comm=0.5,keep=0.25"];

/// Checks a schedule that was compiled or read.
pub fn schedule(schedule: &Schedule) {
    schedule.validate().unwrap_or_else(|fault| panic!("made what validate refuses: {fault}"));
    for device in 0..schedule.devices() {
        for keep in [0.0, 0.25, 1.0] {
            let (found, expected) =
                (schedule.peak_activations(device, Keep::new(keep)), reference::peak(schedule, device, keep));
            assert!(found.is_finite() && (found - expected).abs() < 1e-9, "peak {found}, expected {expected}");
        }
    }
    let runs: Vec<bool> = Overlap::ALL.into_iter().map(|overlap| overlapped(schedule, overlap)).collect();
    files(schedule, runs[0]);
}

/// Checks the schedule's graph under one meaning of pairs, and returns whether it completes.
fn overlapped(schedule: &Schedule, overlap: Overlap) -> bool {
    let costs = COSTS.map(|text| {
        let given: GivenCosts = text.parse().unwrap();
        given.table(&schedule.placement, schedule.microbatches, &Slow::new()).unwrap()
    });
    let graph = match TaskGraph::with_overlap(schedule.clone(), overlap) {
        Ok(graph) => graph,
        Err(cycle) => {
            let runs = reference::run(schedule, &costs[0], overlap).is_some();
            assert!(!runs, "a schedule that runs was refused under {overlap:?}: {cycle}");
            circle(schedule, &cycle);
            return false;
        }
    };
    for costs in &costs {
        timed(&graph, costs);
    }
    events(&graph, &costs[1]);
    verdicts(&graph);
    true
}

/// Checks that the devices of a circular wait wait for each other, each at one of its ops.
fn circle(schedule: &Schedule, cycle: &Deadlock) {
    assert!(!cycle.waits.is_empty() && !cycle.to_string().is_empty());
    for (number, wait) in cycle.waits.iter().enumerate() {
        let next = &cycle.waits[(number + 1) % cycle.waits.len()];
        assert_eq!(wait.on.device(), next.party.device(), "{cycle}");
        let (Party::Device { device, number, op }, Awaited::Op(awaited)) = (&wait.party, &wait.awaited) else {
            panic!("{cycle}")
        };
        assert_eq!(schedule.program(*device)[*number].alone(), op.expect("it is not at its end").alone(), "{cycle}");
        assert!(schedule.program(wait.on.device()).iter().any(|op| op.alone() == awaited.alone()), "{cycle}");
    }
}

/// Checks the graph's timeline.
fn timed(graph: &TaskGraph, costs: &CostTable) {
    let (schedule, overlap) = (graph.schedule(), graph.overlap());
    let expected = reference::run(schedule, costs, overlap);
    let expected = expected.unwrap_or_else(|| panic!("a deadlock was not found under {overlap:?}"));
    let times = OpTimes::swept(graph, costs);
    let shared = |index: usize| overlap == Overlap::Max && graph.pair(index).is_some();
    for (index, &(start, end)) in expected.iter().enumerate() {
        let found = (times.start[index], times.end[index]);
        let matches = if shared(index) { start <= found.0 && found.1 <= end } else { (start, end) == found };
        assert!(matches, "{} runs from {start} to {end}, found {found:?}, {overlap:?}", graph.op(index));
    }
    let makespan = expected.iter().map(|&(_, end)| end).max().unwrap_or(0);
    assert_eq!(times.makespan(), makespan, "{overlap:?}");

    let bounds = [simulation::bounds(graph, costs, None), simulation::bounds_at_own_peaks(graph, costs)];
    for bound in bounds {
        assert!(bound.best().0 <= makespan, "{bound:?} is above the makespan {makespan}, {overlap:?}");
    }
    let predicted = simulation::predict(graph, costs, &Setup::default()).unwrap();
    assert_eq!((predicted.makespan(), &predicted.op_times()), (makespan, &times));
    let metrics = predicted.metrics();
    figures(metrics);
    assert!(metrics.makespan >= metrics.lower_bound.unwrap() && metrics.makespan >= metrics.ideal, "{metrics:?}");
    assert!((-1e-12..=1.0).contains(&metrics.bubble), "{metrics:?}");

    let timeline = predicted.timeline();
    let again = Timeline::from_json(&serde_json::to_string(&timeline).unwrap()).unwrap();
    assert_eq!(again, timeline);
    let own = timeline.metrics();
    assert!((own.makespan - metrics.makespan).abs() <= 1e-6 * metrics.makespan, "{own:?} {metrics:?}");
    for (own, device) in own.per_device.iter().zip(&metrics.per_device) {
        assert!((own.peak_activations - device.peak_activations).abs() < 1e-9, "{own:?} {device:?}");
    }
    explained(graph, costs, &times);
}

/// Checks that the event engine agrees with the sweep to the tick, and with the checker about deadlocks.
fn events(graph: &TaskGraph, costs: &CostTable) {
    let times = OpTimes::swept(graph, costs);
    for delivery in standard_deliveries() {
        let machine = Some(Config { delivery, ..Config::default() });
        let outcome = simulation::predict(graph, costs, &Setup { machine, ..Setup::default() });
        let verdict = check(graph, delivery);
        match (outcome, verdict) {
            (Ok(outcome), Ok(())) => {
                assert!(outcome.makespan() >= times.makespan(), "{delivery} is faster than one-sided");
                let found = outcome.op_times();
                assert!(delivery != Delivery::OneSided || found == times, "{found:?} {times:?}");
            }
            (Err(_), Err(_)) => {}
            (outcome, verdict) => panic!("{delivery}: the engine says {outcome:?}, the checker {verdict:?}"),
        }
    }
}

/// Checks that the causes of idle time sum to it, and that the critical path has no gap from time 0 to the end.
fn explained(graph: &TaskGraph, costs: &CostTable, times: &OpTimes) {
    let (schedule, makespan) = (graph.schedule(), times.makespan());
    let explanation = simulation::explain(graph, costs, times, None);
    assert_eq!((explanation.makespan, explanation.devices.len()), (makespan, schedule.devices() as usize));
    for (device, causes) in (0..schedule.devices()).zip(&explanation.devices) {
        let busy: u64 = schedule.range(device).map(|index| times.duration(index)).sum();
        assert_eq!(causes.iter().sum::<u64>(), makespan - busy, "device {device} under {:?}", graph.overlap());
    }
    explanation.report(graph, costs);
    let mut at = 0;
    for piece in simulation::critical_path(graph, costs, times) {
        assert_eq!(piece.start, at, "a hole in the critical path");
        at = piece.end;
    }
    assert_eq!(at, makespan, "the critical path ends with the step");
    for (index, slack) in simulation::slacks(graph, costs, times, None).into_iter().enumerate() {
        if graph.overlap() == Overlap::Max && graph.pair(index).is_some() {
            continue; // next to a longer op it may take longer without ending later
        }
        assert!(times.end[index] + slack <= makespan, "{} has slack beyond the end", graph.op(index));
    }
    for (device, curve) in (0..).zip(simulation::memory(graph, costs, times, None)) {
        assert!((curve.peak - schedule.peak_activations(device, costs.keep)).abs() < 1e-9);
    }
}

/// Checks that a looser delivery never fails if a stricter one completes.
fn verdicts(graph: &TaskGraph) {
    let runs = |delivery: Delivery| match check(graph, delivery) {
        Ok(()) => true,
        Err(deadlock) => {
            assert!(!deadlock.to_string().is_empty());
            false
        }
    };
    assert!(runs(Delivery::OneSided), "nothing but a circle of ops blocks one-sided delivery");
    let buffered = [1, 2, 3].map(|slots| runs(Delivery::Buffered(slots)));
    assert!(buffered.is_sorted(), "more slots never hurt: {buffered:?}");
    let fewest = fewest_slots(graph);
    assert!(runs(Delivery::Buffered(fewest)) && (fewest <= 1 || !runs(Delivery::Buffered(fewest - 1))), "{fewest}");
    for receives in [Receives::JustInTime, Receives::FrontLoaded] {
        let queues = [QueueCount::One, QueueCount::PerPeer, QueueCount::PerDirection];
        let runs = queues.map(|queues| runs(Delivery::Channel(ChannelOptions { queues, receives })));
        assert!(runs.is_sorted(), "more queues never hurt: {runs:?} with {receives:?}");
    }
}

/// Checks that files are read back unchanged, and that the file with sends and receives exists if the schedule `runs`.
fn files(schedule: &Schedule, runs: bool) {
    let written =
        [CsvFormat::ComputeOnly, CsvFormat::ComputeComms { waits: false }, CsvFormat::ComputeComms { waits: true }]
            .map(|format| schedules::write_csv(schedule, format));
    for text in written.iter().flatten() {
        let again = schedules::read_csv("seed", "seed.csv", text)
            .unwrap_or_else(|e| panic!("wrote what it cannot read: {e}\n{text}"));
        assert_eq!(
            (again.schedule.devices(), again.schedule.microbatches),
            (schedule.devices(), schedule.microbatches)
        );
        for device in 0..schedule.devices() {
            assert_eq!(again.schedule.program(device), schedule.program(device), "device {device} of\n{text}");
        }
    }
    for comms in &written[1..] {
        assert_eq!(comms.is_ok(), written[0].is_ok() && runs, "{written:?}");
    }
}

/// Checks that figures are numbers.
pub fn figures(metrics: &Metrics) {
    let Metrics { makespan, span, ideal, bubble, span_bubble, bubble_over_ideal, efficiency, .. } = metrics;
    let all = [makespan, span, ideal, bubble, span_bubble, bubble_over_ideal, efficiency];
    let peaks = metrics.per_device.iter().flat_map(|device| [&device.busy, &device.idle, &device.peak_activations]);
    for figure in all.into_iter().chain(peaks).chain(&metrics.lower_bound).chain(&metrics.gap_to_bound) {
        assert!(figure.is_finite(), "{metrics:?}");
    }
    assert!(span <= makespan && ideal <= span, "{metrics:?}");
    assert!((-1e-9..=1.0).contains(bubble) && *span_bubble >= 0.0 && *bubble_over_ideal >= 0.0, "{metrics:?}");
}

/// Largest product of stages and micro-batches for which orders are searched.
const MOST_SEARCHED: u32 = 12;

/// Checks a schedule whose order is derived from costs.
pub fn open(open: &OpenSchedule) {
    assert_eq!(open.programs.len(), open.placement.devices() as usize);
    let searches = open.programs.iter().any(|program| matches!(program, Program::Search { .. }));
    if searches && open.placement.stages() * open.microbatches > MOST_SEARCHED {
        return;
    }
    for text in COSTS {
        let given: GivenCosts = text.parse().unwrap();
        let costs = given.table(&open.placement, open.microbatches, &Slow::new()).unwrap();
        match order_ops(open, &costs) {
            Ok(order) => {
                settled(open, &order, costs.keep);
                schedule(&order);
            }
            Err(error) => refused(open, &costs, &error),
        }
    }
}

fn cap(program: &mut Program) -> Option<&mut f64> {
    match program {
        Program::Fixed(_) | Program::Offload { .. } => None,
        Program::Fill { cap, .. } | Program::Greedy { cap, .. } | Program::Search { cap, .. } => cap.as_mut(),
    }
}

/// Checks that an order respects its caps and the order of its program.
fn settled(open: &OpenSchedule, order: &Schedule, keep: Keep) {
    assert_eq!(&order.placement, &open.placement);
    for (device, program) in (0..).zip(&open.programs) {
        if let Some(&mut cap) = cap(&mut program.clone()) {
            let peak = order.peak_activations(device, keep);
            assert!(peak <= cap * (1.0 + 1e-14), "device {device} holds {peak}, above its cap of {cap}");
        }
        let ops = order.program(device);
        let without_weights =
            |ops: &[Op]| -> Vec<Op> { ops.iter().copied().filter(|op| op.kind() != Kind::W).collect() };
        match program {
            Program::Fixed(listed) => assert_eq!(ops, listed),
            Program::Fill { ops: listed, .. } => assert_eq!(without_weights(ops), without_weights(listed)),
            Program::Offload { ops: listed, .. } => {
                assert!(ops.iter().filter(|op| op.kind().is_compute()).eq(listed), "{ops:?}");
            }
            Program::Greedy { priority, .. } => {
                let halved = priority.contains(&Kind::I);
                assert!(ops.iter().all(|op| op.kind() != if halved { Kind::B } else { Kind::I }), "{ops:?}");
            }
            Program::Search { split, .. } => assert!(*split || ops.iter().all(|op| op.kind() != Kind::I), "{ops:?}"),
        }
    }
}

/// Checks that an error about a low cap names a sufficient one.
fn refused(open: &OpenSchedule, costs: &CostTable, error: &SearchError) {
    assert!(!error.to_string().is_empty());
    let SearchError::Cap { device, needed, .. } = *error else { return };
    let mut raised = open.clone();
    *cap(&mut raised.programs[device as usize]).expect("it has a cap") = needed;
    if let Err(SearchError::Cap { device: again, cap, needed: more, .. }) = order_ops(&raised, costs) {
        assert!(again != device, "with a cap of {needed} instead, {cap}, device {device} needs {more}");
    }
}
