//! Analysis of simulated schedules: bounds, causes of idle time, critical path and memory, against published facts and second
//! methods.

use crate::support::*;
use pipesim::costs::{OpTime, Slow};
use pipesim::simulation::Cause;
use pipesim::simulation::{
    Bounds, CostShare, OpTimes, bounds, bounds_at_own_peaks, critical_path, explain, memory, predict, replay,
    sensitivities, slacks,
};
use pipesim::{CostTable, Kind, Op, Overlap, Placement, Setup, TaskGraph};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SPLIT: &[Kind] = &[Kind::I, Kind::W];

/// Ticks by cause.
type Causes = [u64; Cause::ALL.len()];

/// One stage per device.
fn line(rows: Vec<Vec<Op>>) -> TaskGraph {
    let m = rows[0].iter().map(|op| op.microbatch() + 1).max().unwrap();
    TaskGraph::new(valid_schedule(&Placement::linear(rows.len() as u32), m, &rows)).unwrap()
}

fn causes(graph: &TaskGraph, costs: &CostTable, cap: Option<f64>) -> Vec<Causes> {
    explain(graph, costs, &OpTimes::swept(graph, costs), cap).devices
}

/// Ticks by (fill, drain, dependence, communication, imbalance, memory, order).
///
/// # Panics
/// A simulated step has causes that only measured ones have.
fn by_name(causes: &Causes) -> [u64; 7] {
    assert_eq!(causes[7..], [0, 0], "nobody is late in a simulation");
    std::array::from_fn(|cause| causes[cause])
}

#[test]
fn fill_and_drain_of_1f1b_and_gpipe() {
    // Device r waits r forwards for its first op, and r backwards (two units each) follow its last; all devices idle
    // 3(p - 1) (Narayanan et al. 2021, section 2.2).
    for (p, m) in [(2_u32, 2_u32), (4, 8), (5, 7), (8, 32)] {
        let graph = line(one_f_one_b(p, m));
        let all = causes(&graph, &costs_of(&graph, ""), None);
        for (r, of) in all.iter().enumerate() {
            let [fill, drain, dependence, communication, imbalance, memory, order] = by_name(of);
            assert_eq!((fill, drain), (r as u64, 2 * r as u64), "1f1b {p} {m} device {r}");
            assert_eq!(dependence + memory, 3 * (u64::from(p) - 1 - r as u64));
            assert_eq!((communication, imbalance, order), (0, 0, 0));
        }
        let graph = line(gpipe(p, m));
        for (r, of) in causes(&graph, &costs_of(&graph, ""), None).iter().enumerate() {
            let inside = 3 * (u64::from(p) - 1 - r as u64);
            assert_eq!(by_name(of), [r as u64, 2 * r as u64, inside, 0, 0, 0, 0], "gpipe {p} {m} device {r}");
        }
    }
}

#[test]
fn naive_idles_for_dependence_and_memory() {
    // p = 2, m = 2: device 0 waits twice for three units; during the first wait the peak of one activation alone prevents the
    // second forward, and with a cap of two the order does.
    let rows = ["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"];
    let graph = graph_of(Placement::linear(2), 2, &rows, Overlap::Atomic);
    let table = costs_of(&graph, "");
    let found = causes(&graph, &table, None);
    assert_eq!(by_name(&found[0]), [0, 0, 5, 0, 0, 1, 0]);
    assert_eq!(by_name(&found[1]), [1, 2, 3, 0, 0, 0, 0]);
    assert_eq!(by_name(&causes(&graph, &table, Some(1.0))[0]), [0, 0, 5, 0, 0, 1, 0]);
    assert_eq!(by_name(&causes(&graph, &table, Some(2.0))[0]), [0, 0, 5, 0, 0, 0, 1]);
    let times = OpTimes::swept(&graph, &table);
    let explanation = explain(&graph, &table, &times, None);
    let blamed = explanation.idle.iter().find(|idle| idle.cause == Cause::Memory).unwrap();
    assert_eq!((blamed.device, blamed.start, blamed.end), (0, 1, 2));
    let report = explanation.report(&graph, &table);
    assert_eq!((report.makespan, report.total.idle, report.total.memory), (12.0, 12.0, 1.0));
    let span = report.idle.iter().find(|span| span.cause == Cause::Memory).unwrap();
    assert_eq!((span.op.as_deref(), span.next.as_deref(), span.on), (Some("0F1"), Some("0B0"), Some(0)));
}

