//! Slices of sequences and recomputation: orders and figures of the original programs and of an independent simulation, closed forms,
//! and random programs.

use crate::support::{Dice, cells, costs_of, golden_json, graph, metrics, predict, valid_schedule};
use pipesim::graphs::standard_deliveries;
use pipesim::internals::sim::event::{Record, simulate};
use pipesim::internals::sim::sweep_lasting;
use pipesim::simulation::{Config, Processor, Timeline};
use pipesim::{Costs, Delivery, GivenCosts, Kind, Op, Placement, Schedule, Selection, Slices, TaskGraph, check};
use serde_json::Value;
use std::collections::BTreeSet;

const UNEVEN: &str = "F=1,I=1.2,W=0.7,comm=0.05,attention=0.4,attention_I=0.5";

/// A fraction as the files write it.
fn fraction(value: &Value) -> f64 {
    let text = value.as_str().unwrap();
    let (a, b) = text.split_once('/').unwrap_or((text, "1"));
    a.parse::<f64>().unwrap() / b.parse::<f64>().unwrap()
}

fn rows(case: &Value) -> Vec<Vec<Op>> {
    let (p, m) = (case["p"].as_u64().unwrap() as u32, case["m"].as_u64().unwrap() as u32);
    let text = |row: &Value| cells(row.as_str().unwrap(), &Placement::linear(p), m);
    case["programs"].as_array().unwrap().iter().map(text).collect()
}

/// Start and end of all ops by each engine, which must agree.
fn times(graph: &TaskGraph, costs: &str) -> Vec<(u64, u64)> {
    let costs = costs_of(graph, costs);
    let mut swept = vec![(0, 0); graph.len()];
    let note = |index: usize, start, end| swept[index] = (start, end);
    let devices = sweep_lasting(graph, &costs, |_, _, _, duration| duration, note);
    let alone = |device| Processor { devices: vec![device], cores: 1, ..Processor::default() };
    let by_events = [
        Config { processors: (0..graph.schedule().devices()).map(alone).collect(), ..Config::default() },
        Config { delivery: Delivery::Buffered(u32::MAX), ..Config::default() },
    ];
    for config in by_events {
        let mut record = Record::new(graph);
        assert_eq!(simulate(graph, &costs, &config, &mut record).unwrap(), devices, "{}", graph.schedule().name);
        assert_eq!(record.ops, swept, "{}", graph.schedule().name);
    }
    swept
}

/// Compares the order of `text`, a schedule or file, and its figures with a case.
fn matches(graph: &TaskGraph, case: &Value) {
    let what = format!("{} {}", graph.schedule().name, serde_json::json!([case["p"], case["m"], case["n"], case["v"]]));
    for (device, theirs) in rows(case).into_iter().enumerate() {
        assert_eq!(graph.schedule().program(device as u32), theirs, "{what}, device {device}");
    }
    let stub = case["stub"].as_str().map_or(String::new(), |_| format!(",stub={}", fraction(&case["stub"])));
    for (setting, costs) in [("unit", "F=1,I=1,W=1"), ("uneven", UNEVEN)] {
        let expected = &case["expected"][setting];
        let costs = format!("{costs}{stub}");
        let found = predict(graph, &costs).metrics;
        let close = |ours: f64, theirs: &Value, figure: &str| {
            let theirs = fraction(theirs);
            assert!((ours - theirs).abs() < 1e-9, "{what} {setting} {figure}: ours {ours}, theirs {theirs}");
        };
        close(found.makespan, &expected["makespan"], "makespan");
        close(found.span, &expected["span"], "span");
        for (device, ours) in found.per_device.iter().enumerate() {
            close(ours.busy, &expected["busy"][device], "busy");
            close(ours.peak_activations, &expected["peak"][device], "peak");
        }
        assert!(found.lower_bound.unwrap() <= found.makespan + 1e-9, "{what} {setting}");
        times(graph, &costs);
    }
}

fn number(case: &Value, key: &str) -> u32 {
    case[key].as_u64().unwrap() as u32
}

#[test]
fn orders_and_figures_are_the_originals() {
    let files = ["terapipe", "seq1f1b", "seq1f1b-interleaved", "seq1f1b-zb", "slimpipe"];
    for name in files {
        let all = golden_json(format!("slices/{name}.json"));
        let cases = all["cases"].as_array().unwrap();
        for case in cases {
            let group = case["group"].as_u64().map_or(String::new(), |group| format!(" group={group}"));
            let asked = format!("{name} slices={}{group}", case["n"]);
            let open = ["seq1f1b-interleaved", "slimpipe"].contains(&name).then(|| number(case, "v"));
            matches(&graph(&asked, number(case, "p"), number(case, "m"), open).unwrap(), case);
        }
        assert!(cases.len() >= 8, "{name} has {} cases", cases.len());
    }
}

