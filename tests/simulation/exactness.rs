//! Nothing is lost to rounding: what is proven is not above what is known, and a cap that an order reaches exactly allows it.

use crate::support::{random_rows, table, valid_schedule};
use pipesim::costs::{OpTime, Slow};
use pipesim::schedules::{Goal, Keep, OpenSchedule, Program, ProofError, prove, prove_against};
use pipesim::simulation::OpTimes;
use pipesim::{CostTable, Costs, GivenCosts, Kind, Op, Overlap, Placement, Schedule, Selection, TaskGraph};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

fn placement(rng: &mut ChaCha8Rng) -> Placement {
    match rng.random_range(0..5) {
        0 => Placement::linear(1),
        1 => Placement::linear(2),
        2 => Placement::looped("loop", 2, 2),
        3 => Placement::zigzag("V", 2, 2),
        _ => Placement::linear(3),
    }
}

/// A share of a few digits, of fifteen, or a fraction that no number holds.
fn share(rng: &mut ChaCha8Rng) -> f64 {
    match rng.random_range(0..4) {
        0 => f64::from(rng.random_range(0..=10)) / 10.0,
        1 => f64::from(rng.random_range(0..=1000)) / 1000.0,
        2 => rng.random_range(0.0..=1.0),
        _ => f64::from(rng.random_range(1..7)) / f64::from(rng.random_range(7..12)),
    }
}

/// As a user gives them, or of every stage and kind by themselves with host overhead; an op of three takes no time then.
fn costs(rng: &mut ChaCha8Rng, placement: &Placement, m: u32, keep: f64) -> CostTable {
    if rng.random_range(0..2) == 0 {
        let mut tenth = |most: u32| f64::from(rng.random_range(1..=most)) / 10.0;
        let text = format!("F={},I={},W={},comm={},keep={keep}", tenth(99), tenth(99), tenth(99), tenth(40));
        let whole = if rng.random_range(0..4) == 0 { format!(",B={}", rng.random_range(1..20)) } else { String::new() };
        let given: GivenCosts = (text + &whole).parse().unwrap();
        return given.table(placement, m, &Slow::new()).unwrap();
    }
    let (host, least) = (rng.random_range(0..3), u64::from(rng.random_range(0..3) > 0));
    table(placement, keep, |_| OpTime {
        duration: rng.random_range(least..6),
        after: rng.random_range(0..=host),
        arrival: rng.random_range(0..4),
    })
}

/// A random order of random ops, with overlapped pairs if `pairs`; backwards whole, split, or half of them split.
fn order(rng: &mut ChaCha8Rng, placement: &Placement, m: u32, pairs: bool, mode: u32) -> Schedule {
    let split = |_, i: u32| mode == 0 || (mode == 1 && i.is_multiple_of(2));
    let cap = rng.random_range(1..=2 * placement.chunks() * m);
    let mut draw = |cap| random_rows(placement, m, (cap, pairs), split, &mut |n| rng.random_range(0..n));
    let rows = draw(cap).unwrap_or_else(|| draw(u32::MAX).unwrap());
    valid_schedule(placement, m, &rows)
}

fn makespan(schedule: &Schedule, costs: &CostTable) -> u64 {
    OpTimes::swept(&TaskGraph::new(schedule.clone()).unwrap(), costs).makespan()
}

