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
    assert!(cut.warnings.iter().any(|text| text.contains("the chain of messages is cut: rank 3")), "{:?}", cut.warnings);
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
    assert!(error.contains("found 2; correct --pipeline"), "{error}");
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