#[test]
fn a_wait_is_split_by_what_goes_on_elsewhere() {
    // GPipe p = 2, m = 2, comm 0.5: device 0 has run its forwards at 2, the first gradient arrives at 6; with free links at 5.
    let rows = ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"];
    let gpipe = graph_of(Placement::linear(2), 2, &rows, Overlap::Atomic);
    let found = causes(&gpipe, &costs_of(&gpipe, "comm=0.5"), None);
    // In half units. Device 1 starts at 1.5 and ends at 7.5, device 0 at 10.
    assert_eq!(by_name(&found[0]), [0, 0, 30, 10, 0, 0, 0]);
    assert_eq!(by_name(&found[1]), [15, 25, 0, 0, 0, 0, 0]);

    // One micro-batch, device 1 three times slower: its F is one unit, its B two units longer than the average of 2 and 4.
    let slow: Slow = [(1, "3".parse().unwrap())].into();
    let one = graph_of(Placement::linear(2), 1, &["0F0 0B0", "1F0 1B0"], Overlap::Atomic);
    let table = slowed("", &one.schedule().placement, 1, &slow);
    assert_eq!(by_name(&causes(&one, &table, None)[0]), [0, 0, 6, 0, 3, 0, 0]);

    // Device 0 waits from 4 to 5 for 1I1, and could have run 0W0 then.
    let rows = ["0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"];
    let split = graph_of(Placement::linear(2), 2, &rows, Overlap::Atomic);
    let found = causes(&split, &costs_of(&split, ""), None);
    assert_eq!((by_name(&found[0]), by_name(&found[1])), ([0, 0, 1, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0, 0]));
}

#[test]
fn causes_are_what_their_removal_saves() {
    // Second method: simulate again with equal devices of the same total speed, and with free links. Idle time between a
    // device's first and last op shrinks by what was attributed to imbalance and to communication; what the order could have
    // filled may be part of either.
    let inside = |graph: &TaskGraph, text: &str, slow: &Slow| -> ([f64; 3], f64) {
        let table = slowed(text, &graph.schedule().placement, graph.schedule().microbatches, slow);
        let total = explain(graph, &table, &OpTimes::swept(graph, &table), None).total();
        let unit = |cause: Cause| total[cause as usize] as f64 / table.units.ticks_per_unit;
        let all: f64 = Cause::ALL[2..].iter().map(|&cause| unit(cause)).sum();
        ([Cause::Imbalance, Cause::Communication, Cause::Order].map(unit), all)
    };
    for (p, m) in [(2, 50), (4, 64), (8, 64)] {
        let schedules = [one_f_one_b(p, m), zero_bubble(p, m, 1), zero_bubble(p, m, 2)].map(line);
        for (number, graph) in schedules.iter().enumerate() {
            for (device, factor) in [(0, 1.1), (1, 1.3), (1, 3.0), (p - 1, 1.2)] {
                let slow: Slow = [(device, format!("{factor}").parse().unwrap())].into();
                let mean = (f64::from(p) - 1.0 + factor) / f64::from(p);
                let equal: Slow = (0..p).map(|d| (d, format!("{mean:.6}").parse().unwrap())).collect();
                let what = format!("schedule {number}, p={p} m={m}, device {device} slower by {factor}");
                let ([imbalance, _, order], all) = inside(graph, "", &slow);
                let saved = all - inside(graph, "", &equal).1;
                assert!(imbalance <= 1.1 * saved && imbalance + order >= 0.9 * saved, "{what}: {imbalance} {saved}");
                let ([_, communication, order], all) = inside(graph, "comm=0.1", &slow);
                let saved = all - inside(graph, "", &slow).1;
                let range = communication - 1e-9..=communication + order + 1e-9;
                assert!(range.contains(&saved), "{what}: communication {communication}, order {order}, saved {saved}");
            }
        }
    }
}

