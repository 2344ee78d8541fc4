//! What Megatron-Core wrote on CPUs: a profiler's traces and its own timers of the same steps.

use super::{megatron, order, read};
use pipesim_import::Run;
use pipesim_schedule::metrics::makespan;
use pipesim_schedule::op::Kind;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub fn golden(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/megatron")).join(name)
}

/// The ns that a device spends in forwards and in backwards, by step and device.
fn busy_ns(run: &Run) -> BTreeMap<(u64, u32), [u64; 2]> {
    let mut busy: BTreeMap<(u64, u32), [u64; 2]> = BTreeMap::new();
    for timeline in &run.timelines {
        for (op, span) in timeline.ops() {
            let at = (timeline.step.unwrap_or_default(), span.device);
            busy.entry(at).or_default()[usize::from(op.kind() != Kind::F)] += span.end_ns - span.start_ns;
        }
    }
    busy
}

/// The ops of each device of the median step, in order.
fn orders(run: &Run) -> Vec<Vec<String>> {
    (0..run.timelines[0].devices).map(|device| order(run, run.median, device)).collect()
}

fn programs(p: u32, m: u32, v: u32) -> Vec<Vec<String>> {
    let schedule = megatron(p, m, v);
    (0..p).map(|device| schedule.program(device).iter().map(ToString::to_string).collect()).collect()
}

fn text(run: &Run) -> String {
    run.warnings.join("\n")
}

#[test]
fn interleaved_traces_have_the_schedules_order_and_the_timers_times() {
    let traces = read(&[golden("interleaved_p2_m4/rank0.json.gz"), golden("interleaved_p2_m4/rank1.json.gz")]).unwrap();
    let log = read(&[golden("interleaved_p2_m4/train.log")]).unwrap();
    for run in [&traces, &log] {
        assert_eq!(orders(run), programs(2, 4, 2), "{}", text(run));
        assert_eq!(run.ops.found, run.ops.expected);
    }
    let (traced, timed) = (busy_ns(&traces), busy_ns(&log));
    assert_eq!(traced.len(), 8, "four steps of two ranks");
    for ((step, device), ns) in traced {
        for (traced, timed) in ns.into_iter().zip(timed[&(step + 1, device)]) {
            let error = (traced as f64 / timed as f64 - 1.0).abs();
            assert!(error < 0.04, "step {step}, device {device}: {traced} ns in the trace, {timed} by its timer");
        }
    }
}

/// All stages equal: 1F1B takes (m + p - 1) (F + B), interleaved (m + (p - 1) / v) (F + B) with the times of all chunks
/// (Narayanan et al. 2021, section 2.2).
#[test]
fn timers_take_what_the_papers_forms_say() {
    let folder = tempfile::tempdir().unwrap();
    for (p, m, v) in [(1, 3, 1), (2, 4, 1), (4, 8, 1), (4, 2, 1), (2, 4, 2), (4, 8, 2), (4, 4, 3)] {
        let (forward, backward) = (3.0, 6.0); // ms of a micro-batch on a rank
        let timer = |name: &str, ms: f64| {
            let ranks: String =
                (0..2 * p).map(|rank| format!("     rank {rank:2}: {:.2}\n", ms * f64::from(m))).collect();
            format!("  {name}:\n{ranks}")
        };
        let sizes = [
            ("world_size", 2 * p),
            ("pipeline_model_parallel_size", p),
            ("tensor_model_parallel_size", 1),
            ("data_parallel_size", 2),
            ("micro_batch_size", 4),
            ("global_batch_size", 8 * m),
            ("virtual_pipeline_model_parallel_size", v),
        ];
        let sizes: String =
            sizes.iter().map(|(name, size)| format!("[rank0]:  {name} ............ {size}\n")).collect();
        let steps: String = (1..=2)
            .map(|step| {
                let line =
                    format!("[2026-01-01 00:00:00] iteration {step}/ 2 | elapsed time per iteration (ms): 1.0 |");
                let times = timer("forward-compute", forward) + &timer("backward-compute", backward);
                format!("{line}\ntimes across ranks (ms):\n{times}")
            })
            .collect();
        let path = folder.path().join("train.log");
        std::fs::write(&path, sizes + &steps).unwrap();
        let run = read(&[path]).unwrap();
        let expected_ms = (f64::from(m) + f64::from(p - 1) / f64::from(v)) * (forward + backward);
        assert_eq!(run.timelines.len(), 2);
        let found_ms = makespan(&run.timelines[0].activities()) as f64 / 1e6;
        assert!((found_ms - expected_ms).abs() < 1e-3, "p {p}, m {m}, v {v}: {found_ms} ms, expected {expected_ms}");
        assert_eq!(orders(&run), programs(p, m, v));
    }
}

#[test]
fn logs_that_cannot_be_placed_say_what_is_missing() {
    let whole = std::fs::read_to_string(golden("interleaved_p2_m4/train.log")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let refused = |text: String| {
        let path = folder.path().join("train.log");
        std::fs::write(&path, text).unwrap();
        read(&[path]).unwrap_err()
    };
    let without = |word: &str| whole.lines().filter(|line| !line.contains(word)).collect::<Vec<_>>().join("\n");
    assert!(refused(without("pipeline_model_parallel_size")).contains("pipeline_model_parallel_size"));
    assert!(refused(without("rank  1:")).contains("of all 2 ranks"), "half of the ranks");
    assert!(refused(whole.replace("forward-compute", "forward")).contains("--timing-log-level 2"));
    assert!(
        refused(whole.replace("global_batch_size ..............................", "global_batch_size .. 0 .."))
            .contains("global_batch_size")
    );
}

#[test]
fn replicas_are_no_pipeline() {
    let run = read(&[golden("no_pipeline")]).unwrap();
    assert!(text(&run).contains("neither sends nor receives") && text(&run).contains("2 pipelines"), "{}", text(&run));
    assert_eq!((run.timelines[0].devices, run.messages.expected), (1, 0));
}
