//! The search and the bounds against optima that a solver of its own proved (`tests/optima/solve`, CP-SAT).

use crate::ordering::{search, ticks as replay};
use crate::support::{self, costs, golden_list, in_turn, schedule, slowed};
use pipesim::costs::Slow;
use pipesim::schedules::{Goal, OpenSchedule, Program, ProofError, order_ops, prove, prove_against};
use pipesim::simulation::bounds;
use pipesim::{CostTable, Kind, Placement, Schedule, TaskGraph};
use serde_json::Value;

/// One row of `tests/golden/optima.json`.
struct Case {
    name: String,
    open: OpenSchedule,
    costs: CostTable,
    cap: f64,
    split: bool,
    /// From the table of solved cases in the literature notes, measured before and elsewhere.
    reference: bool,
    /// Proven, in ticks.
    optimum: u64,
}

/// The proven ones.
fn cases() -> Vec<Case> {
    let proven = golden_list("optima.json").into_iter().filter(|row| row["proven"].as_bool().unwrap());
    let proven: Vec<Case> = proven.map(|row| case(&row)).collect();
    assert!(proven.len() >= 20, "only {} optima are proven", proven.len());
    proven
}

fn case(row: &Value) -> Case {
    let whole = |key: &str| row[key].as_u64().unwrap() as u32;
    let (p, m, cap) = (whole("devices"), whole("microbatches"), row["cap"].as_f64().unwrap());
    let split = row["split"].as_bool().unwrap();
    let placement = match row["placement"].as_str().unwrap() {
        "linear" => Placement::linear(p),
        "V" => Placement::zigzag("V", p, 2),
        other => panic!("placement {other}"),
    };
    let goal = match row["goal"].as_str().unwrap() {
        "makespan" => Goal::Makespan,
        "span" => Goal::Span,
        other => panic!("goal {other}"),
    };
    let mut given: Vec<String> =
        row["costs"].as_object().unwrap().iter().map(|(key, cost)| format!("{key}={cost}")).collect();
    given.push(format!("keep={}", row["keep"]));
    let given = given.join(",");
    let costs = costs(&given, &placement, m);
    let name = format!("{} p{p} m{m} cap {cap} split {split} {goal:?} {given}", placement.name());
    let optimum = (row["optimum"].as_f64().unwrap() * costs.units.ticks_per_unit).round() as u64;
    let open = search(placement, m, split, cap, goal);
    Case { name, open, costs, cap, split, reference: row["source"] == "reference", optimum }
}

/// What `schedule` reaches of the case's goal, once it is known to be valid and within the cap.
fn reached(case: &Case, schedule: &Schedule) -> u64 {
    schedule.validate().unwrap();
    assert_eq!(schedule.splits_backward(), case.split, "{}", case.name);
    assert!(schedule.peak(case.costs.keep) <= case.cap + 1e-9, "{}", case.name);
    let (makespan, span) = replay(schedule, &case.costs);
    if case.open.goal == Goal::Span { span } else { makespan }
}

/// No schedule beats a proven optimum, else the models differ. How far the search may stay above it: nowhere more than
/// `WORST`, and not at all where costs are units.
#[test]
fn the_search_comes_close_and_never_below() {
    const WORST: f64 = 0.01;
    for case in cases() {
        let found = reached(&case, &order_ops(&case.open, &case.costs).unwrap());
        let gap = found as f64 / case.optimum as f64 - 1.0;
        println!("{:6.2} %  {}", 100.0 * gap, case.name);
        assert!(found >= case.optimum, "{}: {found} is below the optimum {}", case.name, case.optimum);
        let allowed = if case.reference { 0.0 } else { WORST };
        assert!(gap <= allowed, "{}: {found} is {:.2} % above {}", case.name, 100.0 * gap, case.optimum);
    }
}

