//! Forwards next to backwards on two streams: closed forms, golden figures, DeepSeek's trace, and the two engines.

use crate::support::{Dice, cells, golden_json, graph, graph_with, random_rows, root, valid_schedule};
use pipesim::costs::pair::{Chunks, LayerOps, PassTimes, Stream, StreamTimes, SubOps};
use pipesim::costs::{CostFile, OpTime};
use pipesim::internals::metrics::makespan;
use pipesim::internals::sim::event::{Record, simulate};
use pipesim::simulation::{Config, EventError, bounds, predict, slacks, sweep};
use pipesim::{CostTable, Costs, Delivery, Kind, Op, Overlap, Placement, Selection, Setup, TaskGraph};
use serde_json::{Value, json};

/// A layer from times by name: `attn_F`.
fn layer(time: impl Fn(&str) -> u64) -> LayerOps {
    let pass = |part: &str| PassTimes {
        forward: time(&format!("{part}_F")),
        input: time(&format!("{part}_B")),
        weights: if ["attn", "mlp"].contains(&part) { time(&format!("{part}_W")) } else { 0 },
    };
    LayerOps { attn: pass("attn"), dispatch: pass("dispatch"), mlp: pass("mlp"), combine: pass("combine"), side: 0 }
}

fn random_layer(dice: &mut Dice) -> LayerOps {
    let most = 1 + dice.below(30);
    let times: Vec<u64> = (0..10).map(|_| dice.below(most) as u64).collect();
    let names = ["attn_F", "dispatch_F", "mlp_F", "combine_F", "attn_B", "dispatch_B", "mlp_B", "combine_B", "attn_W"];
    layer(|name| times[names.iter().position(|known| *known == name).unwrap_or(9)])
}

fn both<'a>(forward: &'a SubOps, backward: &'a SubOps) -> StreamTimes {
    StreamTimes::of(Chunks { forward: Some(forward), backward: Some((backward, Kind::B)) })
}

/// How long the forward and the backward of `layers` equal layers take next to each other, with weights delayed and nothing on a side
/// stream. m is the time from the start of `mlp_B` to that of `attn_B` and `combine_F`, q from there to the next `mlp_B`.
fn equal_layers(&LayerOps { attn, dispatch, mlp, combine, .. }: &LayerOps, layers: u64) -> u64 {
    let (sent, returned) = (dispatch.forward, combine.forward);
    let m = ((mlp.input + mlp.weights).max(sent) + mlp.forward).max(mlp.input.max(sent) + dispatch.input);
    let last = (attn.input + attn.weights).max(returned);
    let q = (attn.input.max(returned) + combine.input).max(last + attn.forward);
    combine.input.max(attn.forward) + layers * m + (layers - 1) * q + last
}

/// How long the forward of equal layers takes alone.
fn forward_alone(&LayerOps { attn, dispatch, mlp, combine, .. }: &LayerOps, layers: u64) -> u64 {
    layers * (attn.forward + dispatch.forward + mlp.forward + combine.forward)
}

/// How long the backward of equal layers takes alone: products for weights hide the communication after them.
fn backward_alone(&LayerOps { attn, dispatch, mlp, combine, .. }: &LayerOps, layers: u64) -> u64 {
    let each = mlp.input + mlp.weights.max(dispatch.input) + attn.input;
    combine.input + layers * each + (layers - 1) * combine.input.max(attn.weights) + attn.weights
}

#[test]
fn closed_forms_equal_the_streams() {
    let mut dice = Dice(7);
    for case in 0..20_000 {
        let (one, layers) = (random_layer(&mut dice), 1 + dice.below(6));
        let sub_ops = SubOps::equal(one, layers);
        let count = layers as u64;
        let found = [both(&sub_ops, &sub_ops).end, sub_ops.alone(Kind::F), sub_ops.alone(Kind::B)];
        let closed = [equal_layers(&one, count), forward_alone(&one, count), backward_alone(&one, count)];
        assert_eq!(found, closed, "case {case}: {layers} of {one:?}");
    }
}

