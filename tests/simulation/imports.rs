//! Real profiler traces, against what their processes measured themselves (`tests/golden/kineto`).

use crate::support::{golden, golden_json};
use pipesim::imports::{ImportOptions, Run, import};
use pipesim::{Queue, Timeline};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A case: its folder, the ranks of pipeline 0, the name of its order.
const CASES: [(&str, &str); 10] = [
    ("clock_1f1b_p4_m8", "1f1b"),
    ("delay_f3_interleaved_p2_m8", "interleaved-1f1b"),
    ("dp2_interleaved_p2_m4", "interleaved-1f1b"),
    ("dualpipev_p2_m4_paced", "dualpipe-v"),
    ("loopedbfs_p2_m4_paced", "looped-bfs"),
    ("missing_rank2_interleaved_p4_m8", "interleaved-1f1b"),
    ("onestep_shapes_interleavedzb_p2_m4", "interleaved-zb"),
    ("plain_gpipe_p2_m4", "gpipe"),
    ("slow_stage1_1f1b_p4_m8", "1f1b"),
    ("truncated_rank1_interleavedzb_p2_m4", "interleaved-zb"),
];

fn folder(case: &str) -> PathBuf {
    golden("kineto").join(case)
}

fn expected(case: &str) -> Value {
    golden_json(Path::new("kineto").join(case).join("expected.json"))
}

fn run_with(paths: &[PathBuf], options: &ImportOptions) -> Run {
    import(paths, options, &|_, _| ()).unwrap_or_else(|error| panic!("{paths:?}: {error}"))
}

fn run(case: &str) -> Run {
    run_with(&[folder(case)], &ImportOptions::default())
}

/// True times of the ops of `pipeline` in step number `step`, in µs from its first op, by op: device, start, end.
fn truth(expected: &Value, pipeline: usize, step: usize) -> BTreeMap<String, (u32, f64, f64)> {
    let ranks: Vec<usize> = numbers(&expected["pipelines"][pipeline]);
    let mut ops = BTreeMap::new();
    for (device, rank) in (0..).zip(&ranks) {
        for op in expected["steps"][step]["ops"][*rank].as_array().unwrap() {
            let time = |at: usize| op[at].as_f64().unwrap();
            ops.insert(op[0].as_str().unwrap().to_string(), (device, time(1), time(2)));
        }
    }
    let zero = ops.values().map(|op| op.1).fold(f64::INFINITY, f64::min);
    ops.values_mut().for_each(|op| (op.1, op.2) = (op.1 - zero, op.2 - zero));
    ops
}

