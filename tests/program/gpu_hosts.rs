//! What the host does around GPUs, on stand-ins for NVIDIA's libraries: remarks, refusals, fallbacks, samples of clocks.

use crate::emulated::{END, STREAM, TINY, compile, pipesim, train};
use crate::support::*;
use serde_json::Value;
use std::time::Instant;

/// Hosts that a signal holds up enqueue late, and wait for each other, but never in a circle.
#[test]
fn signals_that_hold_hosts_up_give_the_same() {
    let arguments = "--stages 2 -n 2 --link nvshmem --schedule 1f1b,dualpipe";
    train(arguments, &[("EMULATOR_PUT_HOLDS", "1")], STREAM, 1e-4);
}

/// float32 products of a GPU are slow: a run says so once, whatever is measured.
#[test]
fn the_precision_is_said_once() {
    let small = format!(
        "{TINY} --device cuda --stages 2 --micro 2 --warmup 0 --blocks 2 --schedule 1f1b,gpipe --link copy --link local"
    );
    for (more, count) in [("", 1), ("--precision bf16", 0)] {
        let (code, _, told) = run(&mut pipesim(&[]), &format!("{small} {more}"));
        assert!(code == Some(0) && told.matches("activations are float32").count() == count, "{more}: {told}");
    }
}

/// Clock, power and what slows a GPU down are in the report; a run that was slowed down says so.
#[test]
fn a_throttled_run_says_so() {
    let small =
        format!("{TINY} --device cuda --stages 2 --micro 2 --warmup 0 --blocks 2 --schedule 1f1b --format json");
    for (mask, words) in [("0", ""), ("0x44", "hardware thermal slowdown in 100 % of samples, power cap in 100 %")] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = pipesim(&[("EMULATOR_THROTTLE", mask)]);
        command.arg("run").args(small.split_whitespace()).arg("-o").arg(folder.path().join("report/"));
        let (code, _, told) = finish(&mut command);
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("slowed down") == (mask != "0") && told.contains(words), "{mask}: {told}");
        let report = std::fs::read(folder.path().join("report/report.json")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        let clocks = report["provenance"]["clocks of gpus"].as_str().unwrap();
        assert!(clocks.contains("of 1980 MHz, at most 650 W") && clocks.contains(words), "{clocks}");
    }
}

/// NCCL's transfers wait for each other where they do not fit on a GPU at the same time.
#[test]
fn more_blocks_of_nccl_than_multiprocessors_are_refused() {
    let arguments =
        format!("{TINY} --device cuda --stages 2 --micro 2 --warmup 0 --blocks 2 --schedule 1f1b --link nccl");
    let (code, _, told) = run(&mut pipesim(&[("EMULATOR_MULTIPROCESSORS", "16")]), &arguments);
    assert!(code != Some(0) && told.contains("at most 16 thread blocks of NCCL"), "{code:?} {told}");
}

/// A send blocks what shares a hardware queue with its stream, such as copies to and from the host, whose two streams all sessions use.
#[test]
fn more_streams_with_nccl_than_hardware_queues_are_refused() {
    let sizes = format!("{TINY} --device cuda --stages 4 --micro 8 --warmup 0 --blocks 8 --link nccl --timeout 10");
    for (queues, refused) in [("10", "expected at most 10 streams on a GPU with --link nccl"), ("11", "")] {
        let variables = [
            ("CUDA_DEVICE_MAX_CONNECTIONS", queues),
            ("EMULATOR_CONNECTIONS_WANTED", queues),
            ("EMULATOR_DEVICES", "4"),
        ];
        let (code, _, told) = run(&mut pipesim(&variables), &format!("{sizes} --schedule pipeoffload"));
        assert!((code == Some(0)) == refused.is_empty() && told.contains(refused), "{queues}: {code:?} {told}");
    }
}

/// A driver that describes green contexts with hardware queues of their own, but creates none.
#[test]
fn slices_do_without_hardware_queues_of_their_own() {
    let variables = [("EMULATOR_DEVICES", "1"), ("EMULATOR_DRIVER_VERSION", "13010"), ("EMULATOR_NO_OWN_QUEUES", "1")];
    let arguments =
        format!("{TINY} --device cuda --slices 2 --stages 2 --micro 2 --warmup 0 --blocks 2 --schedule 1f1b");
    let (code, _, told) = run(&mut pipesim(&variables), &arguments);
    assert_eq!(code, Some(0), "{told}");
}

/// NCCL waits for all ranks of a communicator that it creates, in a call that nothing ends.
#[test]
fn a_rank_that_dies_or_stops_in_the_creation_of_a_communicator_is_named() {
    compile();
    for (signal, words) in [("9", "rank 1 was killed by signal 9"), ("19", "was stopped (SIGSTOP)")] {
        let arguments = format!("{TINY} --device cuda --stages 1 --tp 2 -n 2 --micro 2 --blocks 2 --schedule 1f1b");
        let fault = format!("1:{signal}");
        let variables = [("EMULATOR_NCCL_JOIN", &*fault), ("EMULATOR_JITTER", "0")];
        let begin = Instant::now();
        let (code, _, told) = run(&mut pipesim(&variables), &arguments);
        assert!(code == Some(6) && told.contains("rank 1 ") && told.contains(words), "{signal}: {code:?} {told}");
        assert!(begin.elapsed() < END, "{signal}: it took {:?}: {told}", begin.elapsed());
    }
}
