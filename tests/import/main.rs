//! Runs whose ranges have no numbers, as Megatron-LM names them, and Nsight Systems' SQLite exports.

mod megatron;
mod mutated;
mod recorded;

use pipesim_import::{ImportOptions, Run, import};
use pipesim_language::{Budget, Request, compile, named};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::Order;
use pipesim_schedule::schedule::Schedule;
use rusqlite::{Connection, params};
use std::fs;
use std::path::{Path, PathBuf};

/// Reads the traces at `paths`.
pub fn read(paths: &[PathBuf]) -> Result<Run, String> {
    import(paths, &ImportOptions::default(), &|_, _| (), &|_| None).map_err(|error| error.to_string())
}

/// Returns a schedule that Megatron-LM runs.
fn megatron(p: u32, m: u32, v: u32) -> Schedule {
    let name = if v == 1 { "1f1b" } else { "interleaved-1f1b" };
    let chunks = Some(v).filter(|&v| v > 1);
    let request =
        Request { devices: p, microbatches: m, chunks, options: Default::default(), budget: Budget::default() };
    let Order::Fixed(schedule) = compile(&named(name).unwrap(), &request).unwrap().order else { panic!("fixed") };
    schedule
}

/// One range of a rank: its name, and when it runs in us.
type Range = (&'static str, u64, u64);

/// The ranges of a rank over some steps.
fn ranges(program: &[Op], steps: u64) -> Vec<Range> {
    let step = |step: u64| {
        (0..).zip(program).map(move |(at, op)| {
            let start = 1000 * (10_000 * step + 10 * at);
            let name = if op.kind() == Kind::F { "forward_step" } else { "backward_step" };
            (name, start, start + 9_000)
        })
    };
    (0..steps).flat_map(step).collect()
}

/// Writes a trace of PyTorch's profiler with these ranges.
fn write_kineto(path: &Path, ranges: &[Range]) {
    let event = |(name, start, end): &Range| {
        format!(
            r#"{{"ph": "X", "cat": "user_annotation", "name": "megatron.core.pipeline_parallel.schedules.{name}", "tid": 1, "ts": {start}, "dur": {}}}"#,
            end - start
        )
    };
    let events: Vec<String> = ranges.iter().map(event).collect();
    fs::write(path, format!(r#"{{"schemaVersion": 1, "traceEvents": [{}]}}"#, events.join(",\n"))).unwrap();
}

/// Writes the traces of all ranks of a schedule.
fn kineto_folder(schedule: &Schedule, steps: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for device in 0..schedule.devices() {
        let path = folder.path().join(format!("rank{device}.json"));
        write_kineto(&path, &ranges(schedule.program(device), steps));
    }
    folder
}

/// Returns the ops of a device in the order in which they ran.
fn order(run: &Run, step: usize, device: u32) -> Vec<String> {
    let ops = run.timelines[step].ops().filter(|(_, span)| span.device == device);
    ops.map(|(op, _)| op.to_string()).collect()
}

fn has_order_of(run: &Run, schedule: &Schedule) {
    for step in 0..run.timelines.len() {
        for device in 0..schedule.devices() {
            let expected: Vec<String> = schedule.program(device).iter().map(|op| op.alone().to_string()).collect();
            assert_eq!(order(run, step, device), expected, "step {step}, device {device}");
        }
    }
}

#[test]
fn ranges_without_numbers_are_counted() {
    for (p, m, v) in
        [(2, 2, 1), (4, 8, 1), (4, 2, 1), (8, 12, 1), (2, 4, 2), (4, 8, 2), (4, 8, 4), (4, 4, 3), (3, 9, 2)]
    {
        let schedule = megatron(p, m, v);
        let folder = kineto_folder(&schedule, 3);
        let run = read(&[folder.path().to_path_buf()]).unwrap();
        assert_eq!(run.timelines.len(), 3, "p={p} m={m} v={v}");
        has_order_of(&run, &schedule);
        let said = run.warnings.iter().find(|warning| warning.contains("have no numbers")).unwrap();
        assert!(said.contains(&format!("on {p} ranks, {m} micro-batches")), "{said}");
    }
}

#[test]
fn what_no_schedule_explains_is_refused() {
    let schedule = megatron(4, 8, 1);
    let folder = kineto_folder(&schedule, 2);
    let path = |rank: u32| folder.path().join(format!("rank{rank}.json"));
    let mut lacks_one = ranges(schedule.program(2), 2);
    lacks_one.pop();
    write_kineto(&path(2), &lacks_one);
    let error = read(&[folder.path().to_path_buf()]).unwrap_err();
    assert!(error.contains("31 in") && error.contains("rank2.json") && error.contains("`label`"), "{error}");
    // Without a rank, the others' forwards before the first backward are too many.
    fs::remove_file(path(2)).unwrap();
    let error = read(&[folder.path().to_path_buf()]).unwrap_err();
    assert!(error.contains("on each of the 3 ranks"), "{error}");
}

/// Writes a report of one node: each rank is a process; ranges last 9 us, and the GPU works for 7 us from 1 us later on.
fn write_report(path: &Path, schedule: &Schedule, steps: u64) {
    let report = Connection::open(path).unwrap();
    report
        .execute_batch(
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
             CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
             CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
             CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, globalPid INTEGER, correlationId INTEGER, shortName INTEGER);
             CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
             INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000);
             INSERT INTO StringIds VALUES (1, 'forward_step'), (2, 'backward_step'), (3, 'gemm'), (4, 'aten::mm');
             BEGIN;",
        )
        .unwrap();
    let name = |name: &str| if name == "forward_step" { 1 } else { 2 };
    for device in 0..schedule.devices() {
        let process = i64::from(7000 + device) << 24;
        for (at, (range, start, end)) in (1_i64..).zip(ranges(schedule.program(device), steps)) {
            let add = |text: &str, values: &[i64]| {
                report.execute(text, rusqlite::params_from_iter(values)).unwrap();
            };
            let (start, end, thread) = (start as i64, end as i64, process + i64::from(device));
            add("INSERT INTO NVTX_EVENTS VALUES (?1, ?2, 59, NULL, ?3, ?4)", &[start, end, thread, name(range)]);
            add("INSERT INTO NVTX_EVENTS VALUES (?1, ?2, 59, NULL, ?3, 4)", &[start + 10, end - 10, thread]);
            let launched = start + 500;
            add(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?1, ?2, ?3, ?4, 4)",
                &[launched, launched + 5, thread, at],
            );
            add(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?1, ?2, ?3, ?4, 3)",
                &[start + 1000, start + 8000, process, at],
            );
        }
    }
    report.execute("COMMIT", params![]).unwrap();
}