fn numbers(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Holds one step against the truth: every op on its device within `most_us`, the typical error, the makespan.
fn holds(case: &str, timeline: &Timeline, truth: &BTreeMap<String, (u32, f64, f64)>) {
    let mut errors = Vec::new();
    for (op, span) in timeline.ops() {
        let (device, start, end) = truth[&op.to_string()];
        assert_eq!(span.device, device, "{case}: {op}");
        let us = |ns: u64| ns as f64 / 1e3;
        errors.extend([(us(span.start_ns) - start).abs(), (us(span.end_ns) - end).abs()]);
    }
    let most = errors.iter().copied().fold(0.0, f64::max);
    assert!(most < 1_300.0, "{case}: an op is {most} us off");
    let typical = median(errors);
    assert!(typical < 200.0, "{case}: ops are typically {typical} us off");
    if timeline.incomplete_devices.is_empty() {
        let true_makespan = truth.values().map(|op| op.2).fold(0.0, f64::max);
        let makespan = timeline.metrics().makespan * 1e3;
        assert!((makespan / true_makespan - 1.0).abs() < 0.004, "{case}: {makespan} us, true {true_makespan}");
    }
}

#[test]
fn ops_orders_and_makespans_are_those_of_the_run() {
    for (case, order) in CASES {
        let (run, expected) = (run(case), expected(case));
        assert_eq!(run.order.as_deref(), Some(order), "{case}");
        let steps = expected["steps"].as_array().unwrap().len();
        let is_whole = !case.starts_with("truncated");
        assert_eq!(run.timelines.len(), steps, "{case}");
        for (number, timeline) in run.timelines.iter().enumerate() {
            let truth = truth(&expected, 0, number);
            holds(case, timeline, &truth);
            if timeline.incomplete_devices.is_empty() {
                assert_eq!(timeline.ops().count(), truth.len(), "{case}");
            }
        }
        assert_eq!(is_whole, run.ops.found == run.ops.expected, "{case}: {}", run.ops);
        assert!(!is_whole || run.messages.found == run.messages.expected, "{case}: {}", run.messages);
        assert!(run.messages.found > 0, "{case}");
    }
}

#[test]
fn a_file_of_the_run_reads_back() {
    let run = run("slow_stage1_1f1b_p4_m8");
    let timeline = run.timeline(None).unwrap();
    let text = Timeline::list_to_json(&[timeline]);
    assert_eq!(&Timeline::list_from_json(&text).unwrap()[0], timeline);
    assert_eq!((timeline.steps.len(), timeline.step), (2, Some(run.steps()[run.median].number)));
    assert!(run.timeline(Some(99)).unwrap_err().to_string().contains("found 99"));
}

#[test]
fn the_slow_stage_shows() {
    let run = run("slow_stage1_1f1b_p4_m8");
    let busy = |device: u32| {
        let ops = run.timelines[0].ops().filter(|(_, span)| span.device == device);
        ops.map(|(_, span)| (span.end_ns - span.start_ns) as f64).sum::<f64>()
    };
    let ratio = busy(1) / ((busy(0) + busy(2) + busy(3)) / 3.0);
    assert!((ratio - 2.0).abs() < 0.15, "{ratio}");
}

#[test]
fn the_delayed_send_shows() {
    let run = run("delay_f3_interleaved_p2_m8");
    for timeline in &run.timelines {
        let end = |name: &str| timeline.ops().find(|(op, _)| op.to_string() == name).unwrap().1.end_ns;
        let sends = timeline.spans.iter().filter(|span| span.queue == Queue::Send && span.device == 0);
        let mut held: Vec<(f64, String)> =
            sends.map(|send| (send.start_ns.saturating_sub(end(&send.op)) as f64 / 1e6, send.op.clone())).collect();
        held.sort_by(|a, b| b.0.total_cmp(&a.0));
        assert_eq!(held[0].1, "0F3");
        assert!((held[0].0 - 20.0).abs() < 1.0 && held[1].0 < 1.5, "{held:?}");
    }
}

#[test]
fn clocks_are_aligned_within_the_residual() {
    for (case, _) in CASES {
        let (run, expected) = (run(case), expected(case));
        for clock in &run.clocks {
            let injected = &expected["injected"]["clock"][clock.rank.to_string()];
            let offset = injected["offset_s"].as_f64().unwrap_or_default() * 1e9;
            let drift = injected["drift_ppm"].as_f64().unwrap_or_default();
            let wrong = (clock.offset_ns as f64 - offset).abs();
            assert!(clock.is_tied && wrong < 150_000.0, "{case}: {clock:?}");
            assert!((clock.drift_ppm - drift).abs() < 5.0, "{case}: {clock:?}");
            for timeline in &run.timelines {
                assert!(wrong <= timeline.clock_uncertainty_ns as f64, "{case}: {clock:?}");
                assert!(timeline.clock_uncertainty_ns <= 700_000, "{case}: {}", timeline.clock_uncertainty_ns);
            }
        }
    }
}

#[test]
fn what_is_missing_is_named() {
    let run = run("missing_rank2_interleaved_p4_m8");
    assert!(run.warnings.iter().any(|text| text.contains("no file of rank 2")), "{:?}", run.warnings);
    assert_eq!(run.timelines[0].incomplete_devices, [2]);
    assert_eq!(run.timelines[0].chunks, 2);
    let cut = self::run("truncated_rank1_interleavedzb_p2_m4");
    assert!(cut.warnings.iter().any(|text| text.contains("rank1_trace.json.gz is cut")), "{:?}", cut.warnings);
    assert!(cut.ops.found > 0);
    // The chain of a 1F1B without an inner rank is cut.
    let folder = folder("slow_stage1_1f1b_p4_m8");
    let files = [0, 1, 3].map(|rank| folder.join(format!("rank{rank}_trace.json.gz")));
    let cut = run_with(&files, &ImportOptions::default());
    assert!(
        cut.warnings.iter().any(|text| text.contains("the chain of messages is cut: rank 3")),
        "{:?}",
        cut.warnings
    );
    assert_eq!(cut.timelines[0].incomplete_devices, [2]);
}

#[test]
fn pipelines_are_chosen() {
    let expected = expected("dp2_interleaved_p2_m4");
    let options = ImportOptions { pipeline: Some(1), ..ImportOptions::default() };
    let paths = [folder("dp2_interleaved_p2_m4")];
    let run = run_with(&paths, &options);
    assert_eq!(run.clocks.iter().map(|clock| clock.rank).collect::<Vec<_>>(), [1, 3]);
    holds("pipeline 1", &run.timelines[0], &truth(&expected, 1, 0));
    let options = ImportOptions { pipeline: Some(2), ..ImportOptions::default() };
    let error = import(&paths, &options, &|_, _| ()).unwrap_err().to_string();
    assert!(error.contains("found 2; correct `pipeline`"), "{error}");
}

/// Writes the traces of a case into `into`, changed by `change`.
fn changed(case: &str, into: &Path, mut change: impl FnMut(&mut Value)) {
    for rank in 0..64 {
        let path = folder(case).join(format!("rank{rank}_trace.json.gz"));
        let Ok(packed) = fs::read(&path) else { continue };
        let mut text = String::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
        let mut trace: Value = serde_json::from_str(&text).unwrap();
        change(&mut trace);
        fs::write(into.join(format!("rank{rank}_trace.json")), trace.to_string()).unwrap();
    }
}

/// The traces of a case by rank.
fn traces(case: &str) -> Vec<(u32, Value)> {
    let (mut all, scratch) = (Vec::new(), tempfile::tempdir().unwrap());
    changed(case, scratch.path(), |trace| {
        let rank = trace["distributedInfo"]["rank"].as_u64().unwrap();
        all.push((rank as u32, trace.clone()));
    });
    all
}

/// Imports traces that are written under the names of `names`.
fn import_all<'a>(traces: impl IntoIterator<Item = (u32, &'a Value)>) -> Result<Run, String> {
    let scratch = tempfile::tempdir().unwrap();
    for (rank, trace) in traces {
        fs::write(scratch.path().join(format!("rank{rank}_trace.json")), trace.to_string()).unwrap();
    }
    let run = import(&[scratch.path().to_path_buf()], &ImportOptions::default(), &|_, _| ());
    run.map_err(|error| error.to_string())
}