#[test]
fn bounds_are_the_proven_optima() {
    // Optima that a constraint solver proved, unit costs per chunk op: linear p = 3, m = 6, cap 3: 20; p = 4, m = 8, cap 4: 27;
    // p = 6, m = 12, cap 6: 41; V p = 4, m = 8 with 4 chunks: 59.
    for (p, m, cap, optimum) in [(3, 6, 3.0, 20), (4, 8, 4.0, 27), (6, 12, 6.0, 41)] {
        let graph = in_turn(&Placement::linear(p), m, SPLIT);
        assert_eq!(bounds(&graph, &costs_of(&graph, ""), Some(cap)).best().0, optimum, "linear {p} {m} {cap}");
    }
    // V p = 4, m = 8 with k chunks: what the zero-bubble authors' schedulers reach, which no bound may exceed and these attain
    // (V-Min 59, their adaptive V 56, V-Half 53, ZB-V 51).
    let graph = in_turn(&Placement::zigzag("V", 4, 2), 8, SPLIT);
    let unit = costs_of(&graph, "F=2,I=2,W=2");
    for (k, makespan, name) in
        [(4, 59.0, "memory"), (5, 56.0, "memory"), (6, 53.0, "memory"), (8, 51.0, "head + work + tail")]
    {
        let found = bounds(&graph, &unit, Some(f64::from(k) / 2.0)).best();
        assert_eq!((found.0 as f64 / unit.units.ticks_per_unit, found.1), (makespan, name), "V with {k} chunks");
    }
}

#[test]
fn the_memory_bound_contains_the_published_ones() {
    // V, unit chunk ops, k chunks of memory: 6m + 6p - 1 - 3k (Qi et al., arXiv 2405.15362, figure 13).
    for p in 2..=9_u64 {
        for m in p..3 * p {
            let graph = in_turn(&Placement::zigzag("V", p as u32, 2), m as u32, SPLIT);
            let unit = costs_of(&graph, "F=2,I=2,W=2");
            for k in 2..2 * p {
                let bound = bounds(&graph, &unit, Some(k as f64 / 2.0)).best().0 as f64 / unit.units.ticks_per_unit;
                assert!(bound >= (6 * m + 6 * p - 1 - 3 * k) as f64, "V {p} {m} {k}: {bound}");
            }
        }
    }
    // Linear: with k forwards before the first backward, device 0 idles (p - 1)(I + 2c) + (p - k) F (Qi et al., arXiv
    // 2401.10241). Costs in tenths.
    for (p, m, k) in [(4_u64, 8_u64, 2_u64), (4, 12, 3), (8, 16, 4)] {
        let graph = in_turn(&Placement::linear(p as u32), m as u32, SPLIT);
        let bound = bounds(&graph, &costs_of(&graph, "F=1.2,I=1,W=0.8,comm=0.1"), Some(k as f64)).memory.unwrap();
        assert!(bound >= 30 * m + (p - 1) * (10 + 2) + (p - k) * 12, "linear {p} {m} {k}: {bound}");
    }
    // One activation at a time is the naive schedule: m times the whole way, p devices deep.
    for (p, m) in [(2, 3), (4, 8), (7, 2)] {
        let graph = in_turn(&Placement::linear(p), m, &[Kind::B]);
        let found = bounds_at_own_peaks(&graph, &costs_of(&graph, ""));
        assert_eq!(found.best().0, u64::from(3 * m * p), "naive {p} {m}: {found:?}");
    }
}

/// A named schedule with costs.
struct Case {
    graph: TaskGraph,
    costs: CostTable,
}

fn random_placement(rng: &mut ChaCha8Rng, p: u32) -> Placement {
    match rng.random_range(0..5) {
        0 => Placement::linear(p),
        1 => Placement::looped("loop", p, 2),
        2 => Placement::zigzag("V", p, 2),
        3 => Placement::zigzag("zigzag", p, 3),
        _ if p.is_multiple_of(2) => Placement::bidirectional(p, 1).unwrap(),
        _ => Placement::linear(p),
    }
}

/// Random costs per stage, direction and kind, with or without transfers and host overheads.
fn random_costs(rng: &mut ChaCha8Rng, placement: &Placement, keep: f64) -> CostTable {
    let (comm, host) = (rng.random_range(0..3) * 2, rng.random_range(0..2) * 2);
    table(placement, keep, |_| OpTime {
        duration: rng.random_range(1..12),
        after: rng.random_range(0..=host),
        arrival: rng.random_range(0..=comm),
    })
}