#[test]
fn recomputes_are_the_originals() {
    for case in golden_json("slices/recompute.json")["cases"].as_array().unwrap() {
        let (p, m, v) = (number(case, "p"), number(case, "m"), number(case, "v"));
        let graph = match case["recomputed_chunks"].as_u64() {
            None => graph("1f1b-recompute", p, m, None).unwrap(),
            // The authors' order of groups of one is not among ours; its figures are.
            Some(_) => TaskGraph::new(valid_schedule(&Placement::looped("loop", p, v), m, &rows(case))).unwrap(),
        };
        matches(&graph, case);
    }
}

/// Closed forms of TeraPipe (its latency model), Seq1F1B, SlimPipe and of recomputation as an op.
#[test]
fn closed_forms_of_slices() {
    let close =
        |found: f64, expected: f64, what: &str| assert!((found - expected).abs() < 1e-9, "{what}: {found}, {expected}");
    for (p, m, n) in [(2, 4, 2), (3, 3, 5), (4, 8, 4), (5, 10, 3), (8, 8, 8)] {
        let (pf, mf, nf) = (f64::from(p), f64::from(m), f64::from(n));
        for name in ["terapipe", "seq1f1b", "slimpipe"] {
            let found = metrics(&format!("{name} slices={n}"), p, m, None, "F=1,I=1.2,W=0.7");
            close(found.makespan, mf * 2.9 + (pf - 1.0) * 2.9 / nf, name);
            for (r, device) in found.per_device.iter().enumerate() {
                let ahead = pf - 1.0 - r as f64;
                let peak = match name {
                    "terapipe" => mf,
                    "seq1f1b" => mf.min(1.0 + ahead / nf),
                    _ => 1.0 + 2.0 * ahead / nf,
                };
                close(device.peak_activations, peak, name);
            }
        }
        let zb = metrics(&format!("seq1f1b-zb slices={n}"), p, m, None, "F=1,I=1.2,W=0.7");
        close(zb.makespan, mf * 2.9 + (pf - 1.0) * 1.5 / nf, "seq1f1b-zb");
        let recomputed = metrics("1f1b-recompute", p, m.max(p), None, "F=1,I=1.2,W=0.7,stub=0.25");
        close(recomputed.makespan, f64::from(m.max(p)) * 3.9 + (pf - 1.0) * 2.9, "1f1b-recompute");
        close(recomputed.per_device[0].peak_activations, 1.0 + 0.25 * (pf - 1.0), "1f1b-recompute");
        // TeraPipe's latency model holds for any costs of slices.
        let (a, b) = (0.3, 0.6);
        let slice = |q: f64, share: f64| (1.0 - share) / nf + share * (2.0 * q + 1.0) / (nf * nf);
        let [forward, backward] = [slice(nf - 1.0, a), 1.2 * slice(nf - 1.0, b) + 0.7 / nf];
        let found =
            metrics(&format!("terapipe slices={n}"), p, m, None, "F=1,I=1.2,W=0.7,attention=0.3,attention_I=0.6");
        close(found.makespan, mf * 2.9 + (pf - 1.0) * (forward + backward), "terapipe with attention");
    }
}