#[test]
fn reports_of_nsight_systems_are_read() {
    for (p, m, v) in [(2, 4, 1), (2, 4, 2)] {
        let schedule = megatron(p, m, v);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node0.sqlite");
        write_report(&path, &schedule, 2);
        for given in [path.clone(), folder.path().to_path_buf()] {
            let run = read(&[given]).unwrap();
            assert_eq!((run.format, run.timelines.len()), ("Nsight Systems", 2));
            has_order_of(&run, &schedule);
            assert!(run.timelines[0].ops().all(|(_, span)| span.end_ns - span.start_ns == 7000), "times are the GPU's");
            assert!(run.warnings.iter().all(|warning| !warning.contains("clock")), "{:?}", run.warnings);
        }
        // A report that is exported already is read from there.
        let report = folder.path().join("node0.nsys-rep");
        fs::write(&report, "binary").unwrap();
        has_order_of(&read(std::slice::from_ref(&report)).unwrap(), &schedule);
        has_order_of(&read(&[folder.path().to_path_buf()]).unwrap(), &schedule);
        fs::remove_file(&path).unwrap();
        let error = read(&[report]).unwrap_err();
        assert!(error.contains("run: nsys export --type sqlite") && error.contains("node0.nsys-rep"), "{error}");
    }
}