/// A random schedule with random costs; orders whose atomic pairs deadlock are drawn again.
fn random_case(seed: u64) -> Case {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    loop {
        let p = rng.random_range(1..=4);
        let placement = random_placement(rng, p);
        let m = rng.random_range(1..=6);
        let (mode, pairs) = (rng.random_range(0..3), rng.random_range(0..2) == 0);
        let split = |_, i: u32| mode == 0 || (mode == 1 && i.is_multiple_of(2));
        let cap = rng.random_range(1..=2 * p * placement.chunks() * placement.directions());
        let mut draw = |cap| random_rows(&placement, m, (cap, pairs), split, &mut |n| rng.random_range(0..n));
        let rows = draw(cap).unwrap_or_else(|| draw(u32::MAX).unwrap());
        let keep = [1.0, 0.5, 0.0][rng.random_range(0..3)];
        let costs = random_costs(rng, &placement, keep);
        let overlap = Overlap::ALL[rng.random_range(0..4)];
        match TaskGraph::with_overlap(valid_schedule(&placement, m, &rows), overlap) {
            Ok(graph) => return Case { graph, costs },
            Err(cycle) => assert!(pairs, "{cycle}"),
        }
    }
}

#[test]
fn causes_add_up_to_the_bubble() {
    let mut seen: Causes = Causes::default();
    for seed in 0..750 {
        let Case { graph, costs } = random_case(seed);
        let times = OpTimes::swept(&graph, &costs);
        let predicted = predict(&graph, &costs, &Setup::default()).unwrap();
        let devices = predicted.devices();
        for cap in [None, Some(1.0), Some(3.5), Some(1e6)] {
            let explanation = explain(&graph, &costs, &times, cap);
            assert_eq!(explanation.makespan, devices.iter().map(|d| d.last_end).max().unwrap());
            for (device, (causes, activity)) in explanation.devices.iter().zip(devices).enumerate() {
                let idle = explanation.makespan - activity.busy;
                assert_eq!(causes.iter().sum::<u64>(), idle, "seed {seed} device {device}");
                let listed = explanation.idle.iter().filter(|idle| idle.device == device as u32);
                assert_eq!(listed.clone().map(|idle| idle.end - idle.start).sum::<u64>(), idle);
                assert!(listed.clone().zip(listed.skip(1)).all(|(a, b)| a.end <= b.start), "seed {seed}: in order");
                assert_eq!(causes[Cause::Fill as usize], activity.first_start);
                assert_eq!(causes[Cause::Drain as usize], explanation.makespan - activity.last_end);
            }
            let total = explanation.total();
            if cap == Some(1e6) {
                assert_eq!(total[Cause::Memory as usize], 0, "seed {seed}: no F is kept back where all have room");
            }
            (0..seen.len()).for_each(|cause| seen[cause] += total[cause]);
        }
    }
    let of_predictions = Cause::ALL.into_iter().filter(|cause| cause.is_predicted());
    assert!(of_predictions.into_iter().all(|cause| seen[cause as usize] > 250), "every cause occurs: {seen:?}");
}

#[test]
fn ops_named_under_order_could_really_run_earlier() {
    let mut moves = 0;
    for seed in 0..500 {
        let Case { graph, costs } = random_case(seed);
        let times = OpTimes::swept(&graph, &costs);
        let explanation = explain(&graph, &costs, &times, None);
        let order: Vec<_> = explanation.idle.iter().filter(|idle| idle.cause == Cause::Order).collect();
        if order.is_empty() {
            continue;
        }
        // All of them at once: each op runs where the analysis says it fits.
        let start_of = |index: usize| {
            let moved = order.iter().find(|idle| idle.op == Some(index));
            (moved.map_or(times.start[index], |idle| idle.start), index)
        };
        let source = graph.schedule();
        let row = |device: u32| {
            let mut row: Vec<usize> = source.range(device).collect();
            row.sort_by_key(|&index| start_of(index));
            row.into_iter().map(|index| graph.op(index)).collect()
        };
        let rows: Vec<Vec<Op>> = (0..source.devices()).map(row).collect();
        let moved = valid_schedule(&source.placement, source.microbatches, &rows);
        for device in 0..source.devices() {
            let (before, after) =
                (source.peak_activations(device, costs.keep), moved.peak_activations(device, costs.keep));
            assert!(after <= before + 1e-9, "seed {seed}: the peak grew from {before} to {after}");
        }
        let moved = TaskGraph::with_overlap(moved, graph.overlap()).unwrap();
        assert!(OpTimes::swept(&moved, &costs).makespan() <= times.makespan(), "seed {seed}");
        moves += order.len();
    }
    assert!(moves > 160, "{moves}");
}