/// With one hardware queue, kernels start in the order of their launches (comments in NVIDIA/Megatron-LM's issue 533): an exchange
/// starts after the computation that was launched before it, and hides behind the one that is launched next.
#[test]
fn one_hardware_queue_hides_what_is_launched_next() {
    let mut dice = Dice(11);
    for case in 0..5_000 {
        let (one, layers) = (random_layer(&mut dice), 1 + dice.below(6));
        let LayerOps { attn, dispatch, mlp, combine, .. } = one;
        let several = SubOps::equal(one, layers);
        let sub_ops = SubOps { has_one_queue: true, ..several.clone() };
        let found = both(&sub_ops, &sub_ops);
        let each = attn.forward.max(combine.input)
            + mlp.input
            + mlp.weights.max(dispatch.forward)
            + mlp.forward.max(dispatch.input)
            + (attn.input + attn.weights).max(combine.forward);
        assert_eq!(found.end, layers as u64 * each, "case {case}: {layers} of {one:?}");
        assert!(found.spans.windows(2).all(|two| two[0].start <= two[1].start), "case {case}");
        let in_a_row = found.busy.iter().sum::<u64>();
        assert!((both(&several, &several).end..=in_a_row).contains(&found.end), "case {case}");
    }
}

#[test]
fn pairs_last_as_an_independent_simulation_says() {
    let golden = golden_json("moe/overlap.json");
    let cases = golden["layers"].as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let number = |key: &str| case[key].as_u64().unwrap();
        let one = layer(|name| case["sub_ops"][name].as_u64().unwrap());
        let forward = SubOps::equal(one, number("forward_layers") as usize);
        let backward = SubOps::equal(one, number("backward_layers") as usize);
        let run = both(&forward, &backward);
        let found = [run.end, run.outputs[0], run.outputs[1], forward.alone(Kind::F), backward.alone(Kind::B)];
        let keys = ["pair", "forward_output", "backward_output", "forward_alone", "backward_alone"];
        assert_eq!(found, keys.map(number), "{case}");
    }
}

/// DeepSeek's 40 sub-ops as a cost file: what a user is given in `examples`.
fn deepseek() -> (Value, CostFile) {
    let text = std::fs::read_to_string(root().join("examples/deepseek-v3-pair.json")).unwrap();
    (golden_json("moe/deepseek-overlap.json"), CostFile::from_json(&text).unwrap())
}

#[test]
fn deepseeks_kernels_take_244_ms_in_a_row() {
    let golden = golden_json("moe/deepseek-overlap.json");
    let ops = golden["ops"].as_array().unwrap();
    // Kernels without the gaps between them, which a pair contains.
    let kernels = |name: &str, number: u64, key: &str| {
        let (part, kind) = name.split_once('_').unwrap();
        let same = |op: &&Value| op["op"] == format!("{part}({kind})") && op["layer"] == number;
        (ops.iter().find(same).unwrap()[key].as_f64().unwrap() * 1e6).round() as u64
    };
    let layers = (0..4).map(|number| LayerOps {
        side: kernels("mlp_W", number, "side_stream_ms"),
        ..layer(|name| kernels(name, number, "kernels_ms"))
    });
    let sub_ops = SubOps { layers: layers.collect(), delays_weights: true, ..SubOps::default() };
    let run = both(&sub_ops, &sub_ops);
    near(run.busy.iter().sum(), golden["serial_sum_ms"].as_f64().unwrap(), 1e-5, "in a row");
    for (stream, name) in Stream::ALL.into_iter().zip(["compute", "communication", "side"]) {
        near(run.busy[stream as usize], golden["stream_busy_ms"][name].as_f64().unwrap(), 1e-5, name);
    }
}

fn near(found: u64, expected_ms: f64, within: f64, what: &str) {
    let error = found as f64 / 1e6 / expected_ms - 1.0;
    assert!(error.abs() <= within, "{what}: {found} ns, {expected_ms} ms, {:.2} %", 100.0 * error);
}