/// What a timeline says that does not depend on how far clocks are known.
fn contents(run: &Run) -> Vec<Vec<(u32, Queue, String)>> {
    let of = |timeline: &Timeline| {
        timeline.spans.iter().map(|span| (span.device, span.queue, span.op.clone())).collect::<Vec<_>>()
    };
    run.timelines.iter().map(of).collect()
}

/// Cases whose files are whole, so that nothing is remarked.
fn whole_cases() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|(case, _)| *case).filter(|case| !case.starts_with("truncated") && !case.starts_with("missing"))
}

#[test]
fn whole_traces_need_no_remark() {
    for case in whole_cases() {
        let options = ImportOptions { pipeline: Some(0), ..ImportOptions::default() };
        assert_eq!(run_with(&[folder(case)], &options).warnings, Vec::<String>::new(), "{case}");
    }
}

/// Every pair of ranks, exchanged in what the files say of themselves, in their names, and in both.
#[test]
fn exchanged_ranks_are_noticed() {
    let mut cases = 0;
    for case in whole_cases().chain(["missing_rank2_interleaved_p4_m8"]) {
        let whole = traces(case);
        let before = run(case).warnings;
        for a in 0..whole.len() {
            for b in 0..a {
                for (inside, named) in [(true, false), (false, true), (true, true)] {
                    let mut all = whole.clone();
                    let (one, two) = (all[a].0, all[b].0);
                    if named {
                        (all[a].0, all[b].0) = (two, one);
                    }
                    if inside {
                        all[a].1["distributedInfo"]["rank"] = Value::from(two);
                        all[b].1["distributedInfo"]["rank"] = Value::from(one);
                    }
                    let what = format!("{case}: ranks {one} and {two}, inside {inside}, by name {named}");
                    let ranks = [one, two].map(|rank| rank.to_string());
                    let is_told = |text: &str| {
                        text.contains("rank") && ranks.iter().any(|rank| text.contains(rank.as_str()))
                            || text.contains("messages recovered")
                    };
                    match import_all(all.iter().map(|(rank, trace)| (*rank, trace))) {
                        Err(error) => assert!(is_told(&error), "{what}: {error}"),
                        Ok(found) => {
                            let new = found.warnings.iter().find(|text| !before.contains(text) && is_told(text));
                            assert!(new.is_some(), "{what}: {:?}", found.warnings);
                        }
                    }
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 60, "{cases}");
}

/// Removes what begins at `time` or later, as if the profiler had ended there, but for its last marks if `marked`.
fn cut(trace: &mut Value, time: f64, marked: bool) {
    trace["traceEvents"].as_array_mut().unwrap().retain(|event| {
        let is_mark = event["cat"] == "Trace" || event["name"] == "Record Window End";
        event["ts"].as_f64().is_none_or(|ts| ts < time) || marked && is_mark
    });
}

/// A cut at any time, of one rank or of all, with the profiler's last marks or without them, is told, or harms nothing.
#[test]
fn cuts_are_noticed() {
    let (mut told, mut harmless, mut without_step_ops) = (0, 0, 0);
    for case in whole_cases() {
        let (whole, before) = (traces(case), run(case));
        let times: Vec<f64> = {
            let events = whole.iter().flat_map(|(_, trace)| trace["traceEvents"].as_array().unwrap());
            let mut times: Vec<f64> = events.filter_map(|event| event["ts"].as_f64()).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let chance = &mut Chance(times.len() as u64);
        for number in 0..26 {
            let mut all = whole.clone();
            // half of the cuts are after the last ops, where step ops are
            let from = if number % 2 == 0 { times.len() / 20 } else { times.len() * 7 / 8 };
            let time = times[from + chance.below(times.len() - from)];
            let (one, marked) = (chance.below(all.len()), number % 4 < 2);
            for (at, (_, trace)) in all.iter_mut().enumerate() {
                if number % 3 == 0 || at == one {
                    cut(trace, time, marked);
                }
            }
            let what = format!("{case}, cut {number} at {time}, marked {marked}");
            match import_all(all.iter().map(|(rank, trace)| (*rank, trace))) {
                Err(error) => assert!(error.contains("expected"), "{what}: {error}"),
                Ok(found) if contents(&found) == contents(&before) => harmless += 1,
                Ok(found) => {
                    let new = |text: &&String| !before.warnings.contains(text);
                    let new: Vec<&String> = found.warnings.iter().filter(new).collect();
                    assert!(!new.is_empty(), "{what}: nothing is told");
                    let ops = |run: &Run| run.timelines.iter().map(|timeline| timeline.ops().count()).sum::<usize>();
                    if ops(&found) == ops(&before) && found.messages.found == before.messages.found {
                        without_step_ops += 1;
                        let names = |text: &&String| text.contains("step ops") || text.contains("optimizer");
                        assert!(new.iter().any(names), "{what}: {new:?}");
                    }
                    told += 1;
                }
            }
        }
    }
    println!("{told} told, {without_step_ops} of them of step ops alone; {harmless} harmless");
    assert!(told > 90 && without_step_ops > 15, "{told} {without_step_ops} {harmless}");
}

/// Step ops that are removed, while everything else and the profiler's marks are there.
#[test]
fn removed_step_ops_are_named() {
    for case in whole_cases() {
        let whole = traces(case);
        let is_step_op = |event: &Value| {
            let name = event["name"].as_str().unwrap_or_default();
            name.starts_with("Optimizer.step") || name.starts_with("c10d::allreduce")
        };
        for which in 0..=whole.len() {
            let mut all = whole.clone();
            for (at, (_, trace)) in all.iter_mut().enumerate() {
                if which == whole.len() || at == which {
                    trace["traceEvents"].as_array_mut().unwrap().retain(|event| !is_step_op(event));
                }
            }
            let found = import_all(all.iter().map(|(rank, trace)| (*rank, trace))).unwrap();
            if which < whole.len() && !found.clocks.iter().any(|clock| clock.rank == whole[which].0) {
                continue; // of the other pipeline
            }
            let says = if which == whole.len() { "no rank has the optimizer" } else { "lacks the optimizer's step" };
            assert!(found.warnings.iter().any(|text| text.contains(says)), "{case} {which}: {:?}", found.warnings);
        }
    }
}

/// A source of numbers from a seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % most.max(1) as u64) as usize
    }
}

/// Damages some events of a trace: dropped, repeated, in another order, with a wrong type.
fn damage(events: &mut Vec<Value>, chance: &mut Chance) {
    for _ in 0..=chance.below(6) {
        let at = chance.below(events.len());
        match chance.below(4) {
            0 => drop(events.remove(at)),
            1 => {
                let again = events[at].clone();
                events.insert(chance.below(events.len()), again);
            }
            2 => {
                let other = chance.below(events.len());
                events.swap(at, other);
            }
            _ => {
                let wrong = [Value::Null, Value::from("x"), Value::from(-1), Value::from(vec![1]), Value::from(true)];
                let wrong = wrong[chance.below(wrong.len())].clone();
                let keys = ["ts", "dur", "name", "cat", "tid", "args", "ph"];
                match events[at].as_object_mut().filter(|_| chance.below(8) > 0) {
                    Some(event) => drop(event.insert(keys[chance.below(keys.len())].to_string(), wrong)),
                    None => events[at] = wrong,
                }
            }
        }
    }
}

/// Whether the ops of `timeline` are where they are in `truth`, to 1.5 ms.
fn is_near(timeline: &Timeline, truth: &Timeline) -> bool {
    let ops = |timeline: &Timeline| -> BTreeMap<String, (u64, u64)> {
        timeline.ops().map(|(op, span)| (op.to_string(), (span.start_ns, span.end_ns))).collect()
    };
    let (found, expected) = (ops(timeline), ops(truth));
    let near = |(a, b): ((u64, u64), (u64, u64))| a.0.abs_diff(b.0) < 1_500_000 && a.1.abs_diff(b.1) < 1_500_000;
    found.len() == expected.len()
        && expected.iter().all(|(op, times)| found.get(op).is_some_and(|own| near((*own, *times))))
}

#[test]
fn damaged_traces_give_an_error_or_a_warning_and_never_a_wrong_timeline() {
    let count = std::env::var("PIPESIM_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let cases = ["plain_gpipe_p2_m4", "onestep_shapes_interleavedzb_p2_m4", "slow_stage1_1f1b_p4_m8"];
    let (mut refused, mut warned, mut silent) = (0, 0, 0);
    for case in cases {
        let whole = run(case);
        let mut texts: Vec<Value> = Vec::new();
        let scratch = tempfile::tempdir().unwrap();
        changed(case, scratch.path(), |trace| texts.push(trace.clone()));
        for seed in 0..count / cases.len() as u64 {
            let mut chance = Chance(seed);
            let rank = chance.below(texts.len());
            let mut trace = texts[rank].clone();
            damage(trace["traceEvents"].as_array_mut().unwrap(), &mut chance);
            let path = scratch.path().join(format!("rank{rank}_trace.json"));
            fs::write(&path, trace.to_string()).unwrap();
            match import(&[scratch.path().to_path_buf()], &ImportOptions::default(), &|_, _| ()) {
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("expected"), "{case}, seed {seed}: {error}");
                }
                Ok(run) if !run.warnings.is_empty() => warned += 1,
                Ok(run) => {
                    silent += 1;
                    let same = run.timelines.len() == whole.timelines.len()
                        && run.timelines.iter().zip(&whole.timelines).all(|(found, truth)| is_near(found, truth));
                    assert!(same, "{case}, seed {seed}: a wrong timeline without a warning");
                }
            }
            fs::write(&path, texts[rank].to_string()).unwrap();
        }
    }
    println!("{refused} refused, {warned} with warnings, {silent} unharmed");
    assert!(warned > silent / 4);
}

/// Writes `text` as the file `name` of a new folder.
fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn tables_are_read() {
    let table =
        "rank,stage,kind,microbatch,start_us,end_us\n0,0,F,0,0,10\n1,1,F,0,12,22\n1,1,B,0,22,42\n0,0,B,0,44.5,64.5\n";
    let (_folder, path) = file("ops.csv", table);
    let run = run_with(&[path], &ImportOptions::default());
    assert_eq!((run.format, run.order.as_deref(), run.ops.found), ("CSV", Some("gpipe"), 4));
    let timeline = &run.timelines[0];
    assert_eq!((timeline.devices, timeline.metrics().makespan), (2, 0.0645));
    for (wrong, says) in [
        ("rank,stage\n0,0\n", "line 1: expected the columns"),
        ("rank,stage,kind,microbatch,start_us,end_us\n0,0,X,0,0,1\n", "line 2: expected a kind"),
        ("rank,stage,kind,microbatch,start_us,end_us\n0,0,F,0,9,1\n", "line 2: expected end_us"),
        ("", "empty file"),
    ] {
        let (_folder, path) = file("ops.csv", wrong);
        let error = import(&[path], &ImportOptions::default(), &|_, _| ()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// A trace of rank 0 of 1 on a GPU: the host launches within 1 ms what takes the GPU 5 ms each; the backward from another thread.
#[test]
fn on_gpus_ops_are_what_they_launched() {
    let mut events = Vec::new();
    let mut add = |cat: &str, name: &str, tid: u64, ts: f64, dur: f64, correlation: u64| {
        events.push(serde_json::json!({
            "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
            "args": {"correlation": correlation},
        }));
    };
    for (number, (label, thread)) in
        [("PP:0F0", 1), ("PP:0F1", 1), ("PP:0B0", 2), ("PP:0B1", 2)].into_iter().enumerate()
    {
        let (host, gpu, id) = (1_000.0 * number as f64, 10_000.0 + 5_000.0 * number as f64, 2 * number as u64);
        add("user_annotation", label, 1, host, 900.0, 0);
        add("cuda_runtime", "cudaLaunchKernel", thread, host + 100.0, 10.0, id + 1);
        add("cuda_runtime", "cudaLaunchKernel", thread, host + 200.0, 10.0, id + 2);
        add("kernel", "gemm", 7, gpu, 2_000.0, id + 1);
        add("kernel", "gelu", 7, gpu + 2_500.0, 2_500.0, id + 2);
    }
    let (_folder, path) = file("rank0.json", &serde_json::json!({"traceEvents": events}).to_string());
    let run = run_with(&[path], &ImportOptions::default());
    let times: Vec<_> = run.timelines[0].ops().map(|(op, span)| (op.to_string(), span.start_ns, span.end_ns)).collect();
    let expected = [("0F0", 0), ("0F1", 5), ("0B0", 10), ("0B1", 15)];
    assert_eq!(times, expected.map(|(op, ms)| (op.to_string(), ms * 1_000_000, (ms + 5) * 1_000_000)));
}

#[test]
fn nvtx_ranges_and_own_labels_are_read() {
    let range = |text: &str, start: u64, end: u64| {
        format!(
            "{{\"Type\":59,\"NvtxEvent\":{{\"Type\":59,\"Timestamp\":\"{start}\",\"Text\":\"{text}\",\"GlobalTid\":\"1\",\"EndTimestamp\":\"{end}\"}}}}\n"
        )
    };
    let text = [range("F0", 0, 1000), range("B0", 1000, 2000), range("W0", 2000, 3000)].concat();
    let (_folder, path) = file("rank0.json", &text);
    let run = run_with(&[path], &ImportOptions::default());
    let ops: Vec<String> = run.timelines[0].ops().map(|(op, _)| op.to_string()).collect();
    assert_eq!((run.format, ops.join(" ").as_str()), ("Nsight Systems", "0F0 0I0 0W0"));
    let own = serde_json::json!([
        {"ph": "X", "cat": "user_annotation", "name": "fwd_0", "ts": 0, "dur": 5},
        {"ph": "X", "cat": "user_annotation", "name": "bwd_0", "ts": 5, "dur": 5},
    ]);
    let (_folder, path) = file("rank0.json", &own.to_string());
    let labels = vec!["fwd_(\\d+)=F".parse().unwrap(), "bwd_(\\d+)=B".parse().unwrap()];
    let run = run_with(std::slice::from_ref(&path), &ImportOptions { labels, pipeline: None });
    assert_eq!(run.ops.found, 2);
    let error = import(&[path], &ImportOptions::default(), &|_, _| ()).unwrap_err().to_string();
    assert!(error.contains("`label`"), "{error}");
}

#[test]
fn what_is_no_trace_is_refused() {
    for (name, text, says) in [
        ("a.json", "{\"traceEvents\": []}", "expected ops of a pipeline"),
        ("a.json", "{\"x\": 1}", "expected ops of a pipeline"),
        ("a.sqlite", "SQLite format 3\0", "nsys profile --trace cuda,nvtx"),
        ("a.json", "{\"schema_version\": 1, \"spans\": 3}", "a.json"),
    ] {
        let (_folder, path) = file(name, text);
        let error = import(&[path], &ImportOptions::default(), &|_, _| ()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let error = import(&["/none/rank*.json".into()], &ImportOptions::default(), &|_, _| ()).unwrap_err().to_string();
    assert!(error.contains("found nothing at /none/rank*.json"), "{error}");
}

/// Messages of one rank that leave before they can: no clock explains them.
#[test]
fn contradictory_traces_name_the_pair() {
    let case = "plain_gpipe_p2_m4";
    let scratch = tempfile::tempdir().unwrap();
    changed(case, scratch.path(), |trace| {
        if trace["distributedInfo"]["rank"] == 1 {
            // From the middle on, the clock is 3 s ahead.
            let events = trace["traceEvents"].as_array_mut().unwrap();
            let mut times: Vec<f64> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
            times.sort_by(f64::total_cmp);
            let (from, until) = (times[times.len() / 4], times[times.len() / 2]);
            for event in events {
                if let Some(ts) = event["ts"].as_f64().filter(|ts| (from..until).contains(ts)) {
                    event["ts"] = Value::from(ts - 3e5);
                }
            }
        }
    });
    let result = import(&[scratch.path().to_path_buf()], &ImportOptions::default(), &|_, _| ());
    let error = result.map(|run| run.warnings).unwrap_err().to_string();
    assert!(error.contains("ranks 0 and 1 contradict"), "{error}");
}