/// Proven <= found <= the schedule itself, within its own peaks.
#[test]
fn no_proof_is_above_the_schedule_itself() {
    let (mut proven, mut better, mut refused) = (0, 0, 0);
    for seed in 0..250 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let placement = placement(rng);
        let m = rng.random_range(1..=3);
        let (pairs, mode, keep) = (rng.random_range(0..3) == 0, rng.random_range(0..3), share(rng));
        let costs = costs(rng, &placement, m, keep);
        let schedule = order(rng, &placement, m, pairs, mode);
        let overlap = Overlap::ALL[rng.random_range(0..4)];
        let Ok(graph) = TaskGraph::with_overlap(schedule, overlap) else { continue };
        let own = OpTimes::swept(&graph, &costs).makespan();
        let proof = match prove_against(&graph, &costs, 3_000) {
            Ok(proof) => proof,
            Err(ProofError::Overlapped | ProofError::Mixed(_) | ProofError::Instant(_)) => {
                refused += 1;
                continue;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        let (lower, found) = (proof.lower_bound, proof.objective);
        assert!(lower <= found && found <= own, "seed {seed}: proven {lower}, found {found}, the schedule {own}");
        assert_eq!((makespan(&proof.schedule, &costs), proof.optimal), (found, lower == found), "seed {seed}");
        for device in 0..placement.devices() {
            let peak = |schedule: &Schedule| schedule.peak_activations(device, costs.keep);
            assert!(peak(&proof.schedule) <= peak(graph.schedule()), "seed {seed}: device {device} holds more");
        }
        proven += usize::from(proof.optimal);
        better += usize::from(found < own);
    }
    println!("{proven} proven, {better} improved, {refused} refused");
    assert!(proven > 125 && better > 50 && refused < 75, "{proven} {better} {refused}");
}

/// The most that a device holds, in floating-point numbers as a user would add them up.
fn added_up(schedule: &Schedule, keep: f64) -> f64 {
    let v = f64::from(schedule.placement.chunks());
    let of_device = |device: u32| {
        let (mut whole, mut kept, mut peak) = (0.0, 0.0, 0.0_f64);
        for op in schedule.program(device) {
            let (more, left, _) = op.kind().change();
            (whole, kept) = (whole + more as f64, kept + left as f64);
            peak = peak.max(whole / v + kept * keep / v);
        }
        peak
    };
    (0..schedule.devices()).map(of_device).fold(0.0, f64::max)
}

/// An order's own peak, as it is printed and as it is added up, is a cap that allows that order: to judge it, to begin a search
/// with it, and to a proof that does not know it. A billionth less does not.
#[test]
fn a_cap_that_an_order_reaches_allows_it() {
    let mut below = 0;
    for seed in 0..250 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let placement = placement(rng);
        let (m, keep) = (rng.random_range(1..=3), share(rng));
        let costs = costs(rng, &placement, m, keep);
        let schedule = order(rng, &placement, m, false, 0);
        let own = makespan(&schedule, &costs);
        let printed: f64 = schedule.peak(costs.keep).to_string().parse().unwrap();
        let cap = if seed % 2 == 0 { printed } else { added_up(&schedule, keep) };
        assert!((cap - printed).abs() < 1e-12, "seed {seed}: {cap} {printed}");
        assert!(
            schedule.keeps_cap(cap, costs.keep) && !schedule.keeps_cap(cap - 1e-9, costs.keep),
            "seed {seed}: {cap}"
        );
        let known = seed % 3 == 0;
        let start = |device: u32| known.then(|| Box::new(Program::Fixed(schedule.program(device).to_vec())));
        let search = |device: u32| Program::Search { split: true, cap: Some(cap), start: start(device) };
        let open = OpenSchedule {
            name: "searched".to_string(),
            placement: placement.clone(),
            microbatches: m,
            slices: Default::default(),
            programs: (0..placement.devices()).map(search).collect(),
            goal: Goal::Makespan,
        };
        let (lower, found) = match prove(&open, &costs, 3_000) {
            Ok(proof) => {
                assert!(proof.schedule.keeps_cap(cap, costs.keep), "seed {seed}: cap {cap}");
                (proof.lower_bound, proof.objective)
            }
            Err(ProofError::Instant(_)) => continue,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        assert!(lower <= own, "seed {seed}: cap {cap}, proven {lower}, an order takes {own}");
        assert!(
            found <= own || !(known || found == lower),
            "seed {seed}: cap {cap}, found {found}, an order takes {own}"
        );
        below += usize::from(found < own);
    }
    assert!(below > 75, "{below}");
}

/// With activations that no binary fraction holds: the search takes a cap to the last bit, and nothing is proven that is worse
/// than what is there.
#[test]
fn shares_that_are_no_binary_fraction_are_exact() {
    let costs = Costs::given("F=9.5,I=8,W=7.5,comm=3,keep=0.3".parse().unwrap());
    for (cap, makespan) in [("1", 194.0), ("1.3", 171.5), ("1.2999999", 194.0), ("1.30000000000000004", 171.5)] {
        let selection = Selection { memory_cap: Some(cap.parse().unwrap()), ..Selection::new(2, 4) };
        let resolved = selection.resolve("zb-1p", &costs).unwrap();
        assert_eq!(resolved.predict().unwrap().metrics().makespan, makespan, "cap {cap}");
        let peak = resolved.graph.schedule().peak(resolved.costs.keep);
        assert_eq!(peak, if makespan < 194.0 { 1.3 } else { 1.0 }, "cap {cap}");
    }
    let resolved = Selection::new(2, 2).resolve("interleaved-zb", &costs).unwrap();
    let proof = prove_against(&resolved.graph, &resolved.costs, 2_000_000).unwrap();
    assert!(proof.optimal && proof.objective as f64 / resolved.costs.units.ticks_per_unit <= 67.0);
}

/// Where some backwards are whole and cheaper than their halves, or pairs save time, single split ops cannot do as well: no proof.
#[test]
fn what_single_ops_cannot_do_is_not_proven() {
    let placement = Placement::linear(1);
    let rows: Vec<Op> = ["0F0", "0F1", "0I0", "0W0", "0B1"].map(|op| op.parse().unwrap()).to_vec();
    let graph = TaskGraph::new(valid_schedule(&placement, 2, &[rows])).unwrap();
    let table = |text: &str| text.parse::<GivenCosts>().unwrap().table(&placement, 2, &Slow::new()).unwrap();
    let refused = prove_against(&graph, &table("F=1,I=1,W=1,B=1.5"), 2_000_000).unwrap_err();
    assert!(matches!(refused, ProofError::Mixed(op) if op.kind() == Kind::B), "{refused}");
    let proof = prove_against(&graph, &table("B=2"), 2_000_000).unwrap();
    assert_eq!((proof.objective, proof.schedule.splits_backward()), (6, true));
    assert_eq!(graph.schedule().peak(Keep::ALL), 2.0);
    let mut pair: Vec<Op> = ["0F0", "0F1", "0B0", "0B1"].map(|op| op.parse().unwrap()).to_vec();
    pair[1] = pair[1].opening_pair();
    let graph = TaskGraph::with_overlap(valid_schedule(&placement, 2, &[pair]), Overlap::Max).unwrap();
    assert!(matches!(prove_against(&graph, &table(""), 2_000_000), Err(ProofError::Overlapped)));
}

/// A device may have to wait a thousand times where its ops are short beside those elsewhere; the search's depth is not the stack's.
#[test]
fn searches_that_wait_often_are_no_deeper_than_the_stack() {
    let costs = Costs::given("F=1,I=20000,W=0.5".parse().unwrap());
    let resolved = Selection::new(2, 4).resolve("group-interleaved", &costs).unwrap();
    let prove = move || prove_against(&resolved.graph, &resolved.costs, 50_000).unwrap();
    // debug builds took more than 2 MiB for these states when each was a call within another
    let small = std::thread::Builder::new().stack_size(256 << 10).spawn(prove).unwrap();
    assert!(small.join().unwrap().states > 0);
}

/// The ops of one (stage, direction, kind).
struct Row {
    op: Op,
    device: usize,
    time: OpTime,
    /// The row whose output it needs, and the transfer time.
    input: Option<(usize, u64)>,
    /// The row of the same stage that comes before.
    own: Option<usize>,
    /// What an op adds to the chunk activations of its device.
    change: f64,
    count: usize,
}

fn rows(open: &OpenSchedule, costs: &CostTable, split: bool, keep: f64) -> Vec<Row> {
    let placement = &open.placement;
    let kinds = Kind::of_microbatch(split);
    let ops: Vec<Op> = placement.op_kinds().filter(|op| kinds.contains(&op.kind())).collect();
    let row_of = |op: Op| ops.iter().position(|&other| other == op).unwrap();
    let row = |&op: &Op| {
        let input = op
            .upstream(placement.stages())
            .map(|stage| op.on_stage(stage))
            .map(|from| (row_of(from), if placement.leaves_device(from) { costs.of(from).arrival } else { 0 }));
        let (whole, kept, _) = op.kind().change();
        Row {
            op,
            device: placement.device_of(op) as usize,
            time: costs.of(op),
            input,
            own: op.kind().needs().map(|kind| row_of(op.of_kind(kind))),
            change: whole as f64 + kept as f64 * keep,
            count: placement.microbatches_of(op.direction(), open.microbatches).len(),
        }
    };
    ops.iter().map(row).collect()
}

/// A partial order: by row when its ops ended, by device when it is free and what it holds.
#[derive(Clone)]
struct Partial {
    ends: Vec<Vec<u64>>,
    free: Vec<u64>,
    held: Vec<f64>,
}

/// Tries every order, one op after the other, each as soon as possible; returns the least makespan.
fn least(rows: &[Row], cap: f64, state: &Partial, seen: &mut BTreeSet<(Vec<Vec<u64>>, Vec<u64>)>) -> u64 {
    if !seen.insert((state.ends.clone(), state.free.clone())) {
        return u64::MAX;
    }
    if rows.iter().zip(&state.ends).all(|(row, ends)| ends.len() == row.count) {
        return state.ends.iter().flatten().copied().max().unwrap();
    }
    let mut best = u64::MAX;
    for (number, row) in rows.iter().enumerate() {
        let k = state.ends[number].len();
        let input = row.input.map_or(Some(0), |(from, lag)| state.ends[from].get(k).map(|end| end + lag));
        let own = row.own.is_none_or(|own| k < state.ends[own].len());
        let fits = row.change <= 0.0 || state.held[row.device] + row.change <= cap;
        let (Some(input), true) = (input, own && fits && k < row.count) else { continue };
        let mut next = state.clone();
        let start = input.max(state.free[row.device]);
        next.held[row.device] += row.change;
        next.free[row.device] = start + row.time.duration + row.time.after;
        next.ends[number].push(start + row.time.duration);
        best = best.min(least(rows, cap, &next, seen));
    }
    best
}

/// With costs that differ everywhere, host overhead and latency, proofs agree with the enumeration of all orders.
#[test]
fn proofs_agree_with_the_enumeration_of_all_orders() {
    let mut rng = ChaCha8Rng::seed_from_u64(25);
    let mut searched = 0;
    for number in 0..40 {
        let (placement, m) = match number % 4 {
            0 => (Placement::linear(2), 3),
            1 => (Placement::linear(3), 2),
            2 => (Placement::looped("loop", 1, 2), 2),
            _ => (Placement::bidirectional(2, 1).unwrap(), 2),
        };
        let (plain, split) = (number % 3 == 0, number % 5 != 0);
        let keep = [1.0, 1.0, 0.5][rng.random_range(0..3)];
        let costs = table(&placement, keep, |_| OpTime {
            duration: rng.random_range(1..6),
            after: if plain { 0 } else { rng.random_range(0..3) },
            arrival: rng.random_range(0..4),
        });
        let chunks = f64::from(placement.chunks());
        let cap = f64::from(placement.directions()).max(1.0) + f64::from(rng.random_range(0..3)) / chunks;
        let devices = placement.devices() as usize;
        let programs = vec![Program::Search { split, cap: Some(cap), start: None }; devices];
        let open = OpenSchedule {
            name: "random".to_string(),
            placement,
            microbatches: m,
            slices: Default::default(),
            programs,
            goal: Goal::Makespan,
        };
        let rows = rows(&open, &costs, split, keep);
        let ends = vec![Vec::new(); rows.len()];
        let start = Partial { ends, free: vec![0; devices], held: vec![0.0; devices] };
        let least = least(&rows, cap * chunks, &start, &mut BTreeSet::new());
        let proof = prove(&open, &costs, 2_000_000).unwrap();
        assert!(proof.optimal, "case {number}");
        assert_eq!(proof.objective, least, "case {number} ({} first)", rows[0].op);
        searched += usize::from(proof.states > 1);
    }
    assert!(searched > 0, "the bounds alone prove every case");
}