#[test]
fn the_critical_path_has_no_hole() {
    for seed in 0..500 {
        let Case { graph, costs } = random_case(seed);
        let times = OpTimes::swept(&graph, &costs);
        let path = critical_path(&graph, &costs, &times);
        assert_eq!(path[0].start, 0, "seed {seed}");
        assert_eq!(path[path.len() - 1].end, times.makespan(), "seed {seed}");
        assert!(path.windows(2).all(|two| two[0].end == two[1].start), "seed {seed}: {path:?}");
    }
}

#[test]
fn slack_is_how_much_longer_an_op_may_last() {
    for seed in 0..300 {
        let Case { graph, costs } = random_case(seed);
        let times = OpTimes::swept(&graph, &costs);
        let durations: Vec<u64> = graph.schedule().ops().iter().map(|op| costs.of(*op).duration).collect();
        let makespan = |op: usize, more: u64| {
            let mut durations = durations.clone();
            durations[op] += more;
            replay(&graph, &costs, &durations)
        };
        for (op, &slack) in slacks(&graph, &costs, &times, None).iter().enumerate() {
            assert_eq!(makespan(op, slack), times.makespan(), "seed {seed} op {op}");
            assert_eq!(makespan(op, slack + 1), times.makespan() + 1, "seed {seed} op {op}");
        }
    }
}

#[test]
fn sensitivities_of_known_schedules() {
    // One micro-batch: every op and every transfer is on the path. 10 units of F, 20 of B, 2 of comm among p = 2.
    let one = graph_of(Placement::linear(2), 1, &["0F0 0B0", "1F0 1B0"], Overlap::Atomic);
    let table = costs_of(&one, "F=5,B=10,comm=1");
    let found = sensitivities(&one, &table, None, &CostShare::all(&one));
    let percent = |name: &str| found.iter().find(|s| s.part == name).unwrap().percent;
    let devices = ["device 0", "device 1"].map(|device| (device, 15.0));
    let links = ["link 0 to 1", "link 1 to 0"].map(|link| (link, 1.0));
    let others = [("F", 10.0), ("B", 20.0), ("communication", 2.0)];
    for (part, share) in devices.into_iter().chain(links).chain(others) {
        assert!((percent(part) - share / 32.0).abs() < 1e-12, "{part}: {}", percent(part));
    }
    assert_eq!(found.len(), 7);
    // A pipeline as slow as its slowest device: the others' share vanishes except for fill and drain.
    let slow: Slow = [(1, "3".parse().unwrap())].into();
    let graph = line(one_f_one_b(2, 50));
    let table = slowed("", &graph.schedule().placement, 50, &slow);
    let of_devices: Vec<f64> = sensitivities(&graph, &table, None, &[CostShare::Device(0), CostShare::Device(1)])
        .iter()
        .map(|s| s.percent)
        .collect();
    assert!((of_devices[0] - 3.0 / 453.0).abs() < 1e-12 && (of_devices[1] - 450.0 / 453.0).abs() < 1e-12);
}

#[test]
fn shares_of_a_step_never_exceed_it() {
    // The makespan is a maximum of sums of costs: convex, and proportional to all of them. So the savings of disjoint parts add
    // up to no more than what all save together.
    for seed in 0..300 {
        let Case { graph, costs } = random_case(seed);
        if graph.overlap() == Overlap::Max {
            continue; // shares of a pair are rounded to ticks
        }
        let total = |parts: &dyn Fn(&CostShare) -> bool| -> f64 {
            let chosen: Vec<CostShare> = CostShare::all(&graph).into_iter().filter(parts).collect();
            sensitivities(&graph, &costs, None, &chosen).iter().map(|s| s.percent).sum()
        };
        let kinds = total(&|part| matches!(part, CostShare::Kind(_) | CostShare::Communication));
        let devices = total(&|part| matches!(part, CostShare::Device(_) | CostShare::Communication));
        let stages = total(&|part| matches!(part, CostShare::Stage(_) | CostShare::Communication));
        for sum in [kinds, devices, stages] {
            assert!((0.0..=1.0 + 1e-9).contains(&sum), "seed {seed}: {sum}");
        }
    }
}