#[test]
fn deepseeks_pair_lasts_what_its_trace_shows() {
    let (golden, file) = deepseek();
    let sub_ops = file.stages[0].sub_ops();
    for op in golden["ops"].as_array().unwrap() {
        // The backward runs the layers in reverse order.
        let (name, number) = (op["op"].as_str().unwrap(), op["layer"].as_u64().unwrap() as usize);
        let (part, kind) = name.trim_end_matches(')').split_once('(').unwrap();
        let one = sub_ops.layers[if kind == "F" { number } else { 3 - number }];
        let pass = [one.attn, one.dispatch, one.mlp, one.combine]
            [["attn", "dispatch", "mlp", "combine"].iter().position(|known| *known == part).unwrap()];
        let ns = [pass.forward, pass.input, pass.weights][["F", "B", "W"].iter().position(|k| *k == kind).unwrap()];
        assert_eq!(ns as f64, (op["ms"].as_f64().unwrap() * 1e6).round(), "{op}");
        if let Some(side) = op["side_stream_ms"].as_f64() {
            assert_eq!(one.side as f64, (side * 1e6).round(), "{op}");
        }
    }
    let (run, measured) = (both(&sub_ops, &sub_ops), golden["wall_ms"].as_f64().unwrap());
    near(run.end, measured, 0.01, "from 40 sub-ops");
    near(run.end, 128.12, 0.0001, "as the reference computed");
    near(run.busy[0] + run.busy[1], golden["serial_sum_ms"].as_f64().unwrap(), 0.011, "on one stream, gaps included");
    near(run.busy[0] + run.busy[1], 241.55, 0.0001, "on one stream, gaps included");
    near(sub_ops.alone(Kind::F), 98.7, 0.001, "forward alone");
    near(sub_ops.alone(Kind::B), 115.4, 0.001, "backward alone");
    let mean = |name: &str| {
        let (part, kind) = name.split_once('_').unwrap();
        (golden["mean_ms"][format!("{part}({kind})")].as_f64().unwrap() * 1e6).round() as u64
    };
    near(equal_layers(&layer(mean), 4), measured, 0.015, "from ten means");
    // every sub-op begins at most 2 ms from where the trace has it
    for span in &run.spans {
        let is_backward = span.op.kind.name(span.op.half).ends_with(['B', 'W']);
        let number = if is_backward { 3 - span.op.layer } else { span.op.layer };
        let name = span.op.kind.name(span.op.half).replace('_', "(") + ")";
        let same = |op: &&Value| op["op"] == name && op["layer"] == number;
        let Some(op) = golden["ops"].as_array().unwrap().iter().find(same) else { continue };
        let late = span.start as f64 / 1e6 - op["start_ms"].as_f64().unwrap();
        assert!(late.abs() < 2.0, "{name} of layer {number}: {late} ms");
    }
}

/// Fractions as text: `57/2`.
fn fraction(text: &Value) -> (u64, u64) {
    let text = text.as_str().unwrap();
    let (above, below) = text.split_once('/').unwrap_or((text, "1"));
    (above.parse().unwrap(), below.parse().unwrap())
}

/// A cost file whose chunks take F = 1/v, B = 2/v, and pairs 5/(2 v), of 1,200 ns; messages take 60.
fn half(stages: u64, v: u64) -> CostFile {
    let (quarter, whole) = (600 / v, 2400 / v);
    let layer = json!({"attn_F_ns": quarter, "dispatch_F_ns": quarter, "mlp_B_ns": whole});
    let stages: Vec<Value> = (0..stages).map(|_| json!({"sub_ops": [layer]})).collect();
    let link = json!({"put_ns": 0, "bytes": 0, "latency_ns": 60});
    CostFile::from_json(&json!({"schema_version": 1, "link": link, "stages": stages}).to_string()).unwrap()
}