/// All orders of one device's ops: the chains of its micro-batches, each in its own order, interleaved in every way.
fn interleaved(chains: &[Vec<Op>]) -> Vec<Vec<Op>> {
    if chains.iter().all(Vec::is_empty) {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in (0..chains.len()).filter(|&at| !chains[at].is_empty()) {
        let mut rest = chains.to_vec();
        let first = rest[at].remove(0);
        all.extend(interleaved(&rest).into_iter().map(|order| [vec![first], order].concat()));
    }
    all
}

/// Of all 4,900 orders of two micro-batches of two slices on two devices none is shorter than TeraPipe's, also where the second slice
/// takes longer; with equal slices none as short holds less than Seq1F1B's.
#[test]
fn no_order_is_shorter() {
    let (p, m, n) = (2, 2, 2);
    let placement = Placement::linear(p);
    let orders = |stage: u32| {
        let slices = |kind, i: u32| (0..n).map(move |q| Op::of_unit(kind, stage, i * n + q, n));
        let chain = |i: u32| slices(Kind::F, i).chain(slices(Kind::B, i).rev()).collect::<Vec<Op>>();
        interleaved(&(0..m).map(chain).collect::<Vec<_>>())
    };
    for costs in ["F=1,I=1,W=1", "F=1,I=1,W=1,attention=0.3,attention_I=0.6"] {
        let mut found: Vec<(f64, [f64; 2])> = Vec::new();
        for (first, second) in
            orders(0).iter().flat_map(|first| orders(1).into_iter().map(move |second| (first, second)))
        {
            let Ok(graph) = TaskGraph::new(valid_schedule(&placement, m, &[first.clone(), second])) else { continue };
            let figures = predict(&graph, costs).metrics;
            found.push((figures.makespan, [0, 1].map(|device| figures.per_device[device].peak_activations)));
        }
        let shortest = found.iter().map(|(makespan, _)| *makespan).fold(f64::MAX, f64::min);
        let close = |a: f64, b: f64, what: &str| assert!((a - b).abs() < 1e-9, "{costs}, {what}: {a}, {b}");
        close(metrics("terapipe slices=2", p, m, None, costs).makespan, shortest, "terapipe");
        if !costs.contains("attention") {
            let ours = metrics("seq1f1b slices=2", p, m, None, costs);
            close(ours.makespan, shortest, "seq1f1b");
            for device in 0..2 {
                let short = found.iter().filter(|(makespan, _)| *makespan < shortest + 1e-9);
                let least = short.map(|(_, peaks)| peaks[device]).fold(f64::MAX, f64::min);
                close(ours.per_device[device].peak_activations, least, "peak of seq1f1b");
            }
        }
    }
}

/// The reference's table: attention's share against the makespan, and slices whose forwards cost the same.
#[test]
fn lengths_and_shares_of_attention() {
    let makespan = |name: &str, costs: &str, lengths: Option<&[u32]>| {
        let slices = lengths.map(|lengths| Slices::of_lengths(lengths).unwrap());
        let costs = Costs::given(costs.parse().unwrap());
        let resolved = Selection { slices, ..Selection::new(4, 8) }.resolve(name, &costs).unwrap();
        resolved.predict().unwrap().prediction.metrics.makespan
    };
    let table = [
        ("0", 26.25, 26.25, 24.75),
        ("0.25", 29.16, 26.53, 25.41),
        ("0.5", 32.06, 26.81, 26.81),
        ("0.75", 34.97, 27.09, 29.34),
    ];
    for (share, seq1f1b, slimpipe, zb) in table {
        let costs = format!("attention={share}");
        for (name, expected) in
            [("seq1f1b", seq1f1b), ("slimpipe:slices=4", slimpipe), ("terapipe", slimpipe), ("seq1f1b-zb", zb)]
        {
            let found = makespan(name, &costs, None);
            assert!((found - expected).abs() < 0.0051, "{name} {share}: {found}, {expected}");
        }
    }
    // Boundaries of equal cost for n = 4 and a share of one half, in thousandths.
    for name in ["seq1f1b", "seq1f1b:slices=4"] {
        let found = makespan(name, "attention=0.5", Some(&[366, 252, 205, 177]));
        assert!((found - 29.38).abs() < 0.02, "{found}");
    }
}

/// R floats into gaps: never later than directly before its backward, so never slower, and faster where a device waits.
#[test]
fn recomputes_fill_gaps() {
    let file = |fills: bool| {
        let word = "(min(p - 1 - r, m) * F + (m - min(p - 1 - r, m)) * (F + B) + min(p - 1 - r, m) * B)";
        let call = if fills { format!("fill({word}, R)") } else { format!("recompute({word})") };
        format!("def device(r, p, m):\n    return {call}\n")
    };
    for costs in ["F=1,I=1,W=1", "F=1,I=1.3,W=0.4,comm=0.7", "F=2,I=1,W=1,comm=1"] {
        let resolve = |fills| {
            let costs = Costs::given(costs.parse().unwrap());
            Selection::new(4, 8).resolve_text("r", &file(fills), &costs).unwrap()
        };
        let makespan = |fills| resolve(fills).predict().unwrap().makespan();
        assert!(makespan(true) <= makespan(false), "{costs}");
        let filled = resolve(true);
        filled.graph.schedule().validate().unwrap();
        assert!(filled.graph.schedule().recomputes());
    }
}

/// What one device may run next by the rules of the reference, restated: an op's needs within its own device. `again` is the kind of
/// op that brings the activation of its unit back.
fn is_ready(done: &BTreeSet<Op>, op: Op, n: u32, again: Option<Kind>) -> bool {
    let q = op.slice().unwrap_or(0);
    let slice = |kind, q| done.contains(&if n > 1 { op.of_kind(kind).on_slice(q) } else { op.of_kind(kind) });
    let back = |q| slice(Kind::I, q) || slice(Kind::B, q);
    let slice_again = |q| again.is_none_or(|kind| slice(kind, q));
    match op.kind() {
        Kind::F => q == 0 || slice(Kind::F, q - 1),
        Kind::W => slice(Kind::I, q),
        Kind::R | Kind::O => slice(Kind::F, q),
        Kind::L => slice(Kind::O, q),
        _ => slice(Kind::F, q) && slice_again(q) && (q + 1 == n || back(q + 1)),
    }
}

/// Ops of one device in an order that its own rules allow; `ready` says what else an op needs.
fn random_row(dice: &mut Dice, ops: &[Op], n: u32) -> Vec<Op> {
    let all: BTreeSet<Op> = ops.iter().copied().collect();
    let again = |op: &Op| [Kind::R, Kind::L].into_iter().find(|&kind| all.contains(&op.of_kind(kind)));
    let (mut done, mut row) = (BTreeSet::new(), Vec::new());
    while row.len() < ops.len() {
        let fits = |op: &&Op| !done.contains(*op) && is_ready(&done, **op, n, again(op));
        let fitting: Vec<Op> = ops.iter().filter(fits).copied().collect();
        // Prefer old micro-batches, so that many of the programs do not deadlock.
        let few = fitting.len().min(1 + dice.below(4));
        let op = fitting[dice.below(few)];
        done.insert(op);
        row.push(op);
    }
    row
}

/// A program for each device, by chance: split or whole backwards, recomputed, offloaded or neither, by unit.
fn random_programs(dice: &mut Dice) -> (Placement, u32, u32, Vec<Vec<Op>>) {
    let (p, v) = (1 + dice.below(4) as u32, 1 + dice.below(2) as u32);
    let placement = if dice.below(2) == 0 { Placement::looped("loop", p, v) } else { Placement::zigzag("V", p, v) };
    let (m, n) = (1 + dice.below(3) as u32, 1 + dice.below(4) as u32);
    let mut ops = vec![Vec::new(); p as usize];
    for i in 0..m {
        for q in 0..n {
            for stage in 0..placement.stages() {
                let f = Op::of_unit(Kind::F, stage, i * n + q, n);
                let backward: &[Kind] = if dice.below(2) == 0 { &[Kind::B] } else { &[Kind::I, Kind::W] };
                let again: &[Kind] = [&[Kind::R][..], &[Kind::R], &[Kind::O, Kind::L], &[]][dice.below(4)];
                let kinds = [&[Kind::F], again, backward].concat();
                ops[placement.device_of(f) as usize].extend(kinds.into_iter().map(|kind| f.of_kind(kind)));
            }
        }
    }
    let rows = ops.iter().map(|ops| random_row(dice, ops, n)).collect();
    (placement, m, n, rows)
}

/// Whether all devices finish, by running whatever can run: an op needs the op before it and, from another stage, the same slice's.
fn finishes(placement: &Placement, rows: &[Vec<Op>]) -> bool {
    let (mut done, mut next) = (BTreeSet::new(), vec![0; rows.len()]);
    loop {
        let before = done.len();
        for (row, next) in rows.iter().zip(&mut next) {
            while let Some(&op) = row.get(*next) {
                let at = |kind, stage: u32| done.contains(&op.of_kind(kind).on_stage(stage));
                let last = placement.stages() - 1;
                let can = match op.kind() {
                    Kind::F => op.stage() == 0 || at(Kind::F, op.stage() - 1),
                    Kind::I | Kind::B if op.stage() < last => {
                        at(Kind::I, op.stage() + 1) || at(Kind::B, op.stage() + 1)
                    }
                    _ => true,
                };
                if !can {
                    break;
                }
                done.insert(op);
                *next += 1;
            }
        }
        if done.len() == before {
            return rows.iter().zip(next).all(|(row, next)| next == row.len());
        }
    }
}

#[test]
fn a_thousand_random_programs() {
    let (mut stuck, mut cut, mut recomputed, mut copied) = (0, 0, 0, 0);
    for seed in 0..1000 {
        let mut dice = Dice(seed);
        let (placement, m, n, rows) = random_programs(&mut dice);
        let schedule = valid_schedule(&placement, m, &rows);
        assert_eq!(schedule.slices().count(), n, "seed {seed}");
        (cut, recomputed) = (cut + usize::from(n > 1), recomputed + usize::from(schedule.recomputes()));
        copied += usize::from(schedule.has_copies());
        let finishes = finishes(&placement, &rows);
        let graph = match TaskGraph::new(schedule) {
            Ok(graph) => graph,
            Err(deadlock) => {
                assert!(!finishes, "seed {seed}: {deadlock}");
                stuck += 1;
                continue;
            }
        };
        assert!(finishes, "seed {seed} deadlocks");
        let costs =
            format!("F=1.{},I=0.{},W=2,comm=0.3,attention=0.{},copy=0.{}", seed % 7, 1 + seed % 9, seed % 4, seed % 8);
        let ops = times(&graph, &costs);
        needs_are_kept(&graph, &ops, seed);
        // What the checker proves to deadlock under a delivery gets stuck in the engine, and nothing else does.
        let table = costs_of(&graph, &costs);
        let simulated =
            |delivery: &Delivery| matches!(delivery, Delivery::Channel(_) | Delivery::Batched | Delivery::Buffered(_));
        for delivery in standard_deliveries().into_iter().filter(simulated) {
            let config = Config { delivery, ..Config::default() };
            let runs = simulate(&graph, &table, &config, &mut ()).is_ok();
            assert_eq!(runs, check(&graph, delivery).is_ok(), "seed {seed} {delivery}");
        }
        let found = predict(&graph, &costs).metrics;
        assert!(found.lower_bound.unwrap() <= found.makespan + 1e-9, "seed {seed}: {found:?}");
    }
    assert!(
        stuck > 50 && stuck < 900 && cut > 600 && recomputed > 600 && copied > 400,
        "{stuck} {cut} {recomputed} {copied}"
    );
}

/// Every op starts after what the reference says it waits for.
fn needs_are_kept(graph: &TaskGraph, times: &[(u64, u64)], seed: u64) {
    let ops = graph.schedule().ops();
    let index = |op: Op| ops.iter().position(|other| *other == op);
    let (last, n) = (graph.schedule().placement.stages() - 1, graph.slices());
    for (number, &op) in ops.iter().enumerate() {
        let q = op.slice().unwrap_or(0);
        let backs = |op: Op| [op.of_kind(Kind::I), op.of_kind(Kind::B)];
        let mut needs = vec![];
        match op.kind() {
            Kind::F => {
                needs.extend((op.stage() > 0).then(|| op.on_stage(op.stage() - 1)));
                needs.extend((q > 0).then(|| op.on_slice(q - 1)));
            }
            Kind::I | Kind::B => {
                needs.push(op.of_kind(Kind::F));
                needs.extend(if op.stage() < last { backs(op.on_stage(op.stage() + 1)).to_vec() } else { vec![] });
                needs.extend(if q + 1 < n { backs(op.on_slice(q + 1)).to_vec() } else { vec![] });
                needs.extend([op.of_kind(Kind::R), op.of_kind(Kind::L)]);
            }
            Kind::R | Kind::O => needs.push(op.of_kind(Kind::F)),
            Kind::L => needs.push(op.of_kind(Kind::O)),
            _ => needs.push(op.of_kind(Kind::I)),
        }
        for need in needs.into_iter().filter_map(index) {
            assert!(times[need].1 <= times[number].0, "seed {seed}: {op} starts before {} ends", ops[need]);
        }
    }
}

#[test]
fn keys_and_values_and_their_gradients_count() {
    let peaks = |costs: &str| -> Vec<f64> {
        metrics("seq1f1b slices=4", 2, 2, None, costs).per_device.iter().map(|d| d.peak_activations).collect()
    };
    assert_eq!(peaks("keep=1"), [1.25, 1.0]);
    // While the last slice's backward runs, gradients of the other three quarters are held: kv (n - 1) / n.
    assert_eq!(peaks("kv=0.2"), [1.25 + 0.15, 1.0 + 0.15]);
}

#[test]
fn a_wrong_slice_or_recompute_is_refused() {
    let refused = |word: &str, options: &str| {
        let text = format!("def device(r, p, m{options}):\n    return {word}\n");
        let found = Selection::new(1, 4).resolve_text("t.star", &text, &Costs::default());
        found.err().unwrap_or_else(|| panic!("{word} is accepted")).to_string()
    };
    let slices = ", slices = 4";
    for (word, options, expected) in [
        ("(m * slices - 1) * F + (m * slices - 1) * B", slices, "0B3.3 runs before 0F3.3"),
        ("12 * F + 12 * B", slices, "0F3.0 is missing: every one of the 4 slices of a micro-batch needs its forward"),
        ("F(0, 0) + F(0, 2)", slices, "0F0.2 runs before 0F0.1, whose keys and values it attends to"),
        ("4 * F + B(0, 0)", slices, "0B0.0 runs before 0B0.1, which still adds to the gradient of its keys and values"),
        ("F(0) + B", slices, "names no slice; write F(0, q) for slice q of 4"),
        ("F(0, 4)", slices, "names slice 4, but micro-batches have 4 here"),
        ("F(0, 1)", "", "names slice 1, but micro-batches have 1 here"),
        ("m * F + m * B + R(3)", "", "0R3 runs after 0B3, which needs it"),
        ("F + R + R(0)", "", "0R0 runs twice"),
        ("R + F", "", "0R0 runs before 0F0"),
        ("F + O + B", "", "0B0 needs an activation that 0OFFLOAD0 moved to the host; no 0RELOAD0 runs before it"),
        ("F + O + R", "", "0R0 and 0OFFLOAD0: an activation is either recomputed or offloaded"),
        ("F + L", "", "L[0] has no O of its chunk before it without an L"),
        (
            "F + overlap(F(1), B(1))",
            "",
            "(0F1;0B1): the backward needs the forward of its own pair; lengthen the warm-up by one",
        ),
        ("fill(m * F, B)", "", "only W and R can float"),
    ] {
        let found = refused(word, options);
        assert!(found.contains(expected), "{word}: expected '{expected}' in {found}");
        assert!(found.contains("t.star") && found.contains("m = 4"), "{word}: {found}");
    }
    let found = graph("seq1f1b-interleaved slices=3 group=4", 4, 12, Some(2)).unwrap_err();
    assert!(found.contains("groups of 4 slices do not hold whole micro-batches of 3 slices"), "{found}");
    for text in ["0", "64", "two", "1.5"] {
        let found = graph(&format!("seq1f1b slices={text}"), 4, 8, None).unwrap_err();
        assert!(found.contains("from 1 to 63") && found.contains(text), "{found}");
    }
    let lengths = [(vec![], "1 to 63"), (vec![1, 0], "length 1 or more"), (vec![1 << 24, 1], "at most 16777216")];
    for (lengths, expected) in lengths {
        assert!(Slices::of_lengths(&lengths).unwrap_err().to_string().contains(expected));
    }
}

#[test]
fn one_slice_is_the_whole_micro_batch() {
    let ops = |name: &str| -> Vec<Op> { graph(name, 4, 8, None).unwrap().schedule().ops().to_vec() };
    assert_eq!(ops("seq1f1b slices=1"), ops("1f1b"));
    assert_eq!(ops("seq1f1b-zb slices=1"), ops("zb-h1"));
    let whole: Schedule = graph("seq1f1b slices=1", 4, 8, None).unwrap().schedule().clone();
    assert!(whole.beyond_microbatches().is_none() && whole.units() == 8);
}

/// Slices, recomputes, copies and their shares of memory survive a timeline's file.
#[test]
fn timelines_are_read_back() {
    for (asked, costs) in [
        ("seq1f1b:slices=4", "attention=0.5,kv=0.1"),
        ("1f1b-recompute", "stub=0.1"),
        ("1f1b-offload:ahead=1", "copy=0.4"),
        ("seq1f1b-zb:slices=3", "attention=0.3"),
    ] {
        let costs = Costs::given(costs.parse::<GivenCosts>().unwrap());
        let resolved = Selection::new(4, 8).resolve(asked, &costs).unwrap();
        let made = resolved.predict().unwrap().timeline();
        let read = Timeline::from_json(&serde_json::to_string(&made).unwrap()).unwrap();
        assert_eq!(read, made, "{asked}");
        assert_eq!(read.slices.len(), if asked.starts_with("seq1f1b") { resolved.graph.slices() as usize } else { 0 });
        let mut ops: Vec<Op> = read.ops().map(|(op, _)| op).collect();
        ops.extend(read.spans.iter().filter_map(|span| span.copy_op()));
        let mut expected: Vec<Op> = resolved.graph.schedule().ops().to_vec();
        ops.sort_unstable();
        expected.sort_unstable();
        assert_eq!(ops, expected, "{asked}");
    }
}