#[test]
fn memory_over_time_peaks_where_the_order_says() {
    for seed in 0..500 {
        let Case { graph, costs } = random_case(seed);
        let times = OpTimes::swept(&graph, &costs);
        for curve in memory(&graph, &costs, &times, Some(2.0)) {
            assert_eq!(curve.peak, graph.schedule().peak_activations(curve.device, costs.keep), "seed {seed}");
            assert_eq!(curve.within_cap, curve.peak <= 2.0 + 1e-6);
            assert!(curve.levels.windows(2).all(|two| two[0].time < two[1].time), "seed {seed}");
            let highest = curve.levels.iter().map(|level| level.held).fold(0.0, f64::max);
            assert_eq!(highest, curve.peak, "seed {seed}: every op takes time, so the peak lasts");
            assert_eq!(curve.levels.last().unwrap().held, 0.0, "seed {seed}: everything is returned");
        }
    }
    // 1F1B: p - r in flight, reached by the last forward of the warm-up.
    let graph = line(one_f_one_b(4, 8));
    let table = costs_of(&graph, "");
    let curves = memory(&graph, &table, &OpTimes::swept(&graph, &table), None);
    let found: Vec<_> = curves.iter().map(|c| (c.peak, c.peak_op.clone().unwrap(), c.peak_time)).collect();
    let expected = [(4.0, "0F3", 3.0), (3.0, "1F2", 3.0), (2.0, "2F1", 3.0), (1.0, "3F0", 3.0)];
    assert_eq!(found, expected.map(|(peak, op, time)| (peak, op.to_string(), time)));
}

/// All bounds of schedules with at most the peaks of `graph`, and of those with more memory.
fn all_bounds(graph: &TaskGraph, costs: &CostTable) -> Vec<Bounds> {
    let peaks = (0..graph.schedule().devices()).map(|d| graph.schedule().peak_activations(d, costs.keep));
    let highest = peaks.fold(0.0, f64::max);
    let caps = [None, Some(highest), Some(highest + 0.5)];
    caps.into_iter().map(|cap| bounds(graph, costs, cap)).chain([bounds_at_own_peaks(graph, costs)]).collect()
}

#[test]
fn no_random_schedule_is_below_a_bound() {
    let mut by_memory = 0;
    for seed in 0..1500 {
        let Case { graph, costs } = random_case(seed);
        let makespan = OpTimes::swept(&graph, &costs).makespan();
        for found in all_bounds(&graph, &costs) {
            assert!(found.best().0 <= makespan, "seed {seed}: {found:?}, makespan {makespan}");
            assert!(found.head_work_tail >= found.work.max(found.critical_path), "seed {seed}: {found:?}");
            by_memory += usize::from(found.best().1 == "memory");
        }
    }
    assert!(by_memory > 125, "{by_memory}");
}

#[test]
fn the_bound_if_backwards_are_split_is_that_of_split_ones() {
    // Unit costs: 1F1B takes 3(m + p - 1) and no order of whole backwards takes less; split ones take 3m + p - 1 (ZB-H1).
    for (p, m) in [(2, 4), (4, 8), (8, 32)] {
        let (whole, split) = (line(one_f_one_b(p, m)), line(zero_bubble(p, m, 1)));
        let found = bounds(&whole, &costs_of(&whole, ""), None);
        let least = u64::from(3 * m + p - 1);
        assert_eq!((found.best().0, found.if_split), (u64::from(3 * (m + p - 1)), Some(least)), "{p} {m}");
        assert_eq!(OpTimes::swept(&split, &costs_of(&split, "")).makespan(), least, "{p} {m}");
    }
    let (mut mixed, mut capped) = (0, 0);
    for seed in 0..750 {
        let Case { graph, costs } = random_case(seed);
        let schedule = graph.schedule();
        let makespan = OpTimes::swept(&graph, &costs).makespan();
        if graph.overlap() == Overlap::Max && schedule.has_pairs() {
            assert_eq!(bounds(&graph, &costs, None).if_split, None);
            continue;
        }
        let peak = schedule.peak(costs.keep);
        for cap in [None, Some(peak)] {
            let of = |graph: &TaskGraph| bounds(graph, &costs, cap).if_split.unwrap();
            let [whole, split] =
                [&[Kind::B], SPLIT].map(|kinds| of(&in_turn(&schedule.placement, schedule.microbatches, kinds)));
            assert!(whole == split && whole == of(&graph), "seed {seed}: it does not depend on what is split here");
            assert!(whole <= makespan, "seed {seed}: {whole}, makespan {makespan}");
        }
        mixed += usize::from(schedule.mixes_backwards());
        // If a backward takes as long as its halves, splitting it loses nothing.
        let text = "F=1.2,I=1.1,W=0.9,comm=0.1,keep=0.4";
        let plain = costs_of(&graph, text);
        if schedule.splits_backward() && !schedule.mixes_backwards() {
            let found = bounds(&graph, &plain, Some(schedule.peak(plain.keep)));
            assert_eq!(found.if_split, Some(found.best().0), "seed {seed}");
            capped += usize::from(found.best().1 == "memory");
        }
    }
    assert!(mixed > 75 && capped > 25, "{mixed} {capped}");
}