#[test]
fn interleaved_overlap_is_megatrons_order_with_its_makespans() {
    let golden = golden_json("moe/overlap.json");
    let mut compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        let [p, m, v] = ["p", "m", "v"].map(|key| case[key].as_u64().unwrap() as u32);
        let ours = graph("interleaved-overlap", p, m, Some(v)).unwrap();
        let placement = Placement::looped("loop", p, v);
        for (device, row) in case["programs"].as_array().unwrap().iter().enumerate() {
            let theirs = cells(row.as_str().unwrap(), &placement, m);
            assert_eq!(ours.schedule().program(device as u32), theirs, "p={p} m={m} v={v} device {device}");
        }
        for (costs, overlap) in [("sum", Overlap::Atomic), ("best", Overlap::Max), ("half", Overlap::Streams)] {
            let selection = Selection { chunks: Some(v), overlap, ..Selection::new(p, m) };
            let given = match overlap {
                Overlap::Streams => Costs::measured(half(u64::from(p * v), v.into()), None),
                _ => Costs::default(),
            };
            let resolved = selection.resolve("interleaved-overlap", &given).unwrap();
            let found = resolved.predict().unwrap();
            let (above, below) = fraction(&case["expected"][costs]["makespan"]);
            let unit = if overlap == Overlap::Streams { 1200 } else { resolved.costs.units.ticks_per_unit as u64 };
            assert_eq!(found.makespan() * below, above * unit, "p={p} m={m} v={v} {costs}");
            for (device, peak) in case["expected"][costs]["peak"].as_array().unwrap().iter().enumerate() {
                let (above, below) = fraction(peak);
                let ours = found.metrics().per_device[device].peak_activations;
                assert!((ours - above as f64 / below as f64).abs() < 1e-9, "p={p} m={m} v={v} device {device}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 36);
}

#[test]
fn one_device_runs_pairs_between_its_first_forward_and_last_backward() {
    for m in 1..6_u64 {
        let selection = Selection { chunks: Some(1), overlap: Overlap::Streams, ..Selection::new(1, m as u32) };
        let resolved = selection.resolve("interleaved-overlap", &Costs::measured(deepseek().1, None));
        if m == 1 {
            assert_eq!(
                resolved.unwrap().predict().unwrap().makespan(),
                98_693_000 + deepseek().1.stages[0].sub_ops().alone(Kind::B)
            );
            continue;
        }
        let (resolved, sub_ops) = (resolved.unwrap(), deepseek().1.stages[0].sub_ops());
        let expected = sub_ops.alone(Kind::F) + (m - 1) * both(&sub_ops, &sub_ops).end + sub_ops.alone(Kind::B);
        assert_eq!(resolved.predict().unwrap().makespan(), expected);
    }
}

#[test]
fn kimi_k2_has_the_figures_of_an_independent_simulation() {
    for (overlap, expected) in [(Overlap::Atomic, 27.0), (Overlap::Max, 22.5)] {
        let graph = graph_with("kimi-k2", 4, 8, Some(2), overlap).unwrap();
        let found = crate::support::predict(&graph, "").metrics;
        assert_eq!(found.makespan, expected);
        assert_eq!(found.per_device.iter().map(|d| d.peak_activations).collect::<Vec<_>>(), [6.0, 5.0, 4.0, 3.0]);
    }
}

/// A random schedule with pairs, on streams, with sub-ops of random layers.
fn on_streams(dice: &mut Dice) -> (TaskGraph, CostTable) {
    let devices = 1 + dice.below(4) as u32;
    let placement = match dice.below(3) {
        0 => Placement::looped("loop", devices, 1 + dice.below(3) as u32),
        1 => Placement::zigzag("V", devices, 2),
        _ => Placement::bidirectional(devices + devices % 2, 1).unwrap(),
    };
    let (split, m) = (dice.below(2) == 0, 2 + dice.below(6) as u32);
    let rows = random_rows(&placement, m, (u32::MAX, true), |_, _| split, &mut |n| dice.below(n)).unwrap();
    let schedule = valid_schedule(&placement, m, &rows);
    let sub_ops: Vec<SubOps> = (0..placement.stages())
        .map(|_| SubOps {
            layers: (0..dice.below(4)).map(|_| random_layer(dice)).collect(),
            first: PassTimes { forward: dice.below(5) as u64, input: 0, weights: dice.below(5) as u64 },
            last: PassTimes { forward: dice.below(5) as u64, input: dice.below(9) as u64, weights: 1 },
            delays_weights: dice.below(2) == 0,
            has_one_queue: false,
        })
        .collect();
    let arrival = dice.below(6) as u64;
    let costs = crate::support::table(&placement, 1.0, |op: Op| OpTime {
        duration: sub_ops[op.stage() as usize].alone(op.kind()),
        after: 0,
        arrival,
    });
    let graph = TaskGraph::with_overlap(schedule, Overlap::Streams).unwrap();
    (graph, costs.with_sub_ops(&placement, &sub_ops))
}

#[test]
fn both_engines_agree_on_streams_and_no_order_beats_the_bounds() {
    let mut dice = Dice(41);
    let mut pairs = 0;
    for case in 0..400 {
        let (graph, costs) = on_streams(&mut dice);
        let swept = sweep(&graph, &costs);
        let config = Config { delivery: Delivery::Buffered(u32::MAX), ..Config::default() };
        let mut record = Record::new(&graph);
        let events = simulate(&graph, &costs, &config, &mut record);
        if matches!(events, Err(EventError::Config(_))) {
            continue;
        }
        assert_eq!(makespan(&events.unwrap()), makespan(&swept), "case {case}");
        let found = predict(&graph, &costs, &Setup::default()).unwrap();
        let times = found.op_times();
        for (index, op) in graph.schedule().ops().iter().enumerate().filter(|(_, op)| op.opens_pair()) {
            let expected = costs.extras.pairs.as_ref().unwrap().streams(*op, graph.op(index + 1)).end;
            assert_eq!(times.end[index + 1] - times.start[index], expected, "case {case}: {op}");
            pairs += 1;
        }
        let bound = bounds(&graph, &costs, None).best().0;
        assert!(bound <= found.makespan(), "case {case}: bound {bound}, makespan {}", found.makespan());
        // One op may be longer by its slack.
        let slack = slacks(&graph, &costs, &times, None);
        let (index, _) = slack.iter().enumerate().max_by_key(|(_, slack)| **slack).unwrap();
        let longer = |at: usize, _, _, lasts: u64| lasts + if at == index { slack[index] } else { 0 };
        let later = pipesim::internals::sim::sweep_lasting(&graph, &costs, longer, |_, _, _| ());
        assert!(makespan(&later) <= found.makespan(), "case {case}: {} by {}", graph.op(index), slack[index]);
    }
    assert!(pairs > 500, "{pairs}");
}

#[test]
fn a_pair_never_takes_longer_than_both_ops_or_less_than_one() {
    let mut dice = Dice(3);
    for _ in 0..5_000 {
        let mut stage = || {
            let layers = (0..1 + dice.below(4)).map(|_| random_layer(&mut dice)).collect();
            SubOps { layers, delays_weights: true, ..SubOps::default() }
        };
        let (forward, backward) = (stage(), stage());
        let (alone, run) = ([forward.alone(Kind::F), backward.alone(Kind::B)], both(&forward, &backward));
        assert!(run.end >= alone[0].max(alone[1]), "{forward:?} {backward:?}");
        assert!(run.end >= run.busy[0].max(run.busy[1]), "{forward:?} {backward:?}");
        // never idle on all streams
        assert!(run.end <= run.busy.iter().sum(), "{forward:?} {backward:?}");
    }
}

#[test]
fn a_file_of_sub_ops_is_cut_by_layers() {
    let (_, file) = deepseek();
    let selection = Selection { chunks: Some(2), overlap: Overlap::Streams, ..Selection::new(2, 4) };
    let resolved = selection.resolve("interleaved-overlap", &Costs::measured(file.clone(), None)).unwrap();
    let pairs = resolved.costs.extras.pairs.as_ref().unwrap();
    let all = file.stages[0].sub_ops();
    for stage in 0..4 {
        assert_eq!(pairs.sub_ops(stage).layers, [all.layers[stage as usize]]);
        let duration = |kind| resolved.costs.of(Op::new(kind, stage, 0)).duration;
        assert_eq!(duration(Kind::F), pairs.sub_ops(stage).alone(Kind::F));
        assert_eq!(duration(Kind::B), pairs.sub_ops(stage).alone(Kind::B));
    }
}