#[test]
fn bounds_never_exceed_optima() {
    for case in cases() {
        let backward: &[Kind] = if case.split { &[Kind::I, Kind::W] } else { &[Kind::B] };
        let any = in_turn(&case.open.placement, case.open.microbatches, backward);
        let found = bounds(&any, &case.costs, Some(case.cap));
        // A span leaves out how long a device waits for its first op.
        let bound = if case.open.goal == Goal::Span { found.work } else { found.best().0 };
        println!("{:6.2} %  {}", 100.0 * (1.0 - bound as f64 / case.optimum as f64), case.name);
        assert!(bound <= case.optimum, "{}: bound {bound} exceeds the optimum {}", case.name, case.optimum);
    }
}

/// Branch and bound proves again what CP-SAT proved; where the budget is too small its bound and its best enclose the optimum.
#[test]
fn proofs_agree() {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.open.goal == Goal::Makespan).collect();
    let mut proven = 0;
    for case in &cases {
        let proof = prove(&case.open, &case.costs, 24_000).unwrap();
        assert_eq!(reached(case, &proof.schedule), proof.objective, "{}", case.name);
        let enclosed = proof.lower_bound <= case.optimum && case.optimum <= proof.objective;
        assert!(enclosed, "{}: {} to {}, optimum {}", case.name, proof.lower_bound, proof.objective, case.optimum);
        assert_eq!(proof.optimal, proof.lower_bound == proof.objective);
        proven += usize::from(proof.optimal);
        if !proof.optimal {
            println!("{} states leave {} to {}: {}", proof.states, proof.lower_bound, proof.objective, case.name);
        }
    }
    println!("{proven} of {} proven again", cases.len());
    assert!(proven * 10 >= cases.len() * 9, "only {proven} of {} are proven", cases.len());
}

/// Where the search stops above what CP-SAT proved, branch and bound finds the better schedule, the same one every time.
#[test]
fn a_proof_improves_on_the_search() {
    let better = cases().into_iter().find(|case| case.name.starts_with("V p4 m6 cap 2.5")).unwrap();
    let found = reached(&better, &order_ops(&better.open, &better.costs).unwrap());
    let proof = prove(&better.open, &better.costs, 2_000_000).unwrap();
    assert!(proof.optimal && proof.objective == better.optimum && proof.objective <= found);
    let again = prove(&better.open, &better.costs, 2_000_000).unwrap();
    assert_eq!((again.schedule, again.states), (proof.schedule, proof.states));
}

/// 1F1B with full backwards takes (m + p - 1)(F + B), and no schedule within its own peaks takes less.
#[test]
fn one_f_one_b_is_optimal_within_its_memory() {
    for (p, m) in [(2_u32, 3_u32), (4, 8), (6, 6)] {
        let placement = Placement::linear(p);
        let given = schedule(&placement, m, &support::one_f_one_b(p, m));
        let costs = costs("", &placement, m);
        let proof = prove_against(&TaskGraph::new(given.clone()).unwrap(), &costs, 2_000_000).unwrap();
        assert!(proof.optimal);
        assert_eq!(
            (proof.objective, replay(&given, &costs).0),
            (u64::from(3 * (m + p - 1)), u64::from(3 * (m + p - 1)))
        );
    }
}

/// With two directions, a slow device and no cap: enclosed by the bounds and the search.
#[test]
fn proofs_know_two_directions() {
    let placement = Placement::bidirectional(4, 1).unwrap();
    let slow: Slow = [(1, "1.5".parse().unwrap())].into();
    let costs = slowed("", &placement, 4, &slow);
    let mut open = search(placement, 4, true, 2.0, Goal::Makespan);
    let found = replay(&order_ops(&open, &costs).unwrap(), &costs).0;
    let proof = prove(&open, &costs, 50_000).unwrap();
    assert!(proof.lower_bound <= proof.objective && proof.objective <= found);
    assert_eq!(replay(&proof.schedule, &costs).0, proof.objective);
    open.programs[2] = Program::Greedy { priority: vec![Kind::F, Kind::B], cap: None };
    assert!(matches!(prove(&open, &costs, 2_000_000), Err(ProofError::NotSearched { device: 2 })));
    open.microbatches = 300;
    open.programs[2] = open.programs[1].clone();
    assert!(matches!(prove(&open, &costs, 2_000_000), Err(ProofError::TooLarge { .. })));
}