/// The best makespan of all orders, by brute force: ops are appended in the order of their starts, and those of one stage,
/// direction and kind by micro-batch (equal micro-batches are interchangeable).
struct Search<'a> {
    placement: &'a Placement,
    costs: &'a CostTable,
    m: u32,
    cap: f64,
    free: Vec<u64>,
    held: Vec<f64>,
    /// Remaining time of the ops, by device.
    rest: Vec<u64>,
    /// Ends of the finished ops, by slot.
    ends: Vec<Vec<u64>>,
    best: u64,
    kinds: &'a [Kind],
}

impl Search<'_> {
    fn best(placement: &Placement, costs: &CostTable, m: u32, cap: f64, kinds: &[Kind]) -> u64 {
        let p = placement.devices() as usize;
        let mut rest = vec![0; p];
        for op in placement.op_kinds().filter(|op| kinds.contains(&op.kind())) {
            let count = placement.microbatches_of(op.direction(), m).len() as u64;
            rest[placement.device_of(op) as usize] += count * costs.of(op).duration;
        }
        let ends = vec![Vec::new(); placement.stages() as usize * Op::SLOTS_PER_STAGE];
        let (free, held) = (vec![0; p], vec![0.0; p]);
        let mut search = Search { placement, costs, m, cap, free, held, rest, ends, best: u64::MAX, kinds };
        search.from((0, 0));
        search.best
    }

    /// Returns the end of the dependence with index `number`; `None` if it has not run.
    fn ready(&self, op: Op, number: usize) -> Option<u64> {
        let end =
            |kind, stage| self.ends[Op::new(kind, stage, 0).in_direction(op.direction()).slot()].get(number).copied();
        let own = match op.kind() {
            Kind::F => 0,
            Kind::W => end(Kind::I, op.stage())?,
            _ => end(Kind::F, op.stage())?,
        };
        let Some(stage) = op.upstream(self.placement.stages()) else { return Some(own) };
        let maker = Op::new(op.kind(), stage, 0).in_direction(op.direction());
        let transfer = if self.placement.leaves_device(maker) { self.costs.of(maker).arrival } else { 0 };
        Some(own.max(end(op.kind(), stage)? + transfer))
    }

    fn from(&mut self, last: (u64, u32)) {
        if self.rest.iter().all(|&rest| rest == 0) {
            let ends = self.ends.iter().flatten().copied();
            self.best = self.best.min(ends.max().unwrap_or(0));
            return;
        }
        if self.free.iter().zip(&self.rest).any(|(&free, &rest)| rest > 0 && free.max(last.0) + rest >= self.best) {
            return;
        }
        let v = f64::from(self.placement.chunks());
        let mut next = Vec::new();
        for op in self.placement.op_kinds().filter(|op| self.kinds.contains(&op.kind())) {
            let (number, device) = (self.ends[op.slot()].len(), self.placement.device_of(op));
            if number == self.placement.microbatches_of(op.direction(), self.m).len() {
                continue;
            }
            let Some(ready) = self.ready(op, number) else { continue };
            let start = ready.max(self.free[device as usize]);
            let room = op.kind() != Kind::F || self.held[device as usize] + 1.0 / v <= self.cap + 1e-9;
            if room && (start, device) >= last {
                next.push((start, device, op));
            }
        }
        next.sort_by_key(|&(start, device, op)| (start, device, op));
        for (start, device, op) in next {
            let (d, time, keep) = (device as usize, self.costs.of(op), self.costs.keep.share());
            let change = match op.kind() {
                Kind::F => 1.0,
                Kind::I => keep - 1.0,
                Kind::W => -keep,
                _ => -1.0,
            } / v;
            let free = std::mem::replace(&mut self.free[d], start + time.duration + time.after);
            self.held[d] += change;
            self.rest[d] -= time.duration;
            self.ends[op.slot()].push(start + time.duration);
            self.from((start, device));
            self.ends[op.slot()].pop();
            self.rest[d] += time.duration;
            self.held[d] -= change;
            self.free[d] = free;
        }
    }
}

#[test]
fn no_bound_is_above_the_best_of_all_orders() {
    let split: &[Kind] = &[Kind::F, Kind::I, Kind::W];
    let fused: &[Kind] = &[Kind::F, Kind::B];
    let v = |p| Placement::zigzag("V", p, 2);
    let instances = [
        (Placement::linear(2), 3, split),
        (Placement::linear(3), 2, split),
        (Placement::linear(3), 3, fused),
        (v(1), 3, split),
        (v(2), 2, fused),
        (v(2), 1, split),
        (v(3), 1, split),
        (Placement::looped("loop", 2, 2), 2, fused),
        (Placement::bidirectional(2, 1).unwrap(), 2, split),
        (Placement::bidirectional(2, 1).unwrap(), 4, fused),
    ];
    let (mut tight, mut all, mut by_memory) = (0, 0, 0);
    for (seed, (placement, m, kinds)) in (0..8).flat_map(|seed| instances.iter().map(move |i| (seed, i))) {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let keep = [1.0, 1.0, 0.5, 0.0][rng.random_range(0..4)];
        let costs = random_costs(rng, placement, keep);
        let graph = in_turn(placement, *m, &kinds[1..]);
        for cap in [0.5, 1.0, 1.5, 2.0, f64::from(*m) * 2.0] {
            let best = Search::best(placement, &costs, *m, cap, kinds);
            if best == u64::MAX {
                continue; // nothing runs in so little memory
            }
            let found = bounds(&graph, &costs, Some(cap));
            assert!(found.best().0 <= best, "{placement:?} m={m} cap {cap} keep {keep}: {found:?}, best {best}");
            let if_split = found.if_split.unwrap();
            assert!(if_split <= best, "{placement:?} m={m} cap {cap} keep {keep}: {if_split} if split, best {best}");
            all += 1;
            tight += usize::from(found.best().0 == best);
            by_memory += usize::from(found.best().1 == "memory");
        }
    }
    let found = format!("{all} instances, {tight} tight, {by_memory} bound by memory");
    assert!(all > 200 && tight * 3 > all && by_memory * 10 > all, "{found}");
}

#[test]
fn golden_schedules_are_judged_right() {
    let all = GoldenSchedule::all();
    assert!(all.len() > 300, "{}", all.len());
    for golden in all {
        let (name, overlap, makespan) = (golden.name(), golden.overlap(), golden.number("makespan"));
        let graph = TaskGraph::with_overlap(golden.schedule(), overlap).unwrap();
        let table = costs_of(&graph, &golden.costs());
        let unit = |ticks: u64| ticks as f64 / table.units.ticks_per_unit;
        let close = |ours: f64, theirs: f64, what: &str| {
            assert!((ours - theirs).abs() < 1e-6, "{name} {overlap:?} {what}: ours {ours}, theirs {theirs}");
        };

        for found in all_bounds(&graph, &table) {
            assert!(unit(found.best().0) <= makespan + 1e-6, "{name} {overlap:?}: {found:?}, {makespan}");
        }
        let times = OpTimes::swept(&graph, &table);
        let path = critical_path(&graph, &table, &times);
        close(path.iter().map(|piece| unit(piece.end - piece.start)).sum(), makespan, "critical path");
        let explanation = explain(&graph, &table, &times, None);
        let curves = memory(&graph, &table, &times, None);
        let [busy, peaks] = ["busy_per_rank", "peak_activations_per_rank"].map(|key| numbers(&golden.entry[key]));
        for device in 0..busy.len() {
            close(unit(explanation.devices[device].iter().sum()), makespan - busy[device], "idle");
            close(curves[device].peak * golden.number("v"), peaks[device], "peak");
        }
    }
}
